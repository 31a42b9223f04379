"""Recovering the journal of a killed broker, beside reading its files from end to end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import Repeats, Stopwatch, in_turns
from benchmarks.messaging.publishing import publisher
from benchmarks.payloads import random_records
from benchmarks.peers.disk import read_files
from benchmarks.processes import start_broker
from benchmarks.results import Figure, Row, Setup, compared
from danube.broker.directory import open_directory
from danube.core.clock import SystemIds
from danube.journal.journal import Journal
from danube.journal.settings import JournalSettings
from danube.log.recovery import replay

AT_LEAST = 0.3
PIECE_MIB = 128


def run(bench: Bench) -> Iterator[Row]:
    """1 KiB messages that were never rolled; the broker is killed, then its journal recovered."""
    data = bench.new_directory("crashed") / "data"
    size = _fill(bench, data)
    bench.say(f"the journal has {size / MIB:.0f} MiB")

    def recover() -> float:
        watch = Stopwatch()
        _recover(data)
        return size / watch.seconds

    def read() -> float:
        count, seconds = read_files(_segments(data))
        return count / seconds

    repeats = Repeats(1, min(bench.sizes.repetitions, 3))
    figures = in_turns({"ours": recover, "peer": read}, repeats)
    watch = Stopwatch()
    with start_broker(data, NO_ROLLS) as broker:
        restart_s = watch.seconds
        broker.kill()
    shutil.rmtree(data)
    yield compared(
        bench.name,
        "recover a journal",
        Figure.of("B/s", figures["ours"]),
        Figure.of("B/s", figures["peer"]),
        Setup(
            payload="1 KiB random",
            batch=f"frames of 1 MiB, {size // MIB} MiB, nothing rolled",
            durability="disk; the broker was killed",
            client="Journal.open and replay, every checksum checked",
            peer="reading the same files in 4 MiB pieces; both from the page cache",
        ),
        at_least=AT_LEAST,
        note=f"the whole broker was ready {restart_s:.1f} s after its start",
    )


def _fill(bench: Bench, data: Path) -> int:
    records = random_records(PIECE_MIB * MIB, 1024)
    with start_broker(data, NO_ROLLS) as broker:
        with bench.entered(publisher(broker.url)) as topic:
            for _ in range(max(bench.sizes.recovery_mib // PIECE_MIB, 1)):
                bench.wait(topic.send_batch(records))
        broker.kill()
    return sum(path.stat().st_size for path in _segments(data))


def _recover(data: Path) -> None:
    directory = open_directory(data, SystemIds())
    settings = JournalSettings()
    journal = Journal.open(directory.journal, settings, broker_id=directory.broker_id)
    try:
        replay(journal.recover())
    finally:
        journal.close()


def _segments(data: Path) -> list[Path]:
    return sorted(path for path in (data / "journal").rglob("*") if path.is_file())
