"""One topic at this broker: its table, the partitions it owns, and how Spark should read it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from danube.core import telemetry
from danube.core.errors import Corruption, DanubeError, NotFound, OffsetOutOfRange
from danube.core.names import PartitionId
from danube.core.offsets import OffsetRange
from danube.lake.snapshot import FileInfo, LostRange
from danube.lake.table import StaleEpoch, TopicTable
from danube.log.context import LogContext
from danube.log.partition import PartitionLog
from danube.log.reading import ReadResult, read
from danube.log.sinks import PartitionSinks
from danube.log.state import PartitionState, PendingLoss
from danube.metadata.catalog import Claim, TopicRecord

LOG = telemetry.get_logger(__name__)
LOST = telemetry.counter(
    "lost_messages", "Offsets recorded as lost that may have been acknowledged.", ("kind",)
)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """How to read one range: files first, then frames from the broker from ``tail_start`` on."""

    files: list[tuple[FileInfo, OffsetRange]] = field(default_factory=list)
    tail: OffsetRange | None = None
    lost: list[LostRange] = field(default_factory=list)
    table_version: int = -1


@dataclass(slots=True)
class Owned:
    """A partition this broker owns, with its sink side."""

    log: PartitionLog
    sinks: PartitionSinks


class TopicLog:
    """Journal and table of one topic behind append, read, plan, stage and commit."""

    def __init__(self, context: LogContext, record: TopicRecord) -> None:
        self.context = context
        self.record = record
        self.table: TopicTable | None = None
        self.partitions: dict[int, Owned] = {}
        self.rolling = asyncio.Lock()
        self._opening = asyncio.Lock()

    # -- ownership -------------------------------------------------------------------------

    async def open_partition(
        self, claim: Claim, state: PartitionState, *, proved: bool, number: int
    ) -> Owned:
        """Take over a claimed partition: open the table, fence it, then read its ``off``.

        Args:
            claim: this broker's claim, just made.
            state: what the journal knows of the partition.
            proved: whether the journal provably holds the newest end of the log.
            number: the partition.
        """
        async with self._opening:
            if number in self.partitions:
                return self.partitions[number]
            await self._open_table()
            off = self._table_off(number)
            # Ranges recorded as lost are taken, even while messages below them are not rolled.
            state.next_offset = max(state.next_offset, self._lost_end(number))
            # A table ahead of the journal shows that the journal is an old copy: proves nothing.
            proved = proved and off <= state.next_offset
            self.context.journal.forget(state.rolled_to(off))
            lost = self._losses(state, off, number)
            if not proved:
                lost += await self._unproved(claim, max(off, state.next_offset))
            end = max([off, state.next_offset, *(item.end for item in lost)])
            claim = await self._fence(claim, number, lost, self._skip(state, off, end))
            state.next_offset = end
            state.lost.clear()
            self.context.journal.forget(state.rolled_to(self._table_off(number)))
            owned = self._own(claim, state, number)
            self.partitions[number] = owned
            return owned

    def _own(self, claim: Claim, state: PartitionState, number: int) -> Owned:
        snapshot = self.table.snapshot if self.table is not None else None
        log = PartitionLog(
            self.context,
            self.record,
            claim,
            state,
            log_start=snapshot.start(number) if snapshot else 0,
            lost=[OffsetRange(x.start, x.end) for x in snapshot.lost(number)] if snapshot else [],
        )
        return Owned(log, PartitionSinks(log))

    async def _open_table(self) -> None:
        if self.table is not None or not await self.context.catalog.table(self.record.topic_id):
            return
        table = self._make_table()
        if not await self.context.workers.lake(table.exists):
            raise Corruption(
                f"the catalog says {self.record.name} has a table at {table.uri}, but there is "
                "none; restore it, or delete the topic"
            )
        await self.context.workers.lake(table.refresh)
        self.table = table

    def _make_table(self) -> TopicTable:
        context = self.context
        return TopicTable(
            context.store,
            self.record.topic_id,
            str(self.record.name),
            settings=context.lake_settings,
            clock=context.clock,
            ids=context.ids,
        )

    async def ensure_table(self, claim: Claim) -> TopicTable:
        """The table, created and recorded in the catalog on first need.

        The record is written in a transaction that checks the claim, and nothing is committed
        to the table before it: a table without a record is empty and needs no fence, a record
        without a table is an error.
        """
        if self.table is None:
            table = self._make_table()
            if not await self.context.workers.lake(table.exists):
                await self.context.workers.lake(table.create)
            await self.context.catalog.record_table(claim)
            await self.context.workers.lake(table.refresh)
            self.table = table
        return self.table

    def _table_off(self, number: int) -> int:
        return self.table.snapshot.off(number) if self.table is not None else 0

    def _lost_end(self, number: int) -> int:
        known = self.table.snapshot.lost(number) if self.table is not None else ()
        return max((item.end for item in known), default=0)

    def _losses(self, state: PartitionState, off: int, number: int) -> list[LostRange]:
        """Offsets that neither table nor journal holds and no record explains yet."""
        explained = {(loss.start, loss.end): loss.kind for loss in state.lost}
        known = self.table.snapshot.lost(number) if self.table is not None else ()
        found: list[LostRange] = []
        at = off
        for extent in [*state.extents.unrolled(off), None]:
            base = extent.base if extent is not None else max(state.next_offset, at)
            if base > at and not any(k.start <= at and base <= k.end for k in known):
                found.append(LostRange(at, base, explained.get((at, base), "other")))
            at = extent.end if extent is not None else base
        return found

    async def _unproved(self, claim: Claim, end: int) -> list[LostRange]:
        ceiling = await self.context.catalog.ceiling(claim.partition)
        return [LostRange(end, ceiling, "unproved")] if ceiling > end else []

    def _skip(self, state: PartitionState, off: int, end: int) -> int | None:
        """The new ``off`` if everything between the table's and ``end`` is lost."""
        return end if end > off and not state.extents.unrolled(off) else None

    async def _fence(
        self, claim: Claim, number: int, lost: list[LostRange], off: int | None
    ) -> Claim:
        """Fence the table with the claim's epoch, raising the epoch if the table's is as high."""
        for item in lost:
            LOST.labels(item.kind).inc(item.end - item.start)
            LOG.warning(
                "lost range",
                topic=str(self.record.name),
                partition=number,
                start=item.start,
                end=item.end,
                kind=item.kind,
            )
        if self.table is None and not lost:
            return claim
        table = await self.ensure_table(claim)
        while True:
            try:
                await self.context.workers.lake(
                    table.fence,
                    {number: claim.epoch},
                    {number: lost} if lost else {},
                    {number: off} if off is not None else None,
                )
                return claim
            except StaleEpoch as stale:
                claim = await self.context.catalog.raise_epoch(claim, stale.found + 1)

    def owned(self, number: int) -> Owned:
        """The partition, if it is open here.

        Raises:
            NotFound: it is not.
        """
        owned = self.partitions.get(number)
        if owned is None:
            raise NotFound(f"partition {number} of {self.record.name} is not open here")
        return owned

    def refuse(self, reason: DanubeError, *, fenced: bool = False) -> None:
        """Stop appends on every partition."""
        for owned in self.partitions.values():
            owned.log.refuse(reason, fenced=fenced)

    # -- reading ---------------------------------------------------------------------------

    async def read(
        self, number: int, start: int, *, end: int | None = None, max_bytes: int
    ) -> ReadResult:
        """See ``danube.log.reading.read``."""
        return await read(self, self.owned(number).log, start, end=end, max_bytes=max_bytes)

    def plan(self, number: int, start: int, end: int) -> PlannedRange:
        """Files for what is rolled, the broker for the rest, and what of it is lost.

        Raises:
            OffsetOutOfRange: ``end`` is above the durable offset.
        """
        log = self.owned(number).log
        if end > log.durable_offset:
            raise OffsetOutOfRange(
                f"offset {end} of {self.record.name} partition {number} is above the durable "
                f"offset {log.durable_offset}; plan up to there"
            )
        snapshot = self.table.snapshot if self.table is not None else None
        if snapshot is not None:
            # Retention may have moved it, and whoever ran it has not told us yet.
            self.trimmed(number, snapshot.start(number))
        lost = [
            LostRange(max(item.start, start), min(item.end, end), item.kind)
            for item in (snapshot.lost(number) if snapshot else ())
            if item.start < end and item.end > start
        ]
        if start < log.log_start:
            lost.insert(0, LostRange(start, min(log.log_start, end), "retention"))
        rolled = min(log.rolled_offset, end)
        files = self._files(number, max(start, log.log_start), rolled)
        tail_start = max(start, log.log_start, log.rolled_offset)
        tail = OffsetRange(tail_start, end) if tail_start < end else None
        return PlannedRange(files, tail, lost, snapshot.version if snapshot else -1)

    def _files(self, number: int, start: int, end: int) -> list[tuple[FileInfo, OffsetRange]]:
        if self.table is None or start >= end:
            return []
        found = self.table.snapshot.files_between(number, start, end)
        return [(f, OffsetRange(max(f.start, start), min(f.end, end))) for f in found]

    # -- rolling ---------------------------------------------------------------------------

    def rolled(self, number: int, off: int) -> None:
        """The table holds everything below ``off`` now: the journal may forget it."""
        log = self.partitions[number].log
        self.context.journal.forget(log.state.rolled_to(off))

    def trimmed(self, number: int, log_start: int) -> None:
        """Retention has removed everything below ``log_start``."""
        log = self.partitions[number].log
        log.log_start = max(log.log_start, log_start)

    def pending_losses(self, number: int) -> Sequence[PendingLoss]:
        """Lost ranges that the next roll must record."""
        return self.partitions[number].log.state.lost

    def partition_id(self, number: int) -> PartitionId:
        """The id of one of this topic's partitions."""
        return PartitionId(self.record.topic_id, number)
