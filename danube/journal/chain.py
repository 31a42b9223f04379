"""Which segments make up the journal, found from the newest one backwards.

Every header block names the segment before it. The newest segment that holds anything is the end
of the chain. A segment whose recovery flush is incomplete is not part of it, because the recovery
that wrote it never served. Neither is one without any flush, because its header block may have
been read from the page cache and not be durable; but it proves that everything before it was
synced, since segments are opened only then.

A complete recovery flush says where the segment before it was cut. The last complete journal
checkpoint is an END in the newest segment or, failing that, the one which that segment's header
names (it was written when nothing newer existed); its BEGIN is where the chain starts, and its END
lists the older segments that live on beside it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from danube.journal.checkpoints import Checkpoint, Cut, parse_cut, parse_end
from danube.journal.envelope import (
    EntryKind,
    Position,
    body_is_whole,
    envelope_at,
    padded,
)
from danube.journal.files import FileSystem
from danube.journal.layout import (
    BLOCK_BYTES,
    FIRST_FLUSH_AT,
    FLUSH_END,
    FLUSH_RECOVERY,
    FlushHeader,
    SegmentHeader,
    flush_is_whole,
    segment_name,
    use_id_of,
)
from danube.journal.scan import (
    BadPlace,
    Damage,
    JournalDamaged,
    SegmentReader,
    check_entries,
    entries_of,
)


@dataclass(slots=True)
class Link:
    """One segment of the chain; ``cut`` is set where a recovery cut it."""

    header: SegmentHeader
    path: Path
    cut: Cut | None = None

    @property
    def use_id(self) -> int:
        """The segment's use id."""
        return self.header.use_id


