"""The segment files of one journal: which are live, who needs or reads them, which are spare.

A segment is live from the time it is opened until a synced journal checkpoint says that nothing in
it is needed. Then, once no reader holds it, it becomes a spare: its file is used again under the
next use id, because overwriting allocated blocks is the fastest way to sync. Use ids only grow,
and no flush is written before the file's new name is durable, so bytes of an earlier use never
carry the current use id.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from danube.core import telemetry
from danube.core.clock import Clock
from danube.core.errors import Corruption, DiskFull
from danube.journal.envelope import Position
from danube.journal.files import File, FileSystem
from danube.journal.layout import (
    BLOCK_BYTES,
    FIRST_FLUSH_AT,
    Identity,
    SegmentHeader,
    block_padded,
    segment_name,
)
from danube.journal.settings import JournalSettings

LOG = telemetry.get_logger(__name__)
LIVE_SEGMENTS = telemetry.gauge("journal_live_segments", "Segments that something still needs.")
SPARE_SEGMENTS = telemetry.gauge("journal_spare_segments", "Segments waiting for their next use.")
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Segment:
    """One live segment. ``needed`` counts its frames that were not forgotten."""

    __slots__ = ("end", "end_number", "file", "header", "needed", "path", "readers", "since_s")

    def __init__(self, header: SegmentHeader, path: Path, *, end: int, end_number: int) -> None:
        self.header = header
        self.path = path
        self.end = end
        """Where the next flush would start."""
        self.end_number = end_number
        """Number of the flush after the last one in here."""
        self.needed = 0
        self.readers: dict[object, float] = {}
        self.file: File | None = None
        self.since_s: float | None = None
        """Since when nothing needs it, on the monotonic clock."""

    @property
    def use_id(self) -> int:
        """The file's current use."""
        return self.header.use_id

    @property
    def room(self) -> int:
        """Bytes left for flushes."""
        return self.header.segment_bytes - self.end


