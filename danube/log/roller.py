"""The roller: turns the journal's tail into Parquet and commits it to the topics' tables.

One Delta commit carries all partitions of a topic that this broker owns. Triggers are the age of
the oldest un-rolled message, bytes, and orders from outside (shutdown, administration). With many
topics to roll the age grows, so that the rate of Delta commits stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from danube.core import telemetry
from danube.core.errors import DanubeError, ForeignCommit, OwnershipLost
from danube.core.frames import Frame, decode_frame, read_stored
from danube.journal.journal import Journal
from danube.lake.snapshot import LostRange
from danube.lake.table import RollPart, RollResult, StoredBatch, TopicTable
from danube.log.context import LogContext
from danube.log.extents import Extent
from danube.log.state import encode
from danube.log.topic import Owned, TopicLog

LOG = telemetry.get_logger(__name__)
ROLLED_MESSAGES = telemetry.counter("rolled_messages", "Messages rolled into tables.")
ROLLED_BYTES = telemetry.counter("rolled_bytes", "Journal bytes rolled into tables.")
ROLLS = telemetry.counter("rolls", "Rolls, by outcome.", ("outcome",))
ROLL_SECONDS = telemetry.histogram("roll_seconds", "Seconds per roll.")

TICK_S = 0.1
"""How often triggers are looked at; rolls by bytes may be late by this much."""


class Roller:
    """Rolls dirty topics, a bounded number at a time."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._dirty: dict[TopicLog, float] = {}
        self._slots = asyncio.Semaphore(context.settings.roll_thread_count)
        self._tasks: set[asyncio.Task[None]] = set()

    def touch(self, topic: TopicLog) -> None:
        """Note that a topic has durable messages that are not in its table."""
        if topic not in self._dirty:
            self._dirty[topic] = self._context.clock.monotonic_s()

    def forget(self, topic: TopicLog) -> None:
        """The topic is gone."""
        self._dirty.pop(topic, None)

    async def run(self) -> None:
        """Look at the triggers for ever."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._start_due()
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_due(self) -> None:
        now, settings = self._context.clock.monotonic_s(), self._context.settings
        age_s = max(settings.roll_age_s, len(self._dirty) / settings.max_delta_commits_per_s)
        for topic, since in list(self._dirty.items()):
            if topic.rolling.locked() or self._slots.locked():
                continue
            if now - since >= age_s or unrolled_bytes(topic) >= settings.roll_bytes:
                del self._dirty[topic]
                task = asyncio.create_task(self._roll_quietly(topic))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _roll_quietly(self, topic: TopicLog) -> None:
        """Roll one topic; a failure is logged, counted and tried again, never hidden for ever."""
        try:
            await self.roll(topic)
        except ForeignCommit as error:
            LOG.error("foreign commit", topic=str(topic.record.name), error=str(error))
        except Exception as error:
            # Whatever it is, the other topics roll on, and this one is tried again.
            ROLLS.labels("failed").inc()
            expected = isinstance(error, (DanubeError, OSError))
            LOG.warning(
                "roll failed",
                topic=str(topic.record.name),
                error=str(error),
                exc_info=not expected,
            )
            self.touch(topic)

    async def roll(self, topic: TopicLog) -> int:
        """Roll everything of a topic that is durable now; returns how many messages.

        Raises:
            ForeignCommit: somebody else wrote to the table.
            OwnershipLost: another broker has fenced this one.
        """
        messages = 0
        async with topic.rolling, self._slots:
            targets = {n: o.log.durable_offset for n, o in topic.partitions.items()}
            while work := self._collect(topic, targets):
                with ROLL_SECONDS.time():
                    messages += await self._roll_or_refuse(topic, work)
        if unrolled_bytes(topic):
            self.touch(topic)
        return messages

    def _collect(
        self, topic: TopicLog, targets: dict[int, int]
    ) -> list[tuple[Owned, list[Extent], list[LostRange]]]:
        """What the next Delta commit takes: about ``roll_bytes`` over all partitions."""
        room = self._context.settings.roll_bytes
        share = max(room // max(len(targets), 1), 1)
        work: list[tuple[Owned, list[Extent], list[LostRange]]] = []
        for number, target in targets.items():
            owned = topic.partitions.get(number)
            if owned is None or owned.log.state.damaged or owned.log.fenced:
                continue
            taken: list[Extent] = []
            size = 0
            for extent in owned.log.state.extents.unrolled(owned.log.rolled_offset):
                if extent.end > target or (taken and size + extent.bytes > share):
                    break
                taken.append(extent)
                size += extent.bytes
            if taken:
                lost = [LostRange(x.start, x.end, x.kind) for x in owned.log.state.lost]
                work.append((owned, taken, lost))
        return work

    async def _roll_or_refuse(
        self, topic: TopicLog, work: list[tuple[Owned, list[Extent], list[LostRange]]]
    ) -> int:
        """A table that somebody else wrote to stops its topic, whoever asked for the roll."""
        try:
            return await self._roll_once(topic, work)
        except ForeignCommit as error:
            topic.refuse(error, fenced=True)
            raise

    async def _roll_once(
        self, topic: TopicLog, work: list[tuple[Owned, list[Extent], list[LostRange]]]
    ) -> int:
        table = await topic.ensure_table(work[0][0].log.claim)
        await self._fence_new(table, work)
        result = await self._context.workers.lake(_roll, self._context.journal, table, work)
        self._settle(topic, work, result)
        counted = [e for o, taken, _ in work for e in taken if e.end <= o.log.rolled_offset]
        ROLLED_MESSAGES.inc(sum(extent.count for extent in counted))
        ROLLED_BYTES.inc(sum(extent.bytes for extent in counted))
        ROLLS.labels("committed").inc()
        return sum(extent.count for extent in counted)

    async def _fence_new(
        self, table: TopicTable, work: list[tuple[Owned, list[Extent], list[LostRange]]]
    ) -> None:
        """Partitions claimed before the table existed leave their epoch in it before rolling."""
        epochs = {
            owned.log.partition.partition: owned.log.claim.epoch
            for owned, _, _ in work
            if table.snapshot.epoch(owned.log.partition.partition) < owned.log.claim.epoch
        }
        if epochs:
            await self._context.workers.lake(table.fence, epochs, {}, None)

    def _settle(
        self,
        topic: TopicLog,
        work: list[tuple[Owned, list[Extent], list[LostRange]]],
        result: RollResult,
    ) -> None:
        for owned, _, _ in work:
            number = owned.log.partition.partition
            if number in result.dropped:
                owned.log.refuse(
                    OwnershipLost(
                        f"{topic.record.name} partition {number}: {result.dropped[number]}; "
                        "look its owner up again"
                    ),
                    fenced=True,
                )
                continue
            off = result.rolled[number]
            topic.rolled(number, off)
            # Only a hint: the table's off is the truth, so nobody waits for this frame.
            entry = owned.log.state_entry(encode("rolled", o=off))
            self._context.writer.submit([entry], lambda _: None)


def unrolled_bytes(topic: TopicLog) -> int:
    """Journal bytes of a topic that are durable and not in its table."""
    return sum(owned.log.unrolled_bytes() for owned in topic.partitions.values())


def _roll(
    journal: Journal,
    table: TopicTable,
    work: Sequence[tuple[Owned, list[Extent], list[LostRange]]],
) -> RollResult:
    """Runs in a lake thread: fetch, decode, write, commit."""
    parts = [
        RollPart(
            partition=owned.log.partition.partition,
            epoch=owned.log.claim.epoch,
            start=owned.log.rolled_offset,
            end=taken[-1].end,
            batches=[_stored(journal, extent) for extent in taken],
            lost=lost,
        )
        for owned, taken, lost in work
    ]
    return table.roll(parts)


def _stored(journal: Journal, extent: Extent) -> StoredBatch:
    return StoredBatch(extent.base, extent.append_time_us, decode_frame(_frame(journal, extent)))


def _frame(journal: Journal, extent: Extent) -> Frame:
    frame = extent.frame
    if frame is not None:
        return frame
    if extent.position is None:
        raise AssertionError(f"extent at {extent.base} was rolled while it was being rolled")
    stored = journal.read(extent.position)
    return read_stored(stored.header, stored.body)
