"""The tail cache: the newest frames of all partitions, bounded in bytes, oldest out first."""

from __future__ import annotations

from collections import deque

from danube.log.extents import Extent, ExtentIndex


class TailCache:
    """Keeps frames referenced by their extents until newer ones need the room.

    Frames leave in the order they came, so within a partition the oldest leaves first and the
    cached extents are always its newest ones.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._held = 0
        self._queue: deque[tuple[Extent, ExtentIndex]] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes of frames in the cache."""
        return self._held

    def add(self, extent: Extent, index: ExtentIndex) -> None:
        """Count an extent whose ``frame`` is set, and evict older ones beyond the capacity."""
        self._queue.append((extent, index))
        self._held += extent.bytes
        while self._held > self._capacity and self._queue:
            oldest, its_index = self._queue.popleft()
            self._held -= oldest.bytes
            oldest.frame = None
            if oldest.position is None:
                its_index.drop_gone()
