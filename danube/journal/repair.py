"""``danube journal repair``: sets damaged bytes aside, so that the broker starts again.

The repair is tried out in memory first: recovery runs, each damaged place is mended, until the
journal can be read to its end. What lay in a mended place is then known by what is missing between
the good frames around it. Carrying it out keeps an order that survives a crash at any time: copies
of the damaged files go to ``quarantine/``; a new segment gets the recovery flush, with QUARANTINE
entries that say what may be lost; only then are the damaged places changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from danube.core import telemetry
from danube.core.clock import Clock, IdSource, SystemClock, SystemIds
from danube.core.errors import Corruption, FailedPrecondition, InvalidFrame, UnsupportedFormat
from danube.core.frames import parse_header
from danube.core.limits import MIB
from danube.journal.chain import find_chain
from danube.journal.checkpoints import quarantine_entry, quarantine_notice
from danube.journal.envelope import FRAMES, Entry, EntryKind, Position, StoredEntry, padded
from danube.journal.files import FileSystem, OsFiles
from danube.journal.flush import FlushWriter
from danube.journal.layout import Identity
from danube.journal.mending import Mended, Mender
from danube.journal.overlay import Overlay
from danube.journal.recovery import RecoveredEntry, Recovery
from danube.journal.scan import JournalDamaged, SegmentReader, flush_around
from danube.journal.segments import Segment, Segments
from danube.journal.settings import JournalSettings

LOG = telemetry.get_logger(__name__)
QUARANTINE: Final = "quarantine"
MAX_PLACES: Final = 100_000
"""Damaged places that one repair mends; more is a file of another kind."""
COPY_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True)
class LostMessages:
    """Offsets of a partition that may be lost: between good frames, or of a damaged one."""

    topic_id: bytes
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class RepairReport:
    """What a repair found and did (or would do).

    Attributes:
        places: what was mended; empty if the journal is whole.
        lost: offsets that may be lost.
        unproved: whether newest messages may be missing without a trace, so that every partition
            continues above its offset ceiling.
        quarantined: copies of the files as they were.
        dry_run: nothing was changed.
    """

    places: list[Mended] = field(default_factory=list)
    lost: list[LostMessages] = field(default_factory=list)
    unproved: bool = False
    quarantined: list[Path] = field(default_factory=list)
    dry_run: bool = False

    @property
    def was_whole(self) -> bool:
        """Whether there was nothing to repair."""
        return not self.places


def repair(
    directory: Path,
    *,
    dry_run: bool,
    broker_id: str = "",
    files: FileSystem | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> RepairReport:
    """Repair the journal in ``directory``; a journal that is whole is left as it is.

    Args:
        directory: the journal's.
        dry_run: only find out what would be done.
        broker_id: whose journal it is; needed only where no header block says it any more.
        files: the file system.
        clock: for the times in new header blocks.
        ids: where the repair's incarnation id, which names the copies, comes from.

    Raises:
        FailedPrecondition: a broker uses it.
        Corruption: it cannot be repaired; the message says what to do.
    """
    files, clock, ids = files or OsFiles(), clock or SystemClock(), ids or SystemIds()
    try:
        unlock = files.lock(directory / "lock")
    except BlockingIOError as error:
        raise FailedPrecondition(
            f"a broker uses the journal in {directory}; stop it before a repair"
        ) from error
    try:
        return _Repair(directory, files, clock, ids, broker_id).run(dry_run)
    finally:
        unlock()


@dataclass(frozen=True, slots=True)
class _Frame:
    """A good frame of messages."""

    position: Position
    start: int
    end: int


class _Repair:
    def __init__(
        self, directory: Path, files: FileSystem, clock: Clock, ids: IdSource, broker_id: str
    ) -> None:
        self._directory = directory
        self._files = files
        self._clock = clock
        self._incarnation = ids.random_bytes(16).hex()
        self._overlay = Overlay(files)
        self._mender = Mender(directory, self._overlay, clock, broker_id)
        self._report = RepairReport()
        self._frames: dict[tuple[bytes, int], list[_Frame]] = {}

    def run(self, dry_run: bool) -> RepairReport:
        report = self._report
        report.dry_run = dry_run
        recovery = self._read_to_the_end()
        if report.was_whole:
            return report
        self._find_losses()
        newest = self._write_recovery_flush(recovery)
        if not dry_run:
            self._carry_out(newest)
        for place in report.places:
            LOG.warning("journal mended", segment=place.segment, at=place.start, what=place.what)
        return report

    # -- trying ----------------------------------------------------------------------------

    def _read_to_the_end(self) -> Recovery:
        for _ in range(MAX_PLACES):
            try:
                recovery, damaged = self._read()
            except JournalDamaged as error:
                self._report.places.append(self._mender.mend(error.place))
                continue
            if not damaged:
                self._mender.reseal()
                return recovery
            for entry in damaged:
                self._cover_body(entry)
        raise Corruption(f"{self._directory} has too many damaged places; restore it")

    def _read(self) -> tuple[Recovery, list[RecoveredEntry]]:
        chain = find_chain(self._directory, self._overlay)
        recovery = Recovery(chain, self._overlay, _not_read, lambda _: None)
        # Nothing is used again by a repair, and everything keeps its name.
        chain.others = []
        self._frames.clear()
        damaged = []
        for entry in recovery.replay():
            if entry.damaged:
                damaged.append(entry)
            elif entry.kind is EntryKind.MESSAGES:
                self._note(entry.topic_id, entry.partition, entry, entry.position)
        for survivor in recovery.tail.survivors if recovery.tail is not None else ():
            if survivor.kind is EntryKind.MESSAGES:
                end = Position(1 << 63, 0, 0)
                self._note(survivor.topic_id, survivor.partition, survivor, end)
        return recovery, damaged

    def _note(
        self, topic_id: bytes, partition: int, entry: RecoveredEntry | Entry, at: Position
    ) -> None:
        frame = _Frame(at, entry.base_offset, entry.base_offset + _count(entry.header))
        self._frames.setdefault((topic_id, partition), []).append(frame)

    def _cover_body(self, entry: RecoveredEntry) -> None:
        """A damaged body under a good envelope: exactly these messages are lost."""
        use_id, at, length = entry.position
        reader = SegmentReader(self._overlay, self._directory / _name(use_id), use_id)
        try:
            flush = flush_around(reader, at)
            assert flush is not None
            data = bytes(reader.flush(flush))
        finally:
            reader.close()
        start = at - flush.at
        self._mender.cover(flush, data, start, start + padded(length))
        what = f"a {entry.kind.name} entry with a damaged body"
        self._report.places.append(Mended(use_id, at, at + length, what, False))
        if entry.kind is EntryKind.MESSAGES:
            end = entry.base_offset + _count(entry.header)
            self._lost(entry.topic_id, entry.partition, entry.base_offset, end)
        elif entry.kind not in FRAMES:
            # State may have moved offsets that only it knew of.
            self._report.unproved = True

    # -- what is lost ----------------------------------------------------------------------

    def _find_losses(self) -> None:
        lossy = [place for place in self._report.places if place.loses_entries]
        self._report.unproved = self._report.unproved or bool(lossy)
        for (topic_id, partition), frames in self._frames.items():
            for before, after in pairwise(frames):
                if before.end < after.start and any(_between(before, p, after) for p in lossy):
                    self._lost(topic_id, partition, before.end, after.start)

    def _lost(self, topic_id: bytes, partition: int, start: int, end: int) -> None:
        self._report.lost.append(LostMessages(topic_id, partition, start, end))

    def _entries(self) -> Iterator[Entry]:
        report = self._report
        if report.unproved:
            yield quarantine_notice([place.what for place in report.places[:100]])
        for loss in report.lost:
            yield quarantine_entry(loss.topic_id, loss.partition, loss.start, loss.end)

    # -- doing -----------------------------------------------------------------------------

    def _write_recovery_flush(self, recovery: Recovery) -> Path:
        """The new segment with the recovery flush; still in memory."""
        chain = find_chain(self._directory, self._overlay)
        chain.others = []
        assert chain.newest is not None
        broker_id = chain.newest.header.identity.broker_id
        identity = Identity(broker_id, self._incarnation)
        settings = JournalSettings(segment_bytes=chain.newest.header.segment_bytes)
        segments = Segments(
            self._directory, self._overlay, settings, self._clock, identity, chain.next_use_id
        )
        writer = FlushWriter(segments, self._clock, 1)
        for _ in recovery.finish(writer, list(self._entries())):
            pass
        newest = segments.current
        segments.close()
        assert isinstance(newest, Segment)
        return newest.path

    def _carry_out(self, newest: Path) -> None:
        overlay = self._overlay
        target = self._directory / QUARANTINE
        self._files.mkdir(target)
        tag = self._incarnation[:8]
        for path in overlay.patches:
            copy = target / f"{path.name}.{tag}"
            _copy(self._files, path, copy)
            self._report.quarantined.append(copy)
        self._files.fsync_dir(target)
        self._write_notes(target / f"report.{tag}.json")
        overlay.apply_created(newest)
        for path in overlay.created:
            if path != newest:
                overlay.apply_created(path)
        overlay.apply_patches()

    def _write_notes(self, path: Path) -> None:
        report = self._report
        notes = {
            "places": [[p.segment, p.start, p.end, p.what] for p in report.places],
            "lost": [[x.topic_id.hex(), x.partition, x.start, x.end] for x in report.lost],
            "unproved": report.unproved,
        }
        _write(self._files, path, json.dumps(notes, indent=1).encode())


def _name(use_id: int) -> str:
    return f"{use_id:020d}.segment"


def _between(before: _Frame, place: Mended, after: _Frame) -> bool:
    return before.position[:2] < (place.segment, place.end) and (
        (place.segment, place.start) < after.position[:2]
    )


def _count(header: bytes) -> int:
    try:
        return parse_header(header).count
    except (InvalidFrame, UnsupportedFormat):
        return 1


def _copy(files: FileSystem, source: Path, target: Path) -> None:
    read = files.open(source)
    try:
        size = read.size()
        written = files.open(target, create=True)
        try:
            written.preallocate(size)
            for at in range(0, size, COPY_BYTES):
                written.pwritev([read.pread(COPY_BYTES, at)], at)
            written.fdatasync()
        finally:
            written.close()
    finally:
        read.close()


def _write(files: FileSystem, path: Path, data: bytes) -> None:
    file = files.open(path, create=True)
    try:
        file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()
    files.fsync_dir(path.parent)


def _not_read(position: Position) -> StoredEntry:
    raise AssertionError(f"a repair does not need the body at {position}")
