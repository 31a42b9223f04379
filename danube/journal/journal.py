"""The journal as the rooms above see it; see the modules beside for how each part works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from danube.core import telemetry
from danube.core.clock import Clock, IdSource, SystemClock, SystemIds
from danube.core.errors import (
    Corruption,
    FailedPrecondition,
    InvalidRequest,
    InvalidSettings,
    StorageFailed,
)
from danube.journal.chain import Chain, find_chain
from danube.journal.checkpoints import Checkpoint, Kept, begin_entry, end_entry
from danube.journal.envelope import (
    Entry,
    EntryKind,
    Position,
    StoredEntry,
    body_is_whole,
    envelope_at,
    stored_entry,
)
from danube.journal.files import FileSystem, OsFiles
from danube.journal.flush import FlushWriter
from danube.journal.group_commit import GroupCommit
from danube.journal.last_good import explain
from danube.journal.layout import Identity
from danube.journal.pending import Done
from danube.journal.recovery import RecoveredEntry, Recovery
from danube.journal.scan import JournalDamaged
from danube.journal.segments import Segments
from danube.journal.settings import JournalSettings

LOG = telemetry.get_logger(__name__)
CHECKPOINTS = telemetry.counter("journal_checkpoints", "Journal checkpoints completed.")
LOCK_FILE: Final = "lock"
FULL_DISK_AGE_S: Final = 1.0
"""While the disk is full, segments that nobody needs wait only so long for a checkpoint."""
_END_PLACEHOLDER: Final = b"{}"


class Journal:
    """One write-ahead log. Open, recover to the end, start; then submit, read, forget.

    ``on_failure`` is called from the writing thread when a sync or a write has failed: the process
    must end, because nothing is known about the disk any more.
    """

    def __init__(
        self,
        segments: Segments,
        chain: Chain,
        files: FileSystem,
        settings: JournalSettings,
        clock: Clock,
        identity: Identity,
        unlock: Callable[[], None],
        *,
        threaded: bool,
    ) -> None:
        self.identity = identity
        self.previous = chain.newest.header.identity if chain.newest is not None else None
        """The incarnation whose acknowledged entries this journal holds (None: it was empty)."""
        self.on_failure: Callable[[BaseException], None] = _log_failure
        self._segments = segments
        self._chain = chain
        self._files = files
        self._settings = settings
        self._clock = clock
        self._unlock = unlock
        self._threaded = threaded
        self._writer = FlushWriter(segments, clock, 1)
        self._commit: GroupCommit | None = None
        self._recovered = False
        self._begin: Position | None = None
        self._ending: Checkpoint | None = None
        self._begun_segment = 0
        self._begun_s = 0.0
        self._due = False
        self._on_due: Callable[[], None] | None = None
        self.repair_entries: list[Entry] = []
        """What a repair adds to the recovery flush."""

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: JournalSettings,
        *,
        broker_id: str,
        files: FileSystem | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        threaded: bool = True,
    ) -> Journal:
        """Lock a journal's directory (made if absent) and find its segments.

        Args:
            directory: of the segments; one journal each.
            settings: sizes and bounds.
            broker_id: whose journal it is.
            files: the file system.
            clock: for append-independent times and ages.
            ids: where the incarnation id comes from.
            threaded: write from a thread; otherwise ``pump`` does.

        Raises:
            FailedPrecondition: another process has it open.
            InvalidSettings: it belongs to another broker.
            UnsupportedFormat: a newer version wrote it.
            Corruption: a segment is missing or its header is damaged.
            StorageFailed: the disk refuses.
        """
        files, clock, ids = files or OsFiles(), clock or SystemClock(), ids or SystemIds()
        identity = Identity(broker_id, ids.random_bytes(16).hex())
        unlock = _lock(directory, files)
        try:
            chain = find_chain(directory, files)
            _check_owner(chain, directory, broker_id)
            segments = Segments(directory, files, settings, clock, identity, chain.next_use_id)
            return cls(segments, chain, files, settings, clock, identity, unlock, threaded=threaded)
        except JournalDamaged as error:
            unlock()
            raise explain(error, directory, files) from None
        except OSError as error:
            unlock()
            raise StorageFailed(
                f"the journal in {directory} cannot be read ({error.strerror}); check the disk"
            ) from error
        except BaseException:
            unlock()
            raise

    # -- recovery --------------------------------------------------------------------------

    def recover(self) -> Iterator[RecoveredEntry]:
        """Yield, in journal order, what the journal holds; must be exhausted before ``start``.

        That is the state of the last complete journal checkpoint and every later entry, and the
        frames of older segments that are still live (``before_checkpoint``). The last flush is
        written again before its entries are yielded. Every frame that is yielded counts as needed
        until it is forgotten.

        Raises:
            Corruption: the journal is damaged in front of later flushes.
            DiskFull: no space for the recovery flush.
            StorageFailed: the recovery flush could not be synced.
        """
        recovery = Recovery(self._chain, self._files, self.read, self._segments.add_live)
        try:
            yield from recovery.replay()
            yield from recovery.finish(self._writer, self.repair_entries)
            if self._segments.current is None:
                self._segments.open_next(1, previous=0, checkpoint=None)
        except JournalDamaged as error:
            raise explain(error, self._segments.directory, self._files) from None
        except OSError as error:
            raise StorageFailed(
                f"recovering the journal in {self._segments.directory} failed "
                f"({error.strerror}); check the disk"
            ) from error
        if self._chain.checkpoint is not None:
            self._begun_segment = self._chain.checkpoint.begin.segment
        else:
            live = self._segments.live()
            self._begun_segment = live[0].use_id
        self._recovered = True

    def start(self) -> None:
        """Begin to write.

        Raises:
            InvalidRequest: recovery was not run to its end.
        """
        if not self._recovered:
            raise InvalidRequest("run recover() to its end before start()")
        self._segments.start_waiting()
        self._segments.trim_spares()
        self._commit = GroupCommit(
            self._writer,
            self._settings,
            self._clock,
            prepare=self._prepare,
            after=self._after_flush,
            failed=self._fail,
        )
        if self._threaded:
            self._commit.start()

    # -- writing ---------------------------------------------------------------------------

    def submit(self, entries: Sequence[Entry], done: Done) -> None:
        """Queue entries; ``done`` gets their positions after the sync, or the failure.

        The order of calls is the order on the disk. ``done`` runs in the writing thread.

        Raises:
            DiskFull: free space is below the reserve (only if an entry is not essential).
            ResourceExhausted: too much waits already.
            InvalidRequest: an entry cannot be stored, or does not fit a segment.
            StorageFailed: the journal has failed or is closed.
        """
        self._started().submit(entries, done)

    def pump(self) -> bool:
        """Without a thread: write one flush, or the empty one behind the last; whether it did."""
        return self._started().step()

    def _started(self) -> GroupCommit:
        if self._commit is None:
            raise InvalidRequest("the journal was not started; run recover() and start()")
        return self._commit

    def _fail(self, error: BaseException) -> None:
        self.on_failure(error)

    # -- reading and forgetting ------------------------------------------------------------

    def read(self, position: Position) -> StoredEntry:
        """Read one entry; use id, envelope and body are checked.

        Raises:
            Corruption: what lies there is not that entry: damaged, or the segment was recycled.
        """
        data = memoryview(self._segments.pread(position))
        envelope = envelope_at(data, 0, position.segment, None)
        if envelope is None or envelope.length != position.length:
            raise Corruption(
                f"segment {position.segment} of {self._segments.directory} does not hold the "
                f"entry at byte {position.offset} any more: it is damaged or was recycled; run "
                "`danube journal dump`"
            )
        if not body_is_whole(data, 0, envelope):
            raise Corruption(
                f"segment {position.segment} of {self._segments.directory} holds a damaged body "
                f"at byte {position.offset} (topic {envelope.topic_id.hex()}, partition "
                f"{envelope.partition}, base offset {envelope.base_offset}); run `danube journal "
                "repair` with the broker stopped"
            )
        return stored_entry(data, 0, envelope)

    def forget(self, positions: Iterable[Position]) -> None:
        """MESSAGES and STAGED entries that nobody needs any more (rolled, dropped)."""
        self._segments.forget(positions)

    # -- journal checkpoints ---------------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        """Whether a journal checkpoint should be written."""
        return self._due

    @property
    def on_checkpoint_due(self) -> Callable[[], None] | None:
        """Called from the writing thread when a journal checkpoint becomes due."""
        return self._on_due

    @on_checkpoint_due.setter
    def on_checkpoint_due(self, callback: Callable[[], None] | None) -> None:
        self._on_due = callback
        if self._due:
            self._tell_due()

    def begin_checkpoint(self) -> None:
        """Queue a BEGIN; submit CHECKPOINT_STATE entries for all live state, then end it."""
        self._due = False
        self._begin = None
        self._begun_s = self._clock.monotonic_s()
        current = self._segments.current
        assert current is not None
        # From here, so that one that is never ended does not make the next one due at once.
        self._begun_segment = max(self._begun_segment, current.use_id)

        def begun(outcome: Sequence[Position] | BaseException) -> None:
            if not isinstance(outcome, BaseException):
                self._begin = outcome[0]

        self.submit([begin_entry()], begun)

    def end_checkpoint(self, done: Done) -> None:
        """Queue the END; once it is synced, older segments that nobody needs are released."""

        def ended(outcome: Sequence[Position] | BaseException) -> None:
            checkpoint, self._ending = self._ending, None
            if not isinstance(outcome, BaseException) and checkpoint is not None:
                self._checkpointed(checkpoint, outcome[0])
            done(outcome)

        placeholder = Entry(EntryKind.CHECKPOINT_END, _END_PLACEHOLDER, essential=True)
        self.submit([placeholder], ended)

    def _prepare(self, entries: list[Entry]) -> None:
        """In the writing thread: an END says what is live at the moment when it is written."""
        if not entries or entries[0].kind is not EntryKind.CHECKPOINT_END:
            return
        if self._begin is None:
            raise InvalidRequest("end_checkpoint() without begin_checkpoint()")
        live = self._segments.needed_before(self._begin.segment)
        kept = tuple(Kept(s.use_id, s.end, s.end_number) for s in live)
        self._ending = Checkpoint(self._begin, kept)
        entries[0] = end_entry(self._ending)

    def _checkpointed(self, checkpoint: Checkpoint, end: Position) -> None:
        self._writer.checkpoint = end
        self._begin = None
        kept = [item.use_id for item in checkpoint.kept]
        self._segments.release(checkpoint.begin.segment, kept)
        CHECKPOINTS.inc()

    def _after_flush(self) -> None:
        if not self._due and self._is_due():
            self._due = True
            self._tell_due()

    def _is_due(self) -> bool:
        current = self._segments.current
        assert current is not None
        filled = current.use_id - self._begun_segment
        if filled >= self._settings.checkpoint_segments:
            return True
        since = self._segments.waits_since(current.use_id)
        age_s = self._settings.checkpoint_age_s
        if self._commit is not None and self._commit.is_short_of_space:
            # A full disk heals sooner if what nobody needs is given back.
            age_s = min(age_s, FULL_DISK_AGE_S)
        now = self._clock.monotonic_s()
        return since is not None and now - max(since, self._begun_s) >= age_s

    def _tell_due(self) -> None:
        if self._on_due is None:
            return
        try:
            self._on_due()
        except Exception as error:
            # Whoever writes checkpoints is on its way out; recovery only takes longer.
            LOG.warning("nobody writes the journal checkpoint that is due", error=str(error))

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is pending, close the files, unlock the directory."""
        if self._commit is not None:
            self._commit.close()
        self._segments.close()
        self._unlock()


def _lock(directory: Path, files: FileSystem) -> Callable[[], None]:
    try:
        files.mkdir(directory)
        return files.lock(directory / LOCK_FILE)
    except BlockingIOError as error:
        raise FailedPrecondition(
            f"another process uses the journal in {directory}; stop it, or choose another data "
            "directory"
        ) from error
    except OSError as error:
        raise StorageFailed(
            f"the journal's directory {directory} cannot be used ({error.strerror})"
        ) from error


def _check_owner(chain: Chain, directory: Path, broker_id: str) -> None:
    newest = chain.newest
    if newest is not None and newest.header.identity.broker_id != broker_id:
        raise InvalidSettings(
            f"the journal in {directory} belongs to broker "
            f"{newest.header.identity.broker_id!r}, this is {broker_id!r}; use that broker's data "
            "directory or an empty one"
        )


def _log_failure(error: BaseException) -> None:
    LOG.critical("the journal has failed; the process has to end", error=str(error))
