"""Clocks and ids that a test owns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass
class ManualClock:
    """All three clocks, standing still until a test moves them."""

    seconds: float = 1_000_000.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic_s(self) -> float:
        return self.seconds

    def boottime_s(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds


class CountedIds:
    """Ids that look random and are the same in every run."""

    def __init__(self) -> None:
        self._made = 0

    def random_bytes(self, count: int) -> bytes:
        self._made += 1
        return hashlib.shake_128(self._made.to_bytes(8, "big")).digest(count)