class Segments:
    """All segment files of a journal. One thread opens segments, any thread reads and forgets."""

    def __init__(
        self,
        directory: Path,
        files: FileSystem,
        settings: JournalSettings,
        clock: Clock,
        identity: Identity,
        next_use_id: int,
    ) -> None:
        self.directory = directory
        self.next_use_id = next_use_id
        self.current: Segment | None = None
        self._files = files
        self._settings = settings
        self._clock = clock
        self._identity = identity
        self._lock = threading.Lock()
        self._live: dict[int, Segment] = {}
        self._retiring: list[Segment] = []
        self._spares: list[Path] = []
        self._reading: OrderedDict[int, Segment] = OrderedDict()
        self._writing: File | None = None

    # -- opening ---------------------------------------------------------------------------

    def add_spares(self, spares: Iterable[Path]) -> None:
        """Files that nothing needs, found by recovery."""
        self._spares += spares
        self._count()

    def add_live(self, segment: Segment) -> None:
        """One more live segment, found by recovery."""
        with self._lock:
            self._live[segment.use_id] = segment

    def supersede(self, use_id: int) -> None:
        """The current segment's recovery flush stands for everything after segment ``use_id``."""
        assert self.current is not None
        with self._lock:
            void = [id_ for id_ in sorted(self._live) if use_id < id_ < self.current.use_id]
            self._retiring += [self._live.pop(other) for other in void]

    def start_waiting(self) -> None:
        """From now on count how long segments wait that nobody needs."""
        with self._lock:
            for segment in self._live.values():
                if not segment.needed and segment is not self.current:
                    segment.since_s = self._clock.monotonic_s()

    def open_next(
        self,
        first_flush: int,
        *,
        previous: int,
        checkpoint: Position | None,
        flags: int = 0,
        min_bytes: int = 0,
    ) -> File:
        """Open a segment for the next flushes; it is durable, and current, when this returns.

        Args:
            first_flush: number of the flush that comes next.
            previous: use id of the segment that this one follows.
            checkpoint: the last synced journal checkpoint's END.
            flags: of the header block.
            min_bytes: the file is at least this long, whatever the settings.

        Raises:
            DiskFull: no space; nothing has changed and it may be tried again.
            OSError: anything else; nothing is known about the disk any more.
        """
        use_id = self.next_use_id
        self.next_use_id += 1
        path = self.directory / segment_name(use_id)
        size = max(self._settings.segment_bytes, block_padded(min_bytes) + BLOCK_BYTES)
        file = self._recycle(path, size) or self._create(path, size)
        header = SegmentHeader(
            use_id=use_id,
            previous=previous,
            first_flush=first_flush,
            segment_bytes=size,
            checkpoint=checkpoint,
            created_us=self._clock.now_us(),
            identity=self._identity,
            flags=flags,
        )
        try:
            self._files.fsync_dir(self.directory)
            if file.pwritev([header.to_block()], 0) != BLOCK_BYTES:
                raise OSError(errno.EIO, "short write", str(path))
            file.fdatasync()
        except BaseException:
            file.close()
            raise
        self._use(Segment(header, path, end=FIRST_FLUSH_AT, end_number=first_flush), file)
        return file

    def _use(self, segment: Segment, file: File) -> None:
        previous, self._writing = self._writing, file
        if previous is not None:
            previous.close()
        with self._lock:
            filled, self.current = self.current, segment
            self._live[segment.use_id] = segment
            if filled is not None and not filled.needed:
                filled.since_s = self._clock.monotonic_s()
        self._count()

    def _recycle(self, path: Path, size: int) -> File | None:
        self._collect()
        while self._spares:
            spare = self._spares.pop()
            file = self._files.open(spare, write=True)
            if file.size() == size:
                self._files.rename(spare, path)
                return file
            file.close()
            self._files.unlink(spare)
        return None

    def _create(self, path: Path, size: int) -> File:
        file: File | None = None
        try:
            file = self._files.open(path, create=True)
            file.preallocate(size)
        except OSError as error:
            if file is not None:
                file.close()
                self._files.unlink(path)
            if error.errno not in NO_SPACE:
                raise
            raise DiskFull(
                f"no space for a segment of {size} bytes in {self.directory}; free some space"
            ) from error
        return file

    @property
    def segment_bytes(self) -> int:
        """Size of the segments that are opened from now on."""
        return self._settings.segment_bytes

    @property
    def writing(self) -> File | None:
        """The current segment's file."""
        return self._writing

    # -- need and release ------------------------------------------------------------------

    def need(self, segment: Segment, count: int) -> None:
        """Count frames written to a segment."""
        with self._lock:
            segment.needed += count

    def forget(self, positions: Iterable[Position]) -> None:
        """Frames that nobody needs any more; each frame may be forgotten once."""
        with self._lock:
            for position in positions:
                segment = self._live.get(position.segment)
                if segment is None or not segment.needed:
                    raise AssertionError(f"the entry at {position} was forgotten before")
                segment.needed -= 1
                if not segment.needed and segment is not self.current:
                    segment.since_s = self._clock.monotonic_s()

    def needed_before(self, use_id: int) -> list[Segment]:
        """Live segments below ``use_id`` that hold frames somebody needs, oldest first."""
        with self._lock:
            return [s for s in self._sorted() if s.use_id < use_id and s.needed]

    def live(self) -> list[Segment]:
        """Every live segment, oldest first."""
        with self._lock:
            return self._sorted()

    def _sorted(self) -> list[Segment]:
        return [self._live[use_id] for use_id in sorted(self._live)]

    def waits_since(self, before: int) -> float | None:
        """Since when the oldest segment below use id ``before`` is not needed any more."""
        with self._lock:
            since = [s.since_s for s in self._live.values() if not s.needed and s.use_id < before]
        return min((at for at in since if at is not None), default=None)

    def release(self, before: int, keep: Iterable[int]) -> None:
        """A synced journal checkpoint says: of the segments below ``before`` only these live."""
        kept = set(keep)
        with self._lock:
            gone = [s for s in self._sorted() if s.use_id < before and s.use_id not in kept]
            for segment in gone:
                del self._live[segment.use_id]
        self._retiring += gone
        self._collect()
        self._count()

    def _collect(self) -> None:
        """Turn released segments that no reader holds into spares."""
        now = self._clock.monotonic_s()
        for segment in tuple(self._retiring):
            with self._lock:
                if any(deadline > now for deadline in segment.readers.values()):
                    continue
                self._reading.pop(segment.use_id, None)
                if not segment.readers:
                    self._close(segment)
            self._retiring.remove(segment)
            if len(self._spares) < self._settings.spare_segments:
                self._spares.append(segment.path)
            else:
                self._files.unlink(segment.path)
            LOG.debug("segment released", segment=segment.use_id)

    def trim_spares(self) -> None:
        """Remove spares above the bound, newest first."""
        while len(self._spares) > self._settings.spare_segments:
            self._files.unlink(self._spares.pop())
        self._count()

    def _count(self) -> None:
        LIVE_SEGMENTS.set(len(self._live))
        SPARE_SEGMENTS.set(len(self._spares))

    # -- reading ---------------------------------------------------------------------------

    def pread(self, position: Position) -> bytes:
        """The bytes at a position, as they are; the segment is held meanwhile.

        Raises:
            Corruption: the segment was recycled or cannot be read.
        """
        token = object()
        segment, file = self._hold(position, token)
        try:
            return file.pread(position.length, position.offset)
        except OSError as error:
            raise Corruption(
                f"{segment.path} cannot be read at byte {position.offset} ({error.strerror}); "
                "check the disk"
            ) from error
        finally:
            self._let_go(segment, token)

    def _hold(self, position: Position, token: object) -> tuple[Segment, File]:
        with self._lock:
            segment = self._live.get(position.segment)
            if segment is None:
                raise Corruption(
                    f"segment {position.segment} of {self.directory} was recycled; what it held "
                    "at byte "
                    f"{position.offset} has moved to the table or was dropped"
                )
            if segment.file is None:
                segment.file = self._files.open(segment.path)
            self._reading[segment.use_id] = segment
            self._reading.move_to_end(segment.use_id)
            segment.readers[token] = self._clock.monotonic_s() + self._settings.reader_hold_s
            return segment, segment.file

    def _let_go(self, segment: Segment, token: object) -> None:
        with self._lock:
            del segment.readers[token]
            if segment.use_id not in self._reading and not segment.readers:
                self._close(segment)
            for use_id in list(self._reading):
                if len(self._reading) <= self._settings.open_segments:
                    break
                if not self._reading[use_id].readers:
                    self._close(self._reading.pop(use_id))

    @staticmethod
    def _close(segment: Segment) -> None:
        file, segment.file = segment.file, None
        if file is not None:
            file.close()

    def free_bytes(self) -> int:
        """Free space of the disk that the segments lie on."""
        return self._files.free_bytes(self.directory)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for segment in self._reading.values():
                self._close(segment)
            self._reading.clear()
            writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()
