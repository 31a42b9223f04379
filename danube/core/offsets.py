"""Offsets, half-open ranges of them, and sorted disjoint sets of ranges (acks, lost ranges)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a range of offsets: [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def intersect(self, other: OffsetRange) -> OffsetRange | None:
        """What both share, or None when that is nothing."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return OffsetRange(start, end) if start < end else None

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class RangeSet:
    """A mutable set of offsets, kept as sorted, disjoint, non-adjacent half-open ranges.

    Adding and removing cost O(log n + ranges touched), whatever the ranges' lengths.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for item in ranges:
            self.add(item.start, item.end)

    def add(self, start: int, end: int) -> None:
        """Add [start, end), merging with what it overlaps or touches."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Take [start, end) out."""
        if start >= end:
            return
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        starts: list[int] = []
        ends: list[int] = []
        for at in range(first, last):
            if self._starts[at] < start:
                starts.append(self._starts[at])
                ends.append(start)
            if self._ends[at] > end:
                starts.append(end)
                ends.append(self._ends[at])
        if first < last:
            self._starts[first:last] = starts
            self._ends[first:last] = ends

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and end <= self._ends[at])

    def gaps(self, start: int, end: int) -> Iterator[OffsetRange]:
        """The parts of [start, end) that are not in the set, ascending."""
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            if start < self._starts[at]:
                yield OffsetRange(start, self._starts[at])
            start = max(start, self._ends[at])
        if start < end:
            yield OffsetRange(start, end)

    def within(self, start: int, end: int) -> Iterator[OffsetRange]:
        """The parts of [start, end) that are in the set, ascending."""
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            yield OffsetRange(max(start, self._starts[at]), min(end, self._ends[at]))

    @property
    def end(self) -> int:
        """End of the last range; 0 for an empty set."""
        return self._ends[-1] if self._ends else 0

    def total(self) -> int:
        """How many offsets are in the set."""
        return sum(self._ends) - sum(self._starts)

    def copy(self) -> RangeSet:
        """An independent copy."""
        other = RangeSet()
        other._starts = list(self._starts)
        other._ends = list(self._ends)
        return other

    def __iter__(self) -> Iterator[OffsetRange]:
        return map(OffsetRange, self._starts, self._ends)

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({', '.join(map(str, self))})"
