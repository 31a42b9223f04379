"""Group commit: gather what is pending, write one flush, answer those who wait.

While one flush is being synced the next one fills up: the sync itself is the linger. ``step`` is
the whole of it, synchronous; the thread around it only waits. The simulator calls ``step`` itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from danube.core import telemetry
from danube.core.clock import Clock
from danube.core.errors import DiskFull, InvalidRequest, StorageFailed
from danube.journal.envelope import Entry, Position, check_entry, entry_bytes
from danube.journal.flush import FlushWriter, largest_flush
from danube.journal.pending import Batch, Done, PendingQueue, Submission
from danube.journal.settings import JournalSettings

LOG = telemetry.get_logger(__name__)
FREE_SPACE_S: Final = 0.1
"""How old the known free space may be."""
FULL_RETRY_S: Final = 0.5
IDLE_S: Final = 1.0
"""How often an idle journal looks whether a journal checkpoint is due."""
"""How often a flush that found no space for its segment is tried again."""


class GroupCommit:
    """The queue, the flushes, and the thread that turns one into the other.

    Args:
        writer: writes one flush.
        settings: bounds.
        clock: for waiting and the age of the known free space.
        prepare: called in the writing thread with an entry of the journal's own that is about to
            be written; returns the entry to write.
        after: called in the writing thread after each flush, and when idle.
        failed: called once, after a failure, when everybody who waits has been answered.
    """

    def __init__(
        self,
        writer: FlushWriter,
        settings: JournalSettings,
        clock: Clock,
        *,
        prepare: Callable[[list[Entry]], None],
        after: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._prepare = prepare
        self._after = after
        self._failed = failed
        self._limit = min(settings.flush_bytes, largest_flush(settings.segment_bytes))
        self._queue = PendingQueue(settings.queue_bytes)
        self._wake = threading.Condition()
        self._waiting = False
        self._closing = False
        self._stalled: Batch | None = None
        self._failure: StorageFailed | None = None
        self._thread: threading.Thread | None = None
        self._idle_due = True
        self._free_bytes = writer.segments.free_bytes()
        self._free_at_s = clock.monotonic_s()

    # -- submitting ------------------------------------------------------------------------

    def submit(self, entries: Sequence[Entry], done: Done) -> None:
        """Queue entries; see :meth:`danube.journal.journal.Journal.submit`."""
        sizes = list(map(entry_bytes, entries))
        largest = largest_flush(self._settings.segment_bytes)
        for entry, size in zip(entries, sizes, strict=True):
            check_entry(entry)
            if size > largest:
                raise InvalidRequest(
                    f"an entry of {size} bytes does not fit a segment, which holds {largest}; "
                    "raise journal.segment_bytes"
                )
        essential = all(entry.essential for entry in entries)
        if not essential:
            self._check_reserve()
        with self._wake:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise StorageFailed("the journal is closed; the broker is stopping")
            self._queue.add(Submission(entries, sizes, done), essential=essential)
            if self._waiting:
                self._wake.notify()

    def _check_reserve(self) -> None:
        if not self.is_short_of_space:
            return
        self._look_at_free_space()
        if self.is_short_of_space:
            reserve = self._settings.disk_reserve_bytes
            raise DiskFull(
                f"{self._free_bytes} bytes are free in {self._writer.segments.directory}, and "
                f"{reserve} are kept for acknowledgements, journal checkpoints and rolls; free "
                "some space, or wait for retention to do it"
            )

    @property
    def is_short_of_space(self) -> bool:
        """Whether messages are refused because the disk is full."""
        return self._free_bytes < self._settings.disk_reserve_bytes

    def _look_at_free_space(self) -> None:
        self._free_bytes = self._writer.segments.free_bytes()
        self._free_at_s = self._clock.monotonic_s()

    # -- one flush -------------------------------------------------------------------------

    def step(self) -> bool:
        """Write one flush of what is pending, or the empty one behind the last; whether it did.

        Raises nothing: failures are answered to those who wait and given to ``failed``.
        """
        try:
            return self._step()
        except Exception as error:
            self._fail(error)
            return False

    def _step(self) -> bool:
        batch = self._stalled
        if batch is None:
            with self._wake:
                if self._failure is not None:
                    return False
                batch = self._queue.gather(self._limit)
        if not batch.entries and not self._idle_due:
            return False
        self._stalled = batch
        self._prepare(batch.entries)
        try:
            positions = self._writer.write(batch.entries)
        except DiskFull as error:
            # Nothing was written; offsets stay assigned, and the batch is tried again.
            self._free_bytes = 0
            LOG.warning("no space for the next segment", error=str(error))
            return False
        self._stalled = None
        self._idle_due = bool(batch.entries)
        if self._clock.monotonic_s() - self._free_at_s > FREE_SPACE_S:
            self._look_at_free_space()
        _answer(batch, positions)
        self._after()
        return True

    def _fail(self, error: Exception) -> None:
        failure = error if isinstance(error, StorageFailed) else StorageFailed(str(error))
        failure.__cause__ = error
        with self._wake:
            self._failure = failure
            waiting = self._queue.drain()
        batch, self._stalled = self._stalled, None
        heads = [submission for submission, _ in batch.shares] if batch is not None else []
        # A submission that was partly written is still at the head of the queue.
        unique = {id(item): item for item in [*heads, *waiting]}
        for submission in unique.values():
            _call(submission.done, failure)
        self._failed(failure)

    # -- the thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Write from a thread of its own from now on."""
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._wait():
            if not self.step():
                self._after()

    def _wait(self) -> bool:
        """Wait for entries, for the time of the empty flush, or for the end."""
        with self._wake:
            if self._stalled is not None:
                if not self._closing:
                    self._wake.wait(FULL_RETRY_S)
                # Closing with a full disk: `close` tries once more and tells those who wait.
                return not self._closing
            if not self._queue and not self._closing:
                self._waiting = True
                self._wake.wait(self._settings.idle_flush_ms / 1000 if self._idle_due else IDLE_S)
                self._waiting = False
            if self._failure is not None:
                return False
            return not self._closing or bool(self._queue)

    def close(self) -> None:
        """Write what is pending and the empty flush behind it; stop the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
        while self._failure is None and self.step():
            pass
        if self._stalled is not None and self._failure is None:
            self._fail(StorageFailed("the disk is full and the journal was closed"))


def _answer(batch: Batch, positions: list[Position]) -> None:
    start = 0
    for submission, count in batch.shares:
        submission.positions += positions[start : start + count]
        start += count
        if len(submission.positions) == len(submission.entries):
            _call(submission.done, submission.positions)


def _call(done: Done, outcome: Sequence[Position] | BaseException) -> None:
    try:
        done(outcome)
    except Exception:
        # A waiter's mistake must not keep the others from their answers.
        LOG.exception("a waiter of the journal failed")
