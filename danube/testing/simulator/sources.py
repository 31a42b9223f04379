"""Time and randomness of a simulated process: both belong to the run's seed."""

from __future__ import annotations

import random


class SimClock:
    """Time moves only when told to, microseconds at a time."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._start_us = start_us
        self._us = start_us

    def now_us(self) -> int:
        """See :class:`danube.core.clock.Clock`."""
        return self._us

    def monotonic_s(self) -> float:
        """See :class:`danube.core.clock.Clock`."""
        return (self._us - self._start_us) / 1e6

    def boottime_s(self) -> float:
        """See :class:`danube.core.clock.Clock`."""
        return self.monotonic_s()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._us += round(seconds * 1e6)


class SimIds:
    """Ids that a seed repeats."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def random_bytes(self, count: int) -> bytes:
        """See :class:`danube.core.clock.IdSource`."""
        return self._rng.randbytes(count)
