"""How one damaged place of a journal is made readable again, without what is lost there.

Damaged bytes are covered by fillers that recovery steps over: a filler envelope inside a flush, a
filler flush where flush headers are gone, a new header block where that is damaged. Everything
that still matches its own checksum stays where it is and is recovered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from danube.core.clock import Clock
from danube.core.errors import Corruption
from danube.journal.checkpoints import Checkpoint, Kept, end_entry, parse_cut
from danube.journal.envelope import (
    ENVELOPE_BYTES,
    MAGIC,
    EntryKind,
    Position,
    entry_bytes,
    envelope_at,
    filler_envelope,
    padded,
)
from danube.journal.files import FileSystem
from danube.journal.flush import build_flush
from danube.journal.layout import (
    BLOCK_BYTES,
    END_MARK_BYTES,
    FIRST_FLUSH_AT,
    FLUSH_END,
    FLUSH_FILLER,
    FLUSH_HEADER_BYTES,
    FLUSH_RECOVERY,
    MIN_FLUSH_BYTES,
    RECOVERY_SEGMENT,
    FlushHeader,
    Identity,
    SegmentHeader,
    block_padded,
    entries_end,
    find_end_mark,
    flush_is_whole,
    pack_end_mark,
    pack_flush_header,
    segment_name,
    use_id_of,
)
from danube.journal.scan import (
    BadPlace,
    Damage,
    SegmentReader,
    check_entries,
    entries_of,
    flush_around,
)

LOST_END: Final = "the END of a journal checkpoint"


@dataclass(frozen=True, slots=True)
class Mended:
    """One place that was mended.

    Attributes:
        segment: use id.
        start: first byte that cannot be recovered.
        end: byte after the last one.
        what: for people.
        loses_entries: whether entries may have been in there.
    """

    segment: int
    start: int
    end: int
    what: str
    loses_entries: bool


class Mender:
    """Mends places of one journal, through a file system that only remembers the changes."""

    def __init__(self, directory: Path, files: FileSystem, clock: Clock, broker_id: str) -> None:
        self._directory = directory
        self._files = files
        self._clock = clock
        self._broker_id = broker_id
        self._touched: set[tuple[int, int]] = set()

    def mend(self, place: BadPlace) -> Mended:
        """Make the journal readable beyond ``place``.

        Raises:
            Corruption: that cannot be done; the message says what to do instead.
        """
        mend: Callable[[BadPlace], Mended] = {
            Damage.SEGMENT: self._segment,
            Damage.FLUSH: self._flush,
            Damage.ENVELOPE: self._envelope,
            Damage.RECORD: self._record,
        }[place.damage]
        return mend(place)

    def _path(self, use_id: int) -> Path:
        return self._directory / segment_name(use_id)

    def _write(self, use_id: int, at: int, data: bytes) -> None:
        file = self._files.open(self._path(use_id), write=True)
        try:
            file.pwritev([data], at)
        finally:
            file.close()

    def _reader(self, use_id: int) -> SegmentReader:
        return SegmentReader(self._files, self._path(use_id), use_id)

    # -- inside a flush --------------------------------------------------------------------

    def _envelope(self, place: BadPlace) -> Mended:
        """Cover everything from a bad envelope to the next good one of the same flush."""
        reader = self._reader(place.segment)
        try:
            flush = reader.flush_header(place.flush_at)
            assert flush is not None
            data = bytes(reader.flush(flush))
        finally:
            reader.close()
        start = place.at - flush.at
        end = _next_envelope(data, start, flush)
        self.cover(flush, data, start, end)
        return Mended(place.segment, place.at, flush.at + end, "a damaged envelope", True)

    def cover(self, flush: FlushHeader, data: bytes, start: int, end: int) -> None:
        """Put a filler envelope over bytes ``start`` … ``end`` of a flush."""
        self._touched.add((flush.use_id, flush.at))
        body = data[start + ENVELOPE_BYTES : end]
        filler = filler_envelope(flush.use_id, flush.number, body)
        self._write(flush.use_id, flush.at + start, filler)

    def _record(self, place: BadPlace) -> Mended:
        """Cover one of the journal's own records whose body is bad."""
        reader = self._reader(place.segment)
        try:
            flush = flush_around(reader, place.at)
            if flush is None:
                raise _hopeless(reader.path, place.at, "the END of a journal checkpoint")
            data = bytes(reader.flush(flush))
        finally:
            reader.close()
        if flush.flags & FLUSH_END or not place.number:
            return self._end(flush)
        start = place.at - flush.at
        envelope = envelope_at(memoryview(data), start, flush.use_id, flush.number)
        end = start + padded(envelope.length) if envelope else _next_envelope(data, start, flush)
        self.cover(flush, data, start, end)
        what = "a damaged record of a journal checkpoint"
        return Mended(place.segment, place.at, flush.at + end, what, False)

    def _end(self, flush: FlushHeader) -> Mended:
        """Write the END of a journal checkpoint again, from what it must have said.

        It is alone in its flush. Which older segments it listed is not known: all that are there
        and whole are listed, for frames that were rolled are recognised as such.
        """
        names = self._files.listdir(self._directory)
        ids = sorted(x for name in names if (x := use_id_of(name)) is not None)
        begin: Position | None = None
        for use_id in (x for x in ids if x <= flush.use_id):
            begin = self._last_begin(use_id, (flush.use_id, flush.at)) or begin
        if begin is None or flush.next_number != flush.number + 1:
            raise _hopeless(self._path(flush.use_id), flush.at, "the END of a journal checkpoint")
        for use_id in (x for x in ids if x < begin.segment and self._headless(x)):
            # Mend what it may have listed first; this place comes up again.
            return self._segment(BadPlace(Damage.SEGMENT, use_id, 0, 0))
        for use_id in (x for x in ids if x < begin.segment):
            broken = self._interrupted(use_id)
            if broken is not None:
                return self._flush(broken)
        older = [found for x in ids if x < begin.segment and (found := self._walk(x))]
        kept = tuple(Kept(x.use_id, x.end, x.end_number) for x in older)
        entry = end_entry(Checkpoint(begin, kept))
        if entry_bytes(entry) + MIN_FLUSH_BYTES > flush.next_at - flush.at:
            raise _hopeless(self._path(flush.use_id), flush.at, "the END of a journal checkpoint")
        buffers, _ = build_flush(
            [entry],
            use_id=flush.use_id,
            number=flush.number,
            at=flush.at,
            flags=0,
            size=entry_bytes(entry),
            time_us=flush.time_us,
        )
        self._write(flush.use_id, flush.at, b"".join(buffers))
        # Where an older segment ended is not known any more either.
        return Mended(flush.use_id, flush.at, flush.at + flush.bytes, LOST_END, True)

    def _interrupted(self, use_id: int) -> BadPlace | None:
        """Where a segment's flushes break off although there is one behind that place."""
        found = self._walk(use_id)
        if found is None:
            return None
        at, number = found.end, found.end_number
        reader = self._reader(use_id)
        try:
            if reader.find_flush(at, above=number) is None:
                rest = reader.view(at, reader.size - at)
                if find_end_mark(rest, FLUSH_HEADER_BYTES, use_id, number) is None:
                    return None
        finally:
            reader.close()
        return BadPlace(Damage.FLUSH, use_id, at, number, at, 0, number + 1)

    def _last_begin(self, use_id: int, before: tuple[int, int]) -> Position | None:
        reader = self._reader(use_id)
        found = None
        try:
            at = FIRST_FLUSH_AT
            while (use_id, at) < before and (flush := reader.flush_header(at)) is not None:
                for start, envelope in check_entries(reader.flush(flush), flush).good:
                    if envelope.kind == EntryKind.CHECKPOINT_BEGIN:
                        found = Position(use_id, at + start, envelope.length)
                at = flush.next_at
        finally:
            reader.close()
        return found

    def reseal(self) -> None:
        """Give mended flushes end marks that match; only when every entry in them is good."""
        for use_id, at in sorted(self._touched):
            reader = self._reader(use_id)
            try:
                flush = reader.flush_header(at)
                if flush is None or flush.flags & FLUSH_FILLER:
                    continue
                data = memoryview(bytes(reader.flush(flush)))
            finally:
                reader.close()
            if check_entries(data, flush).first_bad is None:
                mark = pack_end_mark((data[: entries_end(flush)],), use_id, flush.number)
                self._write(use_id, at + entries_end(flush), mark)

    # -- flush headers ---------------------------------------------------------------------

    def _flush(self, place: BadPlace) -> Mended:
        reader = self._reader(place.segment)
        try:
            header = reader.header()
            if header is not None and header.is_recovery and place.at == FIRST_FLUSH_AT:
                self._forget_recovery(header)
                flush = reader.flush_header(place.at)
                if flush is not None and flush.number == place.number:
                    # Its entries are judged one by one when the journal is read again.
                    self._touched.add((place.segment, place.at))
                    self._write(place.segment, place.at, _plain(flush))
                    return Mended(
                        place.segment, place.at, place.at, "a damaged recovery flush", False
                    )
            return self._rebuild(reader, place)
        finally:
            reader.close()

    def _forget_recovery(self, header: SegmentHeader) -> None:
        """Without its recovery flush, the segment follows the cut flush like any other."""
        plain = SegmentHeader(
            header.use_id,
            header.previous,
            header.first_flush,
            header.segment_bytes,
            header.checkpoint,
            header.created_us,
            header.identity,
            header.flags & ~RECOVERY_SEGMENT,
        )
        self._write(header.use_id, 0, plain.to_block())

    def _rebuild(self, reader: SegmentReader, place: BadPlace) -> Mended:
        """Write a flush header again if the flush's end mark tells its length; else a filler."""
        found = reader.find_flush(place.at + BLOCK_BYTES, above=place.number - 1)
        if found is not None:
            limit, next_number = found.at, found.number
        else:
            limit, next_number = place.end_at or reader.size, place.end_number
        if next_number <= place.number:
            raise _hopeless(reader.path, place.at, "everything from there on")
        data = bytes(reader.view(place.at, limit - place.at))
        mark = find_end_mark(memoryview(data), FLUSH_HEADER_BYTES, place.segment, place.number)
        if mark is not None:
            flush = self._header(place, 0, 0, mark + END_MARK_BYTES)
            good = check_entries(memoryview(data)[: flush.bytes], flush).good
            if any(item.envelope.kind == EntryKind.CHECKPOINT_END for item in good):
                flush = flush._replace(flags=FLUSH_END)
            flush = flush._replace(entries=len(good))
            self._touched.add((place.segment, place.at))
            self._write(place.segment, place.at, pack_flush_header(flush))
            return Mended(place.segment, place.at, place.at, "a damaged flush header", False)
        size = max(limit - place.at - BLOCK_BYTES + 1, MIN_FLUSH_BYTES)
        if block_padded(place.at + size) != block_padded(limit):
            size = limit - place.at
        flush = self._header(place, FLUSH_FILLER, next_number - place.number, size)
        self._write(place.segment, place.at, pack_flush_header(flush))
        what = f"flushes {place.number} to {next_number - 1}"
        return Mended(place.segment, place.at, limit, what, True)

    def _header(self, place: BadPlace, flags: int, entries: int, size: int) -> FlushHeader:
        now = self._clock.now_us()
        return FlushHeader(place.at, flags, entries, place.segment, place.number, size, now)

    # -- header blocks ---------------------------------------------------------------------

    def _segment(self, place: BadPlace) -> Mended:
        names = self._files.listdir(self._directory)
        ids = sorted(x for name in names if (x := use_id_of(name)) is not None)
        use_id = next((x for x in ids if x < place.segment and self._headless(x)), place.segment)
        if use_id not in ids:
            return self._missing(place, ids)
        reader = self._reader(use_id)
        try:
            first = reader.find_flush(FIRST_FLUSH_AT, above=0)
            if first is None:
                raise _hopeless(reader.path, 0, "the whole segment")
            before = self._before(use_id, first.number, ids)
            flags, previous = 0, before.use_id if before is not None else 0
            first_flush = before.end_number if before is not None else first.number
            if first.at == FIRST_FLUSH_AT:
                first_flush = first.number
            data = memoryview(bytes(reader.flush(first)))
            if first.flags & FLUSH_RECOVERY and flush_is_whole(data, first):
                flags = RECOVERY_SEGMENT
                at, envelope = next(entries_of(data, first))
                previous = parse_cut(data[at + envelope.body_at : at + envelope.length]).segment
            size = reader.size
        finally:
            reader.close()
        checkpoint = before.checkpoint if before is not None else None
        identity = before.identity if before is not None else self._identity(ids)
        header = SegmentHeader(
            use_id,
            previous,
            first_flush,
            size,
            checkpoint,
            self._clock.now_us(),
            identity,
            flags,
        )
        self._write(use_id, 0, header.to_block())
        return Mended(use_id, 0, 0, "a damaged header block", False)

    def _headless(self, use_id: int) -> bool:
        """Whether a segment has flushes and no header block: the oldest such one comes first."""
        reader = self._reader(use_id)
        try:
            return reader.header() is None and reader.find_flush(FIRST_FLUSH_AT, 0) is not None
        finally:
            reader.close()

    def _missing(self, place: BadPlace, ids: list[int]) -> Mended:
        """A file that is gone: an empty one in its place, so that the chain goes on."""
        if not place.end_number:
            raise _hopeless(self._path(place.segment), 0, "the segment a checkpoint begins in")
        before = self._before(place.segment, place.end_number, ids)
        first = before.end_number if before is not None else place.end_number - 1
        limit = place.end_at or 2 * BLOCK_BYTES
        header = SegmentHeader(
            place.segment,
            before.use_id if before is not None else 0,
            first,
            limit,
            before.checkpoint if before is not None else None,
            self._clock.now_us(),
            before.identity if before is not None else self._identity(ids),
        )
        filler = FlushHeader(
            FIRST_FLUSH_AT,
            FLUSH_FILLER,
            place.end_number - first,
            place.segment,
            first,
            limit - FIRST_FLUSH_AT,
            self._clock.now_us(),
        )
        file = self._files.open(self._path(place.segment), create=True)
        try:
            file.preallocate(limit)
            file.pwritev([header.to_block() + pack_flush_header(filler)], 0)
        finally:
            file.close()
        what = f"the missing segment, flushes {first} to {place.end_number - 1}"
        return Mended(place.segment, FIRST_FLUSH_AT, limit, what, True)

    def _before(self, use_id: int, number: int, ids: list[int]) -> _Predecessor | None:
        """The segment in front of ``use_id``: the last one that ends at or below ``number``."""
        best: _Predecessor | None = None
        for candidate in (x for x in ids if x < use_id):
            found = self._walk(candidate)
            if found is None or found.end_number > number:
                continue
            if best is None or found.end_number >= best.end_number:
                best = found
        return best

    def _walk(self, use_id: int) -> _Predecessor | None:
        reader = self._reader(use_id)
        try:
            header = reader.header()
            if header is None:
                return None
            at, number, end = FIRST_FLUSH_AT, header.first_flush, header.checkpoint
            while (flush := reader.flush_header(at)) is not None and flush.number == number:
                if flush.flags & FLUSH_END:
                    good = check_entries(reader.flush(flush), flush).good
                    for start, envelope in good:
                        end = Position(use_id, at + start, envelope.length)
                at, number = flush.next_at, flush.next_number
            return _Predecessor(use_id, at, number, end, header.identity)
        finally:
            reader.close()

    def _identity(self, ids: list[int]) -> Identity:
        for use_id in ids:
            reader = self._reader(use_id)
            try:
                header = reader.header()
            finally:
                reader.close()
            if header is not None:
                return header.identity
        # Only the newest incarnation proves anything, and a repair's own comes after this one.
        return Identity(self._broker_id, "")


@dataclass(frozen=True, slots=True)
class _Predecessor:
    use_id: int
    end: int
    end_number: int
    checkpoint: Position | None
    identity: Identity


def _plain(flush: FlushHeader) -> bytes:
    return pack_flush_header(flush._replace(flags=flush.flags & ~FLUSH_RECOVERY))


def _next_envelope(data: bytes, start: int, flush: FlushHeader) -> int:
    """Where the next good envelope of a flush starts after ``start``, or where entries end."""
    end = entries_end(flush)
    inside = memoryview(data)[:end]
    at = data.find(MAGIC, start + ENVELOPE_BYTES)
    while 0 <= at < end:
        if at % 8 == 0 and envelope_at(inside, at, flush.use_id, flush.number) is not None:
            return at
        at = data.find(MAGIC, at + 1)
    return end


def _hopeless(path: Path, at: int, what: str) -> Corruption:
    return Corruption(
        f"{path} cannot be repaired at byte {at}: {what} would be lost, and nothing says what it "
        "held; restore the file, or set the data directory aside and start an empty broker (the "
        "tables keep everything that was rolled)"
    )
