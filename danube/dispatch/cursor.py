"""A subscription's cursor on one partition: what has been acknowledged."""

from __future__ import annotations

from typing import Any

from danube.core.offsets import OffsetRange, RangeSet


class Cursor:
    """(generation, offset, acknowledged ranges above it), ordered by generation first.

    Everything below ``offset`` is acknowledged. Within a generation a cursor only grows; a reset
    raises the generation, so a cursor that moved back on purpose still supersedes the old one.
    """

    __slots__ = ("acked", "generation", "offset")

    def __init__(self, offset: int, generation: int = 1, acked: RangeSet | None = None) -> None:
        self.generation = generation
        self.offset = offset
        self.acked = acked if acked is not None else RangeSet()

    def ack(self, start: int, end: int) -> bool:
        """Acknowledge [start, end); whether that changed anything."""
        start = max(start, self.offset)
        if start >= end or self.acked.covers(start, end):
            return False
        self.acked.add(start, end)
        first = next(iter(self.acked))
        if first.start <= self.offset:
            self.offset = first.end
            self.acked.remove(0, first.end)
        return True

    def advance(self, offset: int) -> bool:
        """Acknowledge everything below ``offset``; whether that changed anything."""
        return self.ack(self.offset, offset)

    def reset(self, offset: int) -> None:
        """Stand at ``offset``, forgetting acknowledgements, as a new generation."""
        self.generation += 1
        self.offset = offset
        self.acked = RangeSet()

    def is_acked(self, offset: int) -> bool:
        """Whether a message has been acknowledged."""
        return offset < self.offset or offset in self.acked

    def unacked(self, start: int, end: int) -> list[OffsetRange]:
        """The parts of [start, end) that are not acknowledged."""
        return list(self.acked.gaps(max(start, self.offset), end))

    def supersedes(self, other: Cursor) -> bool:
        """Whether this is the later state of the two."""
        if self.generation != other.generation:
            return self.generation > other.generation
        return self._total() >= other._total()

    def _total(self) -> int:
        return self.offset + self.acked.total()

    def to_state(self) -> list[Any]:
        """JSON form: [generation, offset, [[start, end], …]]."""
        return [self.generation, self.offset, [[r.start, r.end] for r in self.acked]]

    @classmethod
    def from_state(cls, state: list[Any]) -> Cursor:
        """The inverse of ``to_state``."""
        generation, offset, ranges = state
        return cls(offset, generation, RangeSet(OffsetRange(a, b) for a, b in ranges))

    def __repr__(self) -> str:
        return f"Cursor(generation={self.generation}, offset={self.offset}, acked={self.acked!r})"
