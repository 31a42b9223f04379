"""The disk alone: syncing bytes in a recycled file, and reading files from end to end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measure import Stopwatch

BLOCK_BYTES = 4096
SEGMENT_BYTES = 16 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024


def make_recycled_file(path: Path) -> None:
    """A file whose blocks are all written already: the cheapest kind to sync."""
    with path.open("wb") as file:
        file.write(os.urandom(SEGMENT_BYTES))
        os.fsync(file.fileno())


def sync_times(path: Path, size: int, count: int) -> list[float]:
    """Seconds of ``count`` writes of ``size`` bytes with an fdatasync each, block after block."""
    data = os.urandom(size)
    stride = -(-size // BLOCK_BYTES) * BLOCK_BYTES
    times: list[float] = []
    descriptor = os.open(path, os.O_WRONLY)
    try:
        at = 0
        for _ in range(count):
            started = time.perf_counter()
            os.pwrite(descriptor, data, at)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - started)
            at = (at + stride) % (SEGMENT_BYTES - stride)
    finally:
        os.close(descriptor)
    return times


def read_files(paths: Iterable[Path]) -> tuple[int, float]:
    """Read files from end to end; returns bytes and seconds."""
    buffer = bytearray(READ_BYTES)
    watch, total = Stopwatch(), 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total, watch.seconds
