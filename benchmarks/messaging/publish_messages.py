"""Durable messages per second through ``publish``: buffered, one call per message.

A goal: its peer, a Kafka broker, comes later. Beside it stands ``produce`` of confluent-kafka into
the broker that librdkafka mocks in the same process, which writes nothing to a disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import danube.blocking
from benchmarks.bench import NO_ROLLS, Bench
from benchmarks.measure import Stopwatch, in_turns
from benchmarks.messaging.publishing import TOPIC
from benchmarks.payloads import SIZES, random_list
from benchmarks.peers.kafka import MockKafka
from benchmarks.results import Figure, Row, Setup, compared


def run(bench: Bench) -> Iterator[Row]:
    """Both sizes, from a plain loop of a blocking program."""
    with (
        bench.broker(NO_ROLLS) as broker,
        danube.blocking.connect(broker.url) as client,
        client.producer(TOPIC, name="bench", create=True) as producer,
    ):
        for name, size in SIZES.items():
            values = random_list(bench.sizes.messages, size)

            def ours(values: list[bytes]) -> float:
                watch = Stopwatch()
                publish = producer.publish
                for value in values:
                    publish(value)
                producer.flush()
                rate = len(values) / watch.seconds
                client.admin.roll(TOPIC)
                return rate

            with MockKafka() as kafka:
                figures = in_turns(
                    {"ours": partial(ours, values), "peer": partial(kafka.produce, values)},
                    bench.repeats,
                )
            yield _row(bench, name, figures)


def _row(bench: Bench, name: str, figures: dict[str, list[float]]) -> Row:
    return compared(
        bench.name,
        f"publish, {name}, message by message",
        Figure.of("msg/s", figures["ours"]),
        Figure.of("msg/s", figures["peer"]),
        Setup(
            payload=f"{name} random",
            batch="up to 1 MiB, 5 ms linger",
            durability="disk",
            client="publish and flush, blocking twin",
            peer="confluent-kafka produce and flush, linger 5 ms, batch.size 1 MiB, acks=all, into "
            "librdkafka's mock broker: in memory, no disk, in C in the same process",
        ),
        goal="goal: as many as Kafka",
    )
