"""Writing one flush: entries in, positions out, durable in between. Synchronous, one thread.

Small parts are joined into one buffer and large bodies stay where they are, so a flush of many
small entries is one buffer and a flush of large frames is not copied. The flush is filled up with
zeros to a whole block: a partly written block would have to be read first.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from danube.core import telemetry
from danube.core.clock import Clock
from danube.core.errors import InvalidRequest, StorageFailed
from danube.core.limits import KIB
from danube.core.stores import Buffer
from danube.journal.envelope import (
    FRAMES,
    Entry,
    EntryKind,
    Position,
    append_entry,
    entry_bytes,
    padded,
)
from danube.journal.layout import (
    END_MARK_BYTES,
    FIRST_FLUSH_AT,
    FLUSH_EMPTY,
    FLUSH_END,
    FLUSH_HEADER_BYTES,
    MIN_FLUSH_BYTES,
    RECOVERY_ROOM,
    FlushHeader,
    block_padded,
    pack_end_mark,
    pack_flush_header,
)
from danube.journal.segments import Segments

FLUSHES = telemetry.counter("journal_flushes", "Flushes written.")
ENTRIES = telemetry.counter("journal_entries", "Entries written.")
BYTES = telemetry.counter("journal_bytes", "Bytes written, with envelopes and padding.")
SYNC_SECONDS = telemetry.histogram("journal_sync_seconds", "Seconds per fdatasync of a flush.")

JOIN_BELOW_BYTES: Final = 32 * KIB
"""Parts smaller than this are copied together: cheaper than an iovec of their own."""


def largest_flush(segment_bytes: int) -> int:
    """Bytes of entries that fit one flush of a segment of that size."""
    return segment_bytes - FIRST_FLUSH_AT - RECOVERY_ROOM - MIN_FLUSH_BYTES


def build_flush(
    entries: Sequence[Entry],
    *,
    use_id: int,
    number: int,
    at: int,
    flags: int,
    size: int,
    time_us: int,
) -> tuple[list[Buffer], list[Position]]:
    """The buffers of one flush and where its entries will lie.

    Args:
        entries: in order.
        use_id: of the segment.
        number: of the flush.
        at: byte of the segment where the flush starts.
        flags: of its header; those that follow from the entries are added.
        size: bytes of all entries.
        time_us: now, microseconds since 1970 UTC.
    """
    if not entries:
        flags |= FLUSH_EMPTY
    elif any(entry.kind is EntryKind.CHECKPOINT_END for entry in entries):
        flags |= FLUSH_END
    total = MIN_FLUSH_BYTES + size
    header = FlushHeader(at, flags, len(entries), use_id, number, total, time_us)
    parts: list[Buffer] = [pack_flush_header(header)]
    positions: list[Position] = []
    here = at + FLUSH_HEADER_BYTES
    for entry in entries:
        length = append_entry(entry, parts, use_id, number)
        positions.append(Position(use_id, here, length))
        here += padded(length)
    joined = _join(parts)
    joined.append(pack_end_mark(joined, use_id, number).ljust(_tail_bytes(at, total), b"\0"))
    return joined, positions


def _tail_bytes(at: int, total: int) -> int:
    """End mark and the zeros that fill its block."""
    return END_MARK_BYTES + block_padded(at + total) - (at + total)


def _join(parts: Sequence[Buffer]) -> list[Buffer]:
    """Join runs of small parts."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW_BYTES:
            run.append(part)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(part)
    if run:
        joined.append(b"".join(run))
    return joined


class FlushWriter:
    """Writes flushes one after another; the next one starts only after the sync of the last."""

    def __init__(self, segments: Segments, clock: Clock, next_number: int) -> None:
        self.segments = segments
        self.next_number = next_number
        self.checkpoint: Position | None = None
        """END of the last synced journal checkpoint: every new segment's header names it."""
        self._clock = clock
        self._failure: StorageFailed | None = None

    def write(self, entries: Sequence[Entry], flags: int = 0) -> list[Position]:
        """Write and sync one flush.

        Raises:
            InvalidRequest: the entries do not fit a segment.
            DiskFull: no space for the next segment; nothing was written, try again later.
            StorageFailed: a write was short or a sync failed. What is on the disk is not known:
                every later call raises it again, and only recovery may go on.
        """
        if self._failure is not None:
            raise self._failure
        size = sum(map(entry_bytes, entries))
        try:
            return self._write(entries, size, flags)
        except OSError as error:
            self._failure = StorageFailed(
                f"writing flush {self.next_number} to {self.segments.directory} failed "
                f"({error.strerror}); nothing after it is acknowledged. Check the disk and start "
                "the broker again: it recovers what was written"
            )
            raise self._failure from error

    def _write(self, entries: Sequence[Entry], size: int, flags: int) -> list[Position]:
        self._make_room(size)
        segment, file = self.segments.current, self.segments.writing
        assert segment is not None
        assert file is not None
        number, at = self.next_number, segment.end
        buffers, positions = build_flush(
            entries,
            use_id=segment.use_id,
            number=number,
            at=at,
            flags=flags,
            size=size,
            time_us=self._clock.now_us(),
        )
        length = sum(map(len, buffers))
        if file.pwritev(buffers, at) != length:
            raise OSError(errno.EIO, "short write", str(segment.path))
        with SYNC_SECONDS.time():
            file.fdatasync()
        segment.end = at + length
        segment.end_number = self.next_number = number + 1
        frames = sum(1 for entry in entries if entry.kind in FRAMES)
        if frames:
            self.segments.need(segment, frames)
        FLUSHES.inc()
        ENTRIES.inc(len(entries))
        BYTES.inc(length)
        return positions

    def _make_room(self, size: int) -> None:
        """Open the next segment if the flush does not fit the current one."""
        current = self.segments.current
        if current is not None and size + MIN_FLUSH_BYTES + RECOVERY_ROOM <= current.room:
            return
        if size > largest_flush(self.segments.segment_bytes):
            raise InvalidRequest(
                f"{size} bytes do not fit a segment of {self.segments.segment_bytes} bytes; raise "
                "journal.segment_bytes"
            )
        self.segments.open_next(
            self.next_number,
            previous=current.use_id if current is not None else 0,
            checkpoint=self.checkpoint,
        )
