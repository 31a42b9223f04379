"""How often messages were delivered again, kept as ranges."""

from __future__ import annotations

from collections.abc import Iterator

from danube.core.offsets import OffsetRange, RangeSet

MAX_COUNT = 255
"""Counts stop growing here, which bounds the levels."""


class RedeliveryCounts:
    """Level i holds the offsets that were put back at least i + 1 times."""

    def __init__(self) -> None:
        self._levels: list[RangeSet] = []

    def put_back(self, start: int, end: int) -> None:
        """Count one more redelivery of [start, end)."""
        rest = [OffsetRange(start, end)]
        for level in self._levels:
            inside = [part for item in rest for part in level.within(item.start, item.end)]
            for item in rest:
                level.add(item.start, item.end)
            rest = inside
            if not rest:
                return
        if rest and len(self._levels) < MAX_COUNT:
            self._levels.append(RangeSet(rest))

    def forget(self, start: int, end: int) -> None:
        """Acknowledged: no longer of interest."""
        for level in self._levels:
            level.remove(start, end)
        while self._levels and not self._levels[-1]:
            self._levels.pop()

    def split(self, span: OffsetRange) -> Iterator[tuple[int, OffsetRange]]:
        """``span`` in parts of one count each, ascending."""
        parts: list[tuple[int, OffsetRange]] = [(0, span)]
        for number, level in enumerate(self._levels, start=1):
            deeper: list[tuple[int, OffsetRange]] = []
            for count, item in parts:
                if count < number - 1:
                    deeper.append((count, item))
                    continue
                deeper += [(count, gap) for gap in level.gaps(item.start, item.end)]
                deeper += [(number, part) for part in level.within(item.start, item.end)]
            parts = deeper
        yield from sorted(parts, key=lambda item: item[1])
