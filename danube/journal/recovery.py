"""Recovery: replay what was acknowledged, cut the torn tail, write the recovery flush.

Only the last flush can be unsynced, because a flush starts after the sync of the one before. So a
bad place with a valid later flush behind it is damage and nothing is served; anything bad in the
last flush is a torn tail and is cut at its first bad place. What was read may have come from the
page cache, which is not durable, so every survivor of the last flush is written again, at its old
offsets, into a new segment, with the place of the cut in front: one flush, valid as a whole or not
at all. If it is incomplete at the next start, it is discarded and recovery runs again on the old
segment; if it is complete, it supersedes that flush. It carries the number of the flush that it
replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from danube.core import telemetry
from danube.journal.chain import Chain, Link
from danube.journal.checkpoints import Cut, cut_entry, parse_cut
from danube.journal.envelope import (
    ENVELOPE_BYTES,
    FILLER,
    FRAMES,
    KINDS,
    Entry,
    EntryKind,
    Position,
    StoredEntry,
    total_bytes,
    unpack_envelope,
)
from danube.journal.files import FileSystem
from danube.journal.flush import FlushWriter
from danube.journal.layout import (
    FIRST_FLUSH_AT,
    FLUSH_FILLER,
    FLUSH_HEADER_BYTES,
    FLUSH_RECOVERY,
    MIN_FLUSH_BYTES,
    RECOVERY_ROOM,
    RECOVERY_SEGMENT,
    FlushHeader,
    entries_end,
    flush_is_whole,
    use_id_of,
)
from danube.journal.scan import (
    BadPlace,
    Checked,
    Damage,
    JournalDamaged,
    Located,
    SegmentReader,
    check_entries,
    entries_of,
)
from danube.journal.segments import Segment

LOG = telemetry.get_logger(__name__)
_OWN: Final = frozenset(
    {EntryKind.CHECKPOINT_BEGIN, EntryKind.CHECKPOINT_END, EntryKind.RECOVERY_CUT}
)
ReadEntry = Callable[[Position], StoredEntry]


@dataclass(slots=True)
class RecoveredEntry:
    """One entry found by recovery; see :class:`danube.journal.envelope.Entry` for its fields.

    ``before_checkpoint`` marks frames that the journal checkpoint's state already covers;
    ``damaged`` an entry whose envelope is whole and whose body is not.
    """

    kind: EntryKind
    topic_id: bytes
    partition: int
    epoch: int
    base_offset: int
    append_time_us: int
    header: bytes
    extra: bytes
    position: Position
    before_checkpoint: bool
    damaged: bool
    _body: bytes | None
    _read: ReadEntry

    @property
    def body(self) -> bytes | memoryview:
        """The body; a frame's is read from the disk now.

        Raises:
            Corruption: it does not match its crc.
        """
        if self._body is not None:
            return self._body
        return self._read(self.position).body


@dataclass(slots=True)
class Tail:
    """The last flush: where it is cut, what survives, and what stays of the segment before."""

    cut: Cut
    survivors: list[Entry] = field(default_factory=list)


class Recovery:
    """One recovery run over a chain of segments."""

    def __init__(
        self,
        chain: Chain,
        files: FileSystem,
        read: ReadEntry,
        found: Callable[[Segment], None],
    ) -> None:
        self.tail: Tail | None = None
        self._chain = chain
        self._files = files
        self._read = read
        self._found = found
        begin = chain.checkpoint.begin if chain.checkpoint is not None else None
        self._begin = (begin.segment, begin.offset) if begin is not None else (0, 0)
        end = chain.end
        self._end = (end.segment, end.offset) if end is not None else (0, 0)

    def replay(self) -> Iterator[RecoveredEntry]:
        """Yield everything but the last flush's entries; then ``tail`` is known.

        Raises:
            JournalDamaged: see :func:`danube.journal.chain.find_chain`; also a bad flush or
                envelope in front of later flushes.
        """
        for link, end, end_number in self._chain.kept:
            yield from self._bounded(link, end, end_number)
        links = self._chain.links
        for link, after in pairwise(links):
            if after.header.is_recovery and link.cut is None:
                raise AssertionError(f"{link.path} was cut and nobody knows where")
            end = link.cut.place if link.cut is not None else -1
            yield from self._bounded(link, end, after.header.first_flush)
        if links:
            yield from self._newest(links[-1])

    # -- segments whose end is known -------------------------------------------------------

    def _bounded(self, link: Link, end: int, end_number: int) -> Iterator[RecoveredEntry]:
        """A segment that a later one, a cut or a journal checkpoint vouches for to its end."""
        reader = SegmentReader(self._files, link.path, link.use_id)
        try:
            segment = self._adopt(link)
            at, number = FIRST_FLUSH_AT, link.header.first_flush
            while number < end_number and (end < 0 or at < end):
                flush = reader.flush_header(at)
                if flush is None or flush.number != number:
                    raise _short(link, at, number, end, end_number)
                yield from self._replay_flush(reader, link, flush, segment)
                at, number = flush.next_at, flush.next_number
            if number != end_number or (end >= 0 and at != end):
                raise _short(link, at, number, end, end_number)
            segment.end, segment.end_number = at, number
        finally:
            reader.close()

    def _adopt(self, link: Link) -> Segment:
        first = link.header.first_flush
        segment = Segment(link.header, link.path, end=FIRST_FLUSH_AT, end_number=first)
        self._found(segment)
        return segment

    # -- the newest segment ----------------------------------------------------------------

    def _newest(self, link: Link) -> Iterator[RecoveredEntry]:
        reader = SegmentReader(self._files, link.path, link.use_id)
        try:
            segment = self._adopt(link)
            at, number = FIRST_FLUSH_AT, link.header.first_flush
            self.tail = Tail(Cut(link.use_id, at, number))
            pending: FlushHeader | None = None
            while (flush := reader.flush_header(at)) is not None and flush.number == number:
                if pending is not None:
                    yield from self._replay_flush(reader, link, pending, segment)
                    segment.end, segment.end_number = pending.next_at, pending.next_number
                pending = flush
                at, number = flush.next_at, flush.next_number
            proved = self._chain.proved
            if number < proved or reader.find_flush(at, above=number - 1) is not None:
                raise _short(link, at, number, 0, proved)
            if pending is not None:
                if pending.number < proved:
                    # Known to have been synced: not a tail, and not cut if it is damaged.
                    yield from self._replay_flush(reader, link, pending, segment)
                    segment.end, segment.end_number = at, number
                    self.tail = Tail(Cut(link.use_id, at, number))
                else:
                    self.tail = self._tail_of(reader.flush(pending), pending)
        finally:
            reader.close()

    @staticmethod
    def _tail_of(data: memoryview, flush: FlushHeader) -> Tail:
        """What survives of the last flush: everything up to its first bad place."""
        # A copy, because survivors are written after the reader has gone.
        data = memoryview(bytes(data))
        if flush_is_whole(data, flush):
            located = list(entries_of(data, flush))
        else:
            checked = check_entries(data, flush)
            bad = checked.first_bad
            located = [item for item in checked.good if bad is None or item.at < bad]
        tail = Tail(Cut(flush.use_id, flush.at, flush.number))
        for item in located:
            if item.envelope.kind == EntryKind.RECOVERY_CUT:
                # A recovery flush with nothing behind it is written again from its survivors.
                tail.cut = parse_cut(_body(data, item))
            elif not item.envelope.flags & FILLER:
                tail.survivors.append(_survivor(data, item))
        return tail

    # -- entries ---------------------------------------------------------------------------

    def _replay_flush(
        self, reader: SegmentReader, link: Link, flush: FlushHeader, segment: Segment
    ) -> list[RecoveredEntry]:
        if flush.flags & FLUSH_FILLER:
            return []
        data = reader.flush(flush)
        if flush_is_whole(data, flush):
            return self._take_whole(data, flush, segment)
        if flush.flags & FLUSH_RECOVERY:
            raise self._damaged(Damage.FLUSH, link, flush.at, flush.number)
        checked = check_entries(data, flush)
        self._refuse_bad_records(link, flush, checked)
        LOG.warning(
            "flush does not match its crc",
            path=str(link.path),
            flush=flush.number,
            damaged_bodies=len(checked.damaged),
        )
        found = self._take(data, flush, iter(checked.good), segment)
        found += self._take(data, flush, iter(checked.damaged), segment, damaged=True)
        return sorted(found, key=lambda entry: entry.position)

    def _refuse_bad_records(self, link: Link, flush: FlushHeader, checked: Checked) -> None:
        if checked.bad_at is not None:
            at = flush.at + checked.bad_at
            raise self._damaged(Damage.ENVELOPE, link, at, flush.number, flush.at)
        for at, envelope in checked.damaged:
            if envelope.kind in _OWN:
                place = flush.at + at
                raise self._damaged(Damage.RECORD, link, place, flush.number, flush.at)

    def _take_whole(
        self, data: memoryview, flush: FlushHeader, segment: Segment
    ) -> list[RecoveredEntry]:
        """Like ``_take`` for a flush that matches its crc: recovery spends its time here."""
        found: list[RecoveredEntry] = []
        use_id, read, kinds, begin = flush.use_id, self._read, KINDS, self._begin
        at, end, start = FLUSH_HEADER_BYTES, entries_end(flush), flush.at
        whole_flush_before = (use_id, start + flush.bytes) <= begin
        frames = 0
        while at < end:
            fields = unpack_envelope(data, at)
            _, _, number, flags, _, _, _, epoch, base, append_time, topic, partition = fields[:12]
            header_bytes, extra_bytes, body_bytes, _ = fields[12:]
            header_at = at + ENVELOPE_BYTES
            extra_at = header_at + header_bytes
            body_at = (extra_at + extra_bytes + 7) & ~7
            next_at = body_at + body_bytes
            place = start + at
            kind = kinds[number]
            before = whole_flush_before or (use_id, place) < begin
            body: bytes | None = None
            if number <= EntryKind.STAGED:
                frames += 1
            elif self._is_passed_over(kind, flags, before, use_id, place):
                at = (next_at + 7) & ~7
                continue
            else:
                body = bytes(data[body_at:next_at])
            found.append(
                RecoveredEntry(
                    kind,
                    topic,
                    partition,
                    epoch,
                    base,
                    append_time,
                    bytes(data[header_at:extra_at]),
                    bytes(data[extra_at : extra_at + extra_bytes]) if extra_bytes else b"",
                    Position(use_id, place, next_at - at),
                    before,
                    False,
                    body,
                    read,
                )
            )
            at = (next_at + 7) & ~7
        segment.needed += frames
        return found

    def _take(
        self,
        data: memoryview,
        flush: FlushHeader,
        located: Iterator[Located],
        segment: Segment,
        damaged: bool = False,
    ) -> list[RecoveredEntry]:
        """Entries of one flush that the caller should see, counted where they are frames."""
        found: list[RecoveredEntry] = []
        use_id, read = flush.use_id, self._read
        for at, envelope in located:
            kind = KINDS[envelope.kind]
            place = flush.at + at
            is_frame = kind in FRAMES
            before = (use_id, place) < self._begin
            if not is_frame and self._is_passed_over(kind, envelope.flags, before, use_id, place):
                continue
            position = Position(use_id, place, envelope.length)
            header_at = at + ENVELOPE_BYTES
            extra_at = header_at + envelope.header_bytes
            body: bytes | None = None
            if is_frame:
                segment.needed += 1
            elif not damaged:
                body = bytes(data[at + envelope.body_at : at + envelope.length])
            found.append(
                RecoveredEntry(
                    kind,
                    envelope.topic_id,
                    envelope.partition,
                    envelope.epoch,
                    envelope.base_offset,
                    envelope.append_time_us,
                    bytes(data[header_at:extra_at]),
                    bytes(data[extra_at : extra_at + envelope.extra_bytes]),
                    position,
                    before,
                    damaged,
                    body,
                    read,
                )
            )
        return found

    def _is_passed_over(
        self, kind: EntryKind, flags: int, before: bool, use_id: int, place: int
    ) -> bool:
        """Our own records, fillers, state before the checkpoint, and unfinished checkpoints."""
        if before or kind in _OWN or flags & FILLER:
            return True
        return kind is EntryKind.CHECKPOINT_STATE and (use_id, place) > self._end

    # -- the recovery flush ----------------------------------------------------------------

    def finish(self, writer: FlushWriter, extra: list[Entry]) -> Iterator[RecoveredEntry]:
        """Write the recovery flush (if there was a journal), then yield its survivors.

        Args:
            writer: of the new incarnation, before its first flush.
            extra: entries to add: what a repair has to say.
        """
        spares = self._chain.others
        if self.tail is None:
            writer.segments.add_spares(spares)
            return
        cut, survivors = self.tail.cut, self.tail.survivors + extra
        entries = [cut_entry(cut, len(survivors)), *survivors]
        writer.next_number = cut.number
        writer.checkpoint = self._stable_end(cut)
        safe = self._safe_spares(cut, writer.checkpoint)
        writer.segments.add_spares(safe)
        size = FIRST_FLUSH_AT + MIN_FLUSH_BYTES + total_bytes(entries) + RECOVERY_ROOM
        writer.segments.open_next(
            cut.number,
            previous=cut.segment,
            checkpoint=writer.checkpoint,
            flags=RECOVERY_SEGMENT,
            min_bytes=size,
        )
        positions = writer.write(entries, FLUSH_RECOVERY)
        writer.segments.add_spares(path for path in spares if path not in safe)
        writer.segments.supersede(cut.segment)
        for entry, position in zip(entries, positions, strict=True):
            if entry.kind is EntryKind.CHECKPOINT_END:
                writer.checkpoint = position
            if entry.kind not in _OWN and not self._is_unfinished(entry.kind):
                yield self._survivor(entry, position)
        LOG.info("recovery flush written", flush=cut.number, cut_segment=cut.segment)

    def _safe_spares(self, cut: Cut, stable_end: Position | None) -> list[Path]:
        """Files that may be used again before the recovery flush is synced.

        What the last flush says may have come from the page cache: an END in it was not known to
        be synced, so what it released is not free yet, and if it is a recovery flush itself, the
        segments that it superseded may be the only ones that are durable.
        """
        if stable_end != self._chain.end:
            return []
        ids = ((path, use_id_of(path.name)) for path in self._chain.others)
        return [path for path, use_id in ids if use_id is not None and use_id < cut.segment]

    def _is_unfinished(self, kind: EntryKind) -> bool:
        # END lies in a flush of its own, so state beside survivors belongs to no complete one.
        return kind is EntryKind.CHECKPOINT_STATE

    def _stable_end(self, cut: Cut) -> Position | None:
        """END of the last checkpoint, unless the cut takes it along: then the one before."""
        newest = self._chain.newest
        assert newest is not None
        end = self._chain.end
        if end is None or (end.segment, end.offset) < (cut.segment, cut.place):
            return end
        return newest.header.checkpoint

    def _survivor(self, entry: Entry, position: Position) -> RecoveredEntry:
        body = None if entry.kind in FRAMES else bytes(entry.body)
        return RecoveredEntry(
            entry.kind,
            entry.topic_id,
            entry.partition,
            entry.epoch,
            entry.base_offset,
            entry.append_time_us,
            entry.header,
            entry.extra,
            position,
            False,
            False,
            body,
            self._read,
        )

    def _damaged(
        self, damage: Damage, link: Link, at: int, number: int, flush_at: int = 0
    ) -> JournalDamaged:
        place = BadPlace(damage, link.use_id, at, number, flush_at or at)
        return JournalDamaged(place, link.path)


def _short(link: Link, at: int, number: int, end_at: int, end_number: int) -> JournalDamaged:
    """A segment ends, or is interrupted, before the flush that has to be there."""
    place = BadPlace(Damage.FLUSH, link.use_id, at, number, at, max(end_at, 0), max(end_number, 0))
    return JournalDamaged(place, link.path)


def _body(data: memoryview, item: Located) -> memoryview:
    return data[item.at + item.envelope.body_at : item.at + item.envelope.length]


def _survivor(data: memoryview, item: Located) -> Entry:
    at, envelope = item
    header_at = at + ENVELOPE_BYTES
    extra_at = header_at + envelope.header_bytes
    return Entry(
        kind=KINDS[envelope.kind],
        body=_body(data, item),
        header=bytes(data[header_at:extra_at]),
        extra=bytes(data[extra_at : extra_at + envelope.extra_bytes]),
        topic_id=envelope.topic_id,
        partition=envelope.partition,
        epoch=envelope.epoch,
        base_offset=envelope.base_offset,
        append_time_us=envelope.append_time_us,
        essential=True,
    )
