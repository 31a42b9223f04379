"""A map from offsets to values, kept as sorted disjoint spans: cost in spans, not in messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Span(Generic[V]):
    """Offsets ``start`` (inclusive) to ``end`` (exclusive) have ``value``."""

    start: int
    end: int
    value: V

    def __len__(self) -> int:
        return self.end - self.start


class SpanMap(Generic[V]):
    """Spans that do not overlap; neighbours with equal values are one span.

    ``total`` is the number of offsets in it.
    """

    __slots__ = ("_ends", "_starts", "_values", "total")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[V] = []
        self.total = 0

    def add(self, start: int, end: int, value: V) -> None:
        """Add offsets that are not in the map.

        Raises:
            ValueError: some of them are.
        """
        if start >= end:
            return
        at = bisect_left(self._starts, start)
        before = at > 0 and self._ends[at - 1] > start
        if before or (at < len(self._starts) and self._starts[at] < end):
            raise ValueError(f"[{start}, {end}) overlaps what is in the map")
        self.total += end - start
        left = at > 0 and self._ends[at - 1] == start and self._values[at - 1] == value
        right = at < len(self._starts) and self._starts[at] == end and self._values[at] == value
        first, last = at - left, at + right
        self._starts[first:last] = [self._starts[first] if left else start]
        self._ends[first:last] = [self._ends[last - 1] if right else end]
        self._values[first:last] = [value]

    def within(self, start: int, end: int) -> Iterator[Span[V]]:
        """The parts of [start, end) that are in the map, ascending."""
        at = bisect_right(self._ends, start)
        while at < len(self._starts) and self._starts[at] < end:
            low, high = max(start, self._starts[at]), min(end, self._ends[at])
            if low < high:
                yield Span(low, high, self._values[at])
            at += 1

    def cut(self, start: int, end: int) -> list[Span[V]]:
        """Take [start, end) out; returns what was there, ascending."""
        gone = list(self.within(start, end))
        if not gone:
            return gone
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        kept = [
            (low, high, self._values[at])
            for at in range(first, last)
            for low, high in (
                (self._starts[at], min(start, self._ends[at])),
                (max(end, self._starts[at]), self._ends[at]),
            )
            if low < high
        ]
        self._starts[first:last] = [low for low, _, _ in kept]
        self._ends[first:last] = [high for _, high, _ in kept]
        self._values[first:last] = [value for _, _, value in kept]
        self.total -= sum(len(span) for span in gone)
        return gone

    def cut_values(self, chosen: Callable[[V], bool]) -> list[Span[V]]:
        """Take every span with a chosen value out; returns them, ascending."""
        gone = [span for span in self if chosen(span.value)]
        kept = [span for span in self if not chosen(span.value)]
        self._starts = [span.start for span in kept]
        self._ends = [span.end for span in kept]
        self._values = [span.value for span in kept]
        self.total -= sum(len(span) for span in gone)
        return gone

    def clear(self) -> None:
        """Take everything out."""
        self._starts.clear()
        self._ends.clear()
        self._values.clear()
        self.total = 0

    def first(self) -> Span[V] | None:
        """The span with the lowest offsets."""
        if not self._starts:
            return None
        return Span(self._starts[0], self._ends[0], self._values[0])

    def __iter__(self) -> Iterator[Span[V]]:
        return map(Span, self._starts, self._ends, self._values)

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __repr__(self) -> str:
        return f"SpanMap({', '.join(f'[{s.start}, {s.end}): {s.value}' for s in self)})"
