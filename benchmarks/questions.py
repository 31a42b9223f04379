"""The questions, in the order they are asked, and where each is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from benchmarks.bench import Bench
from benchmarks.results import Row


@dataclass(frozen=True, slots=True)
class Question:
    """A name, what it asks, and the module whose ``run(bench)`` yields the rows."""

    name: str
    asks: str
    module: str

    def run(self, bench: Bench) -> Iterator[Row]:
        """Measure. The module is loaded now: Spark only for those who ask about it."""
        run = cast("Callable[[Bench], Iterator[Row]]", import_module(self.module).run)
        return run(bench)


QUESTIONS: Final = (
    Question(
        "publish-bytes",
        "how much of gRPC's own streaming rate is left with a durable log behind it?",
        "benchmarks.messaging.publish_bytes",
    ),
    Question(
        "publish-latency",
        "how much later than the disk does an acknowledgement come?",
        "benchmarks.messaging.publish_latency",
    ),
    Question(
        "publish-batches",
        "how many durable messages per second through send_batch?",
        "benchmarks.messaging.publish_batches",
    ),
    Question(
        "publish-messages",
        "how many durable messages per second through publish, message by message?",
        "benchmarks.messaging.publish_messages",
    ),
    Question(
        "consume",
        "how many messages per second as a list per batch, and as an object each?",
        "benchmarks.messaging.consume",
    ),
    Question(
        "roll",
        "how fast do messages become a table, beside pyarrow alone?",
        "benchmarks.lake.roll",
    ),
    Question(
        "rolling",
        "how much of the publish rate is left while rolling?",
        "benchmarks.lake.rolling",
    ),
    Question(
        "recovery",
        "how fast is a journal recovered, beside reading its files?",
        "benchmarks.messaging.recovery",
    ),
    Question(
        "idle-topics",
        "what do topics without traffic cost?",
        "benchmarks.messaging.idle_topics",
    ),
    Question(
        "spark-replay",
        "how fast does Spark replay history, beside its own Parquet stream?",
        "benchmarks.spark.replay",
    ),
    Question(
        "spark-sink",
        "how fast does Spark write to a topic, beside writing Parquet?",
        "benchmarks.spark.sink",
    ),
)
