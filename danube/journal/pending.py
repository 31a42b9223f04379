"""Entries that wait for their flush: bounded in bytes, first come first written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from danube.core import telemetry
from danube.core.errors import ResourceExhausted
from danube.journal.envelope import Entry, EntryKind, Position

QUEUE_BYTES = telemetry.gauge("journal_queue_bytes", "Bytes that wait for their flush.")

Done = Callable[[Sequence[Position] | BaseException], None]


@dataclass(slots=True)
class Submission:
    """Entries that were handed over together; answered once, after the last of them is synced."""

    entries: Sequence[Entry]
    sizes: Sequence[int]
    done: Done
    taken: int = 0
    positions: list[Position] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """What one flush takes: its entries, and how many of them each submission gave."""

    entries: list[Entry] = field(default_factory=list)
    shares: list[tuple[Submission, int]] = field(default_factory=list)
    size: int = 0


class PendingQueue:
    """Submissions in order. The caller holds a lock around every call."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._waiting: deque[Submission] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, submission: Submission, *, essential: bool) -> None:
        """Put a submission behind the others.

        Essential entries may fill the bound a second time: they are what makes room.

        Raises:
            ResourceExhausted: the bound is reached.
        """
        size = sum(submission.sizes)
        bound = self._capacity * (2 if essential else 1)
        if self._waiting and self.bytes + size > bound:
            raise ResourceExhausted(
                f"{self.bytes} bytes wait for the journal's disk and {bound} may; send more "
                "slowly or raise journal.queue_bytes"
            )
        self._waiting.append(submission)
        self.bytes += size

    def gather(self, limit_bytes: int) -> Batch:
        """Take entries for one flush: up to ``limit_bytes``, but at least one.

        The END of a journal checkpoint is always alone, so that its BEGIN lies in an earlier
        flush, which no recovery writes again at another place.
        """
        batch = Batch()
        while self._waiting:
            head = self._waiting[0]
            count = self._take(head, batch, limit_bytes)
            if count:
                batch.shares.append((head, count))
                head.taken += count
            if head.taken < len(head.entries):
                break
            self._waiting.popleft()
        self.bytes -= batch.size
        QUEUE_BYTES.set(self.bytes)
        return batch

    @staticmethod
    def _take(head: Submission, batch: Batch, limit_bytes: int) -> int:
        count = 0
        for at in range(head.taken, len(head.entries)):
            entry, size = head.entries[at], head.sizes[at]
            if batch.entries and (
                batch.size + size > limit_bytes
                or entry.kind is EntryKind.CHECKPOINT_END
                or batch.entries[0].kind is EntryKind.CHECKPOINT_END
            ):
                break
            batch.entries.append(entry)
            batch.size += size
            count += 1
        return count

    def drain(self) -> list[Submission]:
        """Take everything."""
        everything = list(self._waiting)
        self._waiting.clear()
        self.bytes = 0
        QUEUE_BYTES.set(0)
        return everything
