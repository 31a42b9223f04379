"""Durable messages per second through ``send_batch``, from Arrow and from lists of bytes.

A goal: its peer, Kafka with an fsync per batch, comes later. Beside it stands what gRPC alone does
with the same frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import in_turns
from benchmarks.messaging.publishing import Publisher, frames_of, publisher
from benchmarks.payloads import SIZES, random_records
from benchmarks.peers.streaming import MODULE, stream_file, write_frames
from benchmarks.processes import Process, start_peer
from benchmarks.results import Figure, Row, Setup, compared

GOALS = {"1 KiB": "goal 380 k/s", "100 B": "goal 1.74 M/s"}
"""Twice what Kafka with an fsync per batch reached on two such cores."""


def run(bench: Bench) -> Iterator[Row]:
    """Both sizes, as an Arrow record batch and as a list of bytes."""
    with (
        bench.broker(NO_ROLLS) as broker,
        start_peer(MODULE, bench.directory) as peer,
        bench.entered(publisher(broker.url)) as topic,
    ):
        for name, size in SIZES.items():
            total = bench.sizes.publish_mib * MIB * (1 if size >= 1024 else 0.5)
            records = random_records(int(total), size)
            yield from _size(bench, topic, peer, name, records)


def _size(
    bench: Bench, topic: Publisher, peer: Process, name: str, records: pa.RecordBatch
) -> Iterator[Row]:
    frames = frames_of(records)
    count = records.num_rows
    stored = bench.directory / "frames"
    write_frames(stored, frames)
    forms: dict[str, Any] = {
        "an Arrow record batch": records,
        "a list of bytes": records.column("value").to_pylist(),
    }

    def sender(form: Any) -> Callable[[], float]:
        def send() -> float:
            seconds = bench.wait(topic.send_batch(form))
            bench.wait(topic.roll())
            return count / seconds

        return send

    contestants = {form: sender(given) for form, given in forms.items()}
    contestants["peer"] = lambda: count / stream_file(peer.url, stored)
    figures = in_turns(contestants, bench.repeats)
    for form in forms:
        yield compared(
            bench.name,
            f"publish, {name}, send_batch of {form.split()[1]}",
            Figure.of("msg/s", figures[form]),
            Figure.of("msg/s", figures["peer"]),
            Setup(
                payload=f"{name} random",
                batch=f"{count} messages in {len(frames)} frames",
                durability="disk",
                client=f"send_batch of {form}, asyncio",
                peer="the same frames ready-made through a servicer without logic",
            ),
            goal=GOALS[name],
        )
