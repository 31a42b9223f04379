"""Repetitions in turns: a machine that slows down meanwhile slows everybody down."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often each contestant runs, before and while it counts."""

    warmups: int
    measured: int


def in_turns(
    contestants: Mapping[str, Callable[[], float]], repeats: Repeats
) -> dict[str, list[float]]:
    """Run the contestants in turns, every other round backwards; returns their figures by name.

    Warm-up rounds are not counted: caches, pools and branches of everybody are warm then.
    """
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(repeats.warmups + repeats.measured):
        order = list(contestants.items())
        if number % 2:
            order.reverse()
        for name, run in order:
            gc.collect()
            figure = run()
            if number >= repeats.warmups:
                figures[name].append(figure)
    return figures


class Stopwatch:
    """Seconds since it was made."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Elapsed seconds."""
        return time.perf_counter() - self._since


def percentile(samples: list[float], percent: float) -> float:
    """The sample that ``percent`` of all are not above. Sorts in place."""
    samples.sort()
    return samples[min(int(len(samples) * percent / 100), len(samples) - 1)]
