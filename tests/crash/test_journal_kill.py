"""kill -9 of a real process that writes a journal, again and again on the same directory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from danube.journal.journal import Journal
from tests.crash.journal_writer import SETTINGS, body

ROOT = Path(__file__).resolve().parents[2]


def recovered(directory: Path) -> list[int]:
    """Numbers of the entries, each checked; in order."""
    journal = Journal.open(directory, SETTINGS, broker_id="crash")
    try:
        numbers = []
        for entry in journal.recover():
            assert bytes(entry.body) == body(entry.base_offset)
            numbers.append(entry.base_offset)
        return numbers
    finally:
        journal.close()


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path, long_run: bool) -> None:
    directory = tmp_path / "journal"
    rng = random.Random(7)
    next_number = acknowledged = 0
    for _ in range(100 if long_run else 10):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.journal_writer", str(directory), str(next_number)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert writer.stdout is not None
        with writer.stdout as lines:
            for _ in range(rng.randint(1, 400)):
                assert lines.readline()
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            # What it still had told before it died counts too.
            rest = lines.read().split(b"\n")
        told = [int(line) for line in rest[:-1]]
        acknowledged = max([acknowledged, *told])
        numbers = recovered(directory)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > acknowledged
        next_number = len(numbers)
    assert acknowledged > 0
