"""Bytes per second into a durable topic, beside plain gRPC streaming of the same frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import in_turns
from benchmarks.messaging.publishing import frames_of, publisher
from benchmarks.payloads import random_records
from benchmarks.peers.disk import make_recycled_file, sync_times
from benchmarks.peers.streaming import MODULE, stream_file, write_frames
from benchmarks.processes import start_peer
from benchmarks.results import Figure, Row, Setup, compared

AT_LEAST = 0.5
SYNC_MIB = 2


def run(bench: Bench) -> Iterator[Row]:
    """1 KiB messages in 1 MiB frames."""
    records = random_records(bench.sizes.publish_mib * MIB, 1024)
    frames = frames_of(records)
    total = sum(map(len, frames))
    stored, disk_file = bench.directory / "frames", bench.directory / "recycled"
    write_frames(stored, frames)
    make_recycled_file(disk_file)
    with (
        bench.broker(NO_ROLLS) as broker,
        start_peer(MODULE, bench.directory) as peer,
        bench.entered(publisher(broker.url)) as topic,
    ):

        def ours() -> float:
            seconds = bench.wait(topic.send_batch(records))
            bench.wait(topic.roll())
            return total / seconds

        figures = in_turns(
            {
                "ours": ours,
                "peer": lambda: total / stream_file(peer.url, stored),
                "disk": lambda: _disk(disk_file, total),
            },
            bench.repeats,
        )
    yield compared(
        bench.name,
        "publish, bytes",
        Figure.of("B/s", figures["ours"]),
        Figure.of("B/s", figures["peer"]),
        Setup(
            payload="1 KiB random",
            batch=f"{len(frames)} frames of {total // len(frames)} B, 5 in flight",
            durability="disk: fdatasync before each receipt",
            client="send_batch of one Arrow record batch, asyncio",
            peer="the same frames ready-made through a servicer without logic, none checked or "
            "stored, no window; client and server in processes of their own",
        ),
        at_least=AT_LEAST,
        note=f"the disk alone, fdatasync of {SYNC_MIB} MiB at a time: "
        f"{Figure.of('B/s', figures['disk'])}",
    )


def _disk(path: Path, total: int) -> float:
    size = SYNC_MIB * MIB
    count = max(total // size, 1)
    return count * size / sum(sync_times(path, size, count))
