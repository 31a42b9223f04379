"""Clock and id sources as arguments, so that the simulator can own time and randomness."""

from __future__ import annotations

import os
import time
from typing import Protocol


class Clock(Protocol):
    """Three clocks; each answers another question."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC: for people and retention, never for safety."""

    def monotonic_s(self) -> float:
        """Seconds that never go back: for waiting."""

    def boottime_s(self) -> float:
        """Seconds that go on while the machine sleeps: for leases and the age of snapshots."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        # A Mac has no CLOCK_BOOTTIME; its monotonic clock is the nearest thing.
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)


class IdSource(Protocol):
    """Where random ids come from."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` random bytes."""


class SystemIds:
    """Ids from the operating system."""

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)