@dataclass(slots=True)
class Chain:
    """The journal's segments.

    Attributes:
        links: from the BEGIN of the checkpoint, or from the first segment, to the newest.
        kept: older segments that the checkpoint lists, each with its end.
        checkpoint: the last complete journal checkpoint.
        end: where its END lies.
        end_in_newest: whether END lies in the newest segment, so that it could be part of a flush
            that a recovery writes again.
        others: files that are not part of the journal (any more).
        next_use_id: above every use id in the directory.
        proved: flushes below this number were synced, because a segment was opened after them.
    """

    links: list[Link] = field(default_factory=list)
    kept: list[tuple[Link, int, int]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    end: Position | None = None
    end_in_newest: bool = False
    others: list[Path] = field(default_factory=list)
    next_use_id: int = 1
    proved: int = 0

    @property
    def newest(self) -> Link | None:
        """The end of the chain."""
        return self.links[-1] if self.links else None


def find_chain(directory: Path, files: FileSystem) -> Chain:
    """Look at the header blocks, the newest segment and the recovery flushes.

    Raises:
        JournalDamaged: a segment is missing or its header block damaged, an END or a recovery
            flush in front of later flushes is bad.
        UnsupportedFormat: a newer version wrote a segment.
    """
    with ExitStack() as stack:
        return _ChainFinder(directory, files, stack).find()


class _ChainFinder:
    def __init__(self, directory: Path, files: FileSystem, stack: ExitStack) -> None:
        self._directory = directory
        self._files = files
        self._stack = stack
        names = files.listdir(directory)
        self._ids = sorted(use_id for name in names if (use_id := use_id_of(name)) is not None)
        self._readers: dict[int, SegmentReader] = {}
        self._proved = 0

    def find(self) -> Chain:
        chain = Chain(next_use_id=self._ids[-1] + 1 if self._ids else 1)
        newest = self._newest()
        chain.proved = self._proved
        if newest is not None:
            self._find_checkpoint(chain, newest)
            chain.links = self._links(newest, chain.checkpoint)
            for kept in chain.checkpoint.kept if chain.checkpoint else ():
                header = self._header(kept.use_id, kept.end_number - 1, kept.end, kept.end_number)
                link = Link(header, self._path(kept.use_id))
                chain.kept.append((link, kept.end, kept.end_number))
        used = {link.use_id for link in chain.links} | {k.use_id for k, _, _ in chain.kept}
        chain.others = [self._path(use_id) for use_id in self._ids if use_id not in used]
        return chain

    def _path(self, use_id: int) -> Path:
        return self._directory / segment_name(use_id)

    def _reader(self, use_id: int) -> SegmentReader:
        reader = self._readers.get(use_id)
        if reader is None:
            reader = SegmentReader(self._files, self._path(use_id), use_id)
            self._stack.callback(reader.close)
            self._readers[use_id] = reader
        return reader

    def _header(
        self, use_id: int, number: int, end_at: int = 0, end_number: int = 0
    ) -> SegmentHeader:
        """A header block that has to be there."""
        header = self._reader(use_id).header() if use_id in self._ids else None
        if header is None:
            place = BadPlace(Damage.SEGMENT, use_id, 0, number, 0, end_at, end_number)
            raise JournalDamaged(place, self._path(use_id))
        return header

    def _damaged(self, damage: Damage, use_id: int, at: int, number: int) -> JournalDamaged:
        return JournalDamaged(BadPlace(damage, use_id, at, number, at), self._path(use_id))

    # -- the newest segment ----------------------------------------------------------------

    def _newest(self) -> SegmentHeader | None:
        for use_id in reversed(self._ids):
            reader = self._reader(use_id)
            header = reader.header()
            if header is None:
                # The header block is synced before the first flush: without flushes the file was
                # being made when the process ended.
                used = reader.find_flush(FIRST_FLUSH_AT, above=0)
                if used is not None:
                    raise self._damaged(Damage.SEGMENT, use_id, 0, used.number)
                continue
            if self._is_begun(header):
                return header
            later = reader.find_flush(FIRST_FLUSH_AT + BLOCK_BYTES, above=header.first_flush)
            if later is not None:
                raise self._damaged(Damage.FLUSH, use_id, FIRST_FLUSH_AT, header.first_flush)
            if not header.is_recovery:
                self._proved = max(self._proved, header.first_flush)
        return None

    def _is_begun(self, header: SegmentHeader) -> bool:
        """Whether the first flush is there: any part of it, or all of a recovery flush."""
        if header.is_recovery:
            return self._cut_by(header) is not None
        flush = self._reader(header.use_id).flush_header(FIRST_FLUSH_AT)
        return flush is not None and flush.number == header.first_flush

    def _cut_by(self, header: SegmentHeader) -> Cut | None:
        """The cut that a segment's recovery flush made, if that flush is complete."""
        reader = self._reader(header.use_id)
        flush = reader.flush_header(FIRST_FLUSH_AT)
        if flush is None or flush.number != header.first_flush:
            return None
        data = reader.flush(flush)
        if not flush.flags & FLUSH_RECOVERY or not flush_is_whole(data, flush):
            return None
        at, envelope = next(entries_of(data, flush))
        return parse_cut(data[at + envelope.body_at : at + envelope.length])

    # -- the last complete checkpoint ------------------------------------------------------

    def _find_checkpoint(self, chain: Chain, newest: SegmentHeader) -> None:
        end = self._end_in(newest)
        chain.end_in_newest = end is not None
        chain.end = end or newest.checkpoint
        if chain.end is not None:
            chain.checkpoint = self._read_end(chain.end)

    def _end_in(self, header: SegmentHeader) -> Position | None:
        """The last END in a segment."""
        reader = self._reader(header.use_id)
        at, number = FIRST_FLUSH_AT, header.first_flush
        found: Position | None = None
        while (flush := reader.flush_header(at)) is not None and flush.number == number:
            if flush.flags & FLUSH_END:
                found = self._end_of(flush) or found
            at, number = flush.next_at, flush.next_number
        if reader.find_flush(at + BLOCK_BYTES, above=number) is not None:
            raise self._damaged(Damage.FLUSH, header.use_id, at, number)
        return found

    def _end_of(self, flush: FlushHeader) -> Position | None:
        reader = self._reader(flush.use_id)
        data = reader.flush(flush)
        if not flush_is_whole(data, flush):
            at = check_entries(data, flush).first_bad
            # Torn if it is the last flush; and an END that is whole counts, torn end mark or not.
            if at is not None and reader.find_flush(flush.next_at, above=flush.number) is None:
                return None
            if at is not None:
                raise self._damaged(Damage.RECORD, flush.use_id, flush.at + at, flush.number)
            data = reader.flush(flush)
        found = None
        for at, envelope in entries_of(data, flush):
            if envelope.kind == EntryKind.CHECKPOINT_END:
                found = Position(flush.use_id, flush.at + at, envelope.length)
        return found

    def _read_end(self, position: Position) -> Checkpoint:
        use_id, at, length = position
        self._header(use_id, 0)
        # A repair may have written it again, longer than it was.
        data = self._reader(use_id).view(at, max(padded(length), BLOCK_BYTES))
        envelope = envelope_at(data, 0, use_id, None)
        if envelope is None or not body_is_whole(data, 0, envelope):
            raise self._damaged(Damage.RECORD, use_id, at, 0)
        return parse_end(data[envelope.body_at : envelope.length])

    # -- backwards -------------------------------------------------------------------------

    def _links(self, newest: SegmentHeader, checkpoint: Checkpoint | None) -> list[Link]:
        links = [Link(newest, self._path(newest.use_id))]
        first = checkpoint.begin.segment if checkpoint is not None else 0
        while (header := links[-1].header).use_id != first and header.previous:
            cut = self._cut_by(header) if header.is_recovery else None
            if header.is_recovery and cut is None:
                raise self._damaged(Damage.FLUSH, header.use_id, FIRST_FLUSH_AT, header.first_flush)
            first_flush = header.first_flush
            before = self._header(header.previous, first_flush - 1, 0, first_flush)
            links.append(Link(before, self._path(before.use_id), cut))
        if first and links[-1].use_id != first:
            raise self._damaged(Damage.SEGMENT, first, 0, 0)
        if not first and links[-1].header.first_flush != 1:
            # Without a journal checkpoint everything since the first flush has to be there.
            raise self._damaged(Damage.SEGMENT, links[-1].header.previous, 0, 0)
        links.reverse()
        return links
