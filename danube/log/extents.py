"""Where the newest messages of a partition lie: an ordered index of stored frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from danube.core.frames import Frame
from danube.journal.envelope import Position


@dataclass(slots=True)
class Extent:
    """One stored frame: its offsets, its place in the journal, its bytes while cached.

    ``position`` is None once the frame was rolled and the journal may forget it; ``frame`` is
    None once the tail cache has evicted it. An extent with neither is gone, for the table to serve.
    """

    base: int
    count: int
    append_time_us: int
    bytes: int
    position: Position | None
    frame: Frame | None = None

    @property
    def end(self) -> int:
        """Offset after the last message."""
        return self.base + self.count

    @property
    def is_gone(self) -> bool:
        """Neither in the journal nor in memory."""
        return self.position is None and self.frame is None


class ExtentIndex:
    """Extents of one partition by ascending base offset; gaps are lost ranges."""

    __slots__ = ("_bases", "_extents")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._extents: list[Extent] = []

    def add(self, extent: Extent) -> None:
        """Append at the end; offsets never go back."""
        if self._extents and extent.base < self._extents[-1].end:
            raise AssertionError(
                f"extent at {extent.base} overlaps one that ends at {self._extents[-1].end}"
            )
        self._bases.append(extent.base)
        self._extents.append(extent)

    def find(self, offset: int) -> Extent | None:
        """The extent that holds ``offset`` in journal or memory, or None.

        One that was rolled and is not cached is gone, even while an older one is still cached
        (what a sink staged is never in the cache): the table has it.
        """
        at = bisect_right(self._bases, offset) - 1
        if at < 0 or offset >= self._extents[at].end or self._extents[at].is_gone:
            return None
        return self._extents[at]

    def after(self, offset: int) -> Iterator[Extent]:
        """Extents that end above ``offset``, ascending."""
        at = max(bisect_right(self._bases, offset) - 1, 0)
        while at < len(self._extents):
            if self._extents[at].end > offset:
                yield self._extents[at]
            at += 1

    def unrolled(self, rolled: int) -> list[Extent]:
        """Extents at or above the rolled offset (rolls take whole extents)."""
        return [extent for extent in self.after(rolled) if extent.base >= rolled]

    def drop_gone(self) -> None:
        """Forget leading extents that are neither in the journal nor in memory."""
        keep = 0
        for extent in self._extents:
            if not extent.is_gone:
                break
            keep += 1
        if keep:
            del self._extents[:keep], self._bases[:keep]

    @property
    def first(self) -> Extent | None:
        """The oldest extent."""
        return self._extents[0] if self._extents else None

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)
