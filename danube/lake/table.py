"""A topic's table as its owners use it: fence, roll, retire, refresh.

Everything blocks and every call holds the table's lock: calls on one table take turns, in whatever
threads the broker gives them. The snapshot is replaced as a whole and may be read without a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from danube.core import telemetry
from danube.core.clock import Clock, IdSource
from danube.core.errors import Corruption, FailedPrecondition
from danube.core.names import TopicId
from danube.core.offsets import OffsetRange, RangeSet
from danube.core.stores import ObjectExists, ObjectNotFound, ObjectStore, ObjectStoreUnavailable
from danube.lake.checkpoints import CheckpointWriter, deltalake_writer, write_checkpoint
from danube.lake.committer import Committer
from danube.lake.definition import define
from danube.lake.files import FileInfo, LostRange
from danube.lake.intents import Fence, Intent, PlanVoid, Retire, Roll, RolledPart, StaleEpoch
from danube.lake.layout import data_path
from danube.lake.replay import Loaded, TableLog
from danube.lake.settings import LakeSettings
from danube.lake.snapshot import Snapshot
from danube.lake.writer import StoredBatch, WrittenFile, runs, write_file
from danube.objects.streaming import Write, create_from

__all__ = [
    "FileInfo",
    "LostRange",
    "PlanVoid",
    "RollPart",
    "RollResult",
    "StaleEpoch",
    "StoredBatch",
    "TopicTable",
]

FILE_BYTES = telemetry.counter("parquet_bytes", "Bytes of Parquet files written for tables.")
FILE_SECONDS = telemetry.histogram(
    "parquet_write_seconds", "Seconds per Parquet file, encoded and durable."
)


@dataclass(frozen=True, slots=True)
class RollPart:
    """What one partition wants to roll.

    Attributes:
        partition: its number.
        epoch: of the claim under which this broker fenced the table.
        start: the caller's idea of the rolled offset.
        end: the new rolled offset.
        batches: ascending, disjoint; together with lost ranges they tile [``start``, ``end``).
        lost: lost ranges, recorded in the table yet or not; those at or above ``end`` are left
            for a later roll.
    """

    partition: int
    epoch: int
    start: int
    end: int
    batches: Sequence[StoredBatch]
    lost: Sequence[LostRange] = ()


@dataclass(frozen=True, slots=True)
class RollResult:
    """How a roll went.

    Attributes:
        version: the table's newest version that was seen.
        rolled: per partition the table's ``off`` now.
        dropped: per partition why this broker may not roll it.
        files: what was added.
    """

    version: int
    rolled: dict[int, int]
    dropped: dict[int, str]
    files: tuple[FileInfo, ...] = field(default=())


class TopicTable:
    """One topic's Delta table.

    Args:
        store: where it lies.
        topic_id: names its directory.
        topic_name: ``/namespace/topic``, stored in every row.
        settings: sizes and ages.
        clock: boot time decides which snapshots are too old, wall time dates files.
        ids: random commit ids and file names.
        checkpoint_writer: writes Delta checkpoints; by default ``deltalake``.
    """

    def __init__(
        self,
        store: ObjectStore,
        topic_id: TopicId,
        topic_name: str,
        *,
        settings: LakeSettings,
        clock: Clock,
        ids: IdSource,
        checkpoint_writer: CheckpointWriter = deltalake_writer,
    ) -> None:
        self.store = store
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.settings = settings
        self.log = TableLog(store, topic_id, topic_name, clock)
        self._clock = clock
        self._ids = ids
        self._checkpoint_writer = checkpoint_writer
        self._committer = Committer(self.log, settings, ids)
        self._snapshot: Snapshot | None = None
        # Epochs that this object has put into the table: nobody rolls under another's.
        self._fenced: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def uri(self) -> str:
        """The table's root, for any Delta reader."""
        return self.log.uri

    @property
    def snapshot(self) -> Snapshot:
        """The newest state this object knows.

        Raises:
            FailedPrecondition: the table was neither created nor refreshed yet.
        """
        if self._snapshot is None:
            raise FailedPrecondition(f"the table of topic {self.topic_name} is not open yet")
        return self._snapshot

    # -- life ------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the table is there."""
        with self._lock:
            return self.log.exists()

    def create(self) -> Snapshot:
        """Write version 0 unless the table is there already."""
        with self._lock:
            if not self.log.exists():
                now_us = self._clock.now_us()
                self._committer.create(
                    define(self.topic_id, self.topic_name, self.settings, now_us=now_us)
                )
            return self.refresh()

    def refresh(self) -> Snapshot:
        """Bring the snapshot up to the newest version.

        Raises:
            ObjectNotFound: there is no table.
            ForeignCommit: somebody else wrote to it; the message says how to go on.
            Corruption: its log is damaged.
        """
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self.log.load().snapshot
            else:
                self._snapshot = self._committer.fresh(self._snapshot)
            return self._snapshot

    def load(self) -> Loaded:
        """Read the whole log again, with what only upkeep wants to know."""
        with self._lock:
            loaded = self.log.load()
            self._snapshot = loaded.snapshot
            return loaded

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep every other user of this object out: for upkeep, which deletes what others add."""
        with self._lock:
            yield

    # -- writing ---------------------------------------------------------------------------

    def fence(
        self,
        epochs: Mapping[int, int],
        lost: Mapping[int, Sequence[LostRange]] | None = None,
        off: Mapping[int, int] | None = None,
    ) -> Snapshot:
        """Take partitions over, in one Delta commit.

        Args:
            epochs: per partition the claim's epoch.
            lost: per partition ranges to record as lost; what is recorded, or was rolled in the
                meantime, is left out.
            off: per partition a higher ``off``, if all up to there is lost.

        Raises:
            StaleEpoch: the table's epoch is as high; raise the claim's above its ``found``.
        """
        with self._lock:
            self.refresh()
            intent = Fence(self.topic_name, dict(epochs), lost or {}, off or {})
            self._commit(intent)
            self._fenced.update(epochs)
            return self.snapshot

    def roll(self, parts: Sequence[RollPart]) -> RollResult:
        """Write Parquet files and add them to the table in one Delta commit.

        A part whose ``start`` is below the table's ``off`` was rolled before by this very owner
        (a reply was lost): what is there is left out.

        Raises:
            Corruption: a part has a gap that no lost range explains.
            Unavailable: the store did not answer; call again, it will not double anything.
            ForeignCommit: somebody else wrote to the table.
        """
        with self._lock:
            self.refresh()
            written_at_s = self._clock.boottime_s()
            dropped: dict[int, str] = {}
            rolled: list[RolledPart] = []
            for part in parts:
                reason = self._not_mine(part)
                if reason is not None:
                    dropped[part.partition] = reason
                elif part.end > self.snapshot.off(part.partition):
                    rolled.append(self._write_part(part))
            intent = Roll(self.topic_name, rolled, lambda: self._expired(written_at_s))
            if rolled:
                self._commit(intent)
            self._check_kept(intent, written_at_s)
            return self._result(parts, intent, dropped)

    def remove(
        self, partition: int, epoch: int, files: Sequence[FileInfo], new_start: int, *, maint: int
    ) -> Snapshot:
        """Retire whole files and move the log start offset, in one Delta commit.

        Args:
            partition: whose files.
            epoch: of the claim under which this broker fenced the table.
            files: every live file that begins below ``new_start``.
            new_start: the new log start offset.
            maint: the snapshot's when this was planned.

        Raises:
            PlanVoid: the table has changed since; plan again.
            StaleEpoch: somebody else has taken the partition over.
        """
        with self._lock:
            self.refresh()
            intent = Retire(self.topic_name, partition, epoch, maint, tuple(files), new_start)
            self._commit(intent)
            return self.snapshot

    def checkpoint(self) -> int:
        """Write a Delta checkpoint of the newest version, synced; returns the version.

        Delta checkpoints that cannot be read are removed first: other readers would stop there.
        """
        with self._lock:
            loaded = self.load()
            self.log.drop_torn(loaded)
            version = write_checkpoint(
                self.store,
                self.log.table,
                self._checkpoint_writer,
                expected_txns=loaded.snapshot.txn,
            )
            self.refresh()
            return version

    # -- inside ----------------------------------------------------------------------------

    def _commit(self, intent: Intent) -> None:
        try:
            self._snapshot = self._committer.commit(self.snapshot, intent)
        except StaleEpoch:
            self.refresh()
            raise

    def _not_mine(self, part: RollPart) -> str | None:
        mine = self._fenced.get(part.partition)
        if mine != part.epoch:
            return f"epoch {part.epoch} was not fenced by this broker (last: {mine})"
        found = self.snapshot.epoch(part.partition)
        if found != part.epoch:
            return f"the table was fenced with epoch {found}, ours is {part.epoch}"
        return None

    def _write_part(self, part: RollPart) -> RolledPart:
        start = self.snapshot.off(part.partition)
        clipped = [batch.slice(start, part.end) for batch in part.batches]
        batches = [batch for batch in clipped if batch.records.num_rows]
        explained = self.snapshot.lost_set(part.partition)
        for item in part.lost:
            explained.add(item.start, item.end)
        _check_disjoint(self.topic_name, part.partition, batches, explained)
        files = [self._write_run(part, run) for run in runs(batches, self.settings.file_bytes)]
        lost = [item for item in part.lost if item.start < part.end]
        return RolledPart(part.partition, part.epoch, start, part.end, files, lost)

    def _write_run(self, part: RollPart, run: Sequence[StoredBatch]) -> FileInfo:
        with FILE_SECONDS.time():
            unique = self._ids.random_bytes(16)
            path = data_path(part.partition, run[0].base_offset, part.epoch, unique)
            written = self._store_file(f"{self.log.table}/{path}", run)
            info = _file_info(self.log.table, path, part.partition, written)
        FILE_BYTES.inc(info.size_bytes)
        return info

    def _store_file(self, key: str, run: Sequence[StoredBatch]) -> WrittenFile:
        """Encode into the store, without the whole file in memory; anew at each attempt."""
        written: list[WrittenFile] = []

        def produce(write: Write) -> None:
            written.append(write_file(run, self.topic_name, self.settings, write))

        for attempt in range(1, self.settings.store_attempts + 1):
            try:
                create_from(self.store, key, produce)
                break
            except ObjectExists:
                # The name is random: only a lost reply can have put it there.
                break
            except ObjectStoreUnavailable:
                if attempt == self.settings.store_attempts:
                    raise
        return written[-1]

    def _expired(self, written_at_s: float) -> bool:
        age_s = self._clock.boottime_s() - written_at_s
        return age_s > self.settings.uncommitted_hours * 3600

    def _check_kept(self, intent: Roll, written_at_s: float) -> None:
        """If we slept just before the Delta commit, look whether the files are still there."""
        if not self._expired(written_at_s):
            return
        for file in (file for part in intent.parts for file in part.files):
            try:
                self.store.head(file.key)
            except ObjectNotFound:
                raise Corruption(
                    f"version {self.snapshot.version} of the table of {self.topic_name} names "
                    f"{file.key}, which was cleaned up while this broker slept; restore the "
                    "table's log from before that version"
                ) from None

    def _result(
        self, parts: Sequence[RollPart], intent: Roll, dropped: dict[int, str]
    ) -> RollResult:
        snapshot = self.snapshot
        added = {part.partition: part for part in intent.parts}
        rolled: dict[int, int] = {}
        for part in parts:
            number = part.partition
            if number in dropped:
                continue
            # A part that was dropped in favour of an earlier attempt of our own is rolled too.
            if snapshot.epoch(number) == part.epoch:
                rolled[number] = snapshot.off(number)
            elif number in added:
                rolled[number] = added[number].end
            else:
                dropped[number] = intent.dropped.get(number, "the partition was taken over")
        files = tuple(file for part in intent.parts for file in part.files)
        return RollResult(snapshot.version, rolled, dropped, files)


def _check_disjoint(
    where: str, partition: int, batches: Sequence[StoredBatch], lost: RangeSet
) -> None:
    """Batches ascend, do not overlap, and hold no offset that is recorded as lost."""
    at = 0
    for batch in batches:
        span = OffsetRange(batch.base_offset, batch.end_offset)
        if batch.base_offset < at or next(lost.within(span.start, span.end), None) is not None:
            raise Corruption(
                f"the batch at offsets {span} of partition {partition} of {where} overlaps "
                "another or a lost range; nothing was committed. Stop the broker and keep its "
                "data directory: `danube journal dump` shows what is there"
            )
        at = batch.end_offset


def _file_info(table: str, path: str, partition: int, written: WrittenFile) -> FileInfo:
    return FileInfo(
        path=path,
        key=f"{table}/{path}",
        partition=partition,
        start=written.start,
        end=written.end,
        rows=written.end - written.start,
        size_bytes=written.size_bytes,
        min_timestamp_us=written.min_timestamp_us,
        max_timestamp_us=written.max_timestamp_us,
        min_append_time_us=written.min_append_time_us,
        max_append_time_us=written.max_append_time_us,
        crc32c=written.crc32c,
    )
