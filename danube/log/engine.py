"""The log engine: one per broker process. Journal, tables and metadata come together here.

It recovers the journal, opens partitions when they are first needed (a restart with ten thousand
topics opens no table), and runs the roller, journal checkpoints and the outcome of pins in the
background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from danube.core import telemetry
from danube.core.clock import Clock, IdSource, SystemClock, SystemIds
from danube.core.errors import DanubeError, TopicNotFound, Unavailable
from danube.core.names import PartitionId
from danube.core.stores import MetadataStore, ObjectStore
from danube.journal.envelope import Entry, EntryKind
from danube.journal.journal import Journal
from danube.lake.settings import LakeSettings
from danube.log.cache import TailCache
from danube.log.checkpoints import JournalCheckpoints
from danube.log.context import LogContext, StagedBudget
from danube.log.decisions import SinkCoordinator
from danube.log.owner import Owners
from danube.log.recovery import Recovered, replay
from danube.log.resolver import PinResolver
from danube.log.roller import Roller
from danube.log.settings import LogSettings
from danube.log.state import PartitionState, encode
from danube.log.topic import Owned, TopicLog
from danube.log.workers import ThreadWorkers, Workers
from danube.log.writing import JournalWriter, state_entry
from danube.metadata.catalog import Catalog, TopicRecord

LOG = telemetry.get_logger(__name__)
PROVED_INCARNATIONS = 1_000
"""How many of its own earlier incarnations a journal can vouch for."""

ADOPT_AGAIN_S = 5.0
"""Pause before partitions that could not be opened are tried again."""

ADOPT_AT_ONCE = 16
"""Partitions with unfinished business that are opened at the same time after a start."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of the rooms below."""

    log: LogSettings
    lake: LakeSettings


class LogEngine:
    """Every topic log of one broker."""

    def __init__(self, context: LogContext, recovered: Recovered, broker_id: str) -> None:
        self.context = context
        self.broker_id = broker_id
        self.roller = Roller(context)
        self.resolver = PinResolver(context, self)
        self.checkpoints = JournalCheckpoints(context, self)
        self.topics: dict[str, TopicLog] = {}
        self._states = recovered.states
        self._proved = recovered.incarnations
        self._locks: dict[PartitionId, asyncio.Lock] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = asyncio.Event()

    # -- life ------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        journal: Journal,
        *,
        store: ObjectStore,
        metadata: MetadataStore,
        broker_id: str,
        settings: EngineSettings,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        workers: Workers | None = None,
    ) -> LogEngine:
        """Recover the journal and start serving.

        Raises:
            Corruption: the journal is damaged; the message names file, byte and what to run.
        """
        clock, ids = clock or SystemClock(), ids or SystemIds()
        workers = workers or ThreadWorkers(
            lake_threads=settings.log.roll_thread_count, read_threads=settings.log.read_thread_count
        )
        recovered = await workers.lake(lambda: replay(journal.recover()))
        journal.forget(recovered.unneeded)
        journal.start()
        owners = Owners()
        context = LogContext(
            journal=journal,
            writer=JournalWriter(journal, settings.log.max_in_flight_bytes),
            catalog=Catalog(metadata, clock, ids),
            store=store,
            settings=settings.log,
            lake_settings=settings.lake,
            clock=clock,
            ids=ids,
            workers=workers,
            cache=TailCache(settings.log.tail_cache_bytes),
            staged=StagedBudget(settings.log.staged_bytes, _staged_bytes(recovered)),
            sinks=SinkCoordinator(metadata, owners.owner_of, clock),
        )
        engine = cls(context, recovered, broker_id)
        owners.engine = engine
        await engine._begin(recovered)
        return engine

    async def _begin(self, recovered: Recovered) -> None:
        journal = self.context.journal
        if journal.previous is not None and journal.previous.incarnation not in self._proved:
            self._proved.append(journal.previous.incarnation)
        del self._proved[:-PROVED_INCARNATIONS]
        await self.context.writer.submit_future([self.incarnations_entry(EntryKind.STATE)])
        LOG.info("journal recovered", entries=recovered.entries, partitions=len(self._states))
        self._tasks = [
            asyncio.create_task(self.roller.run(), name="roller"),
            asyncio.create_task(self._adopt(), name="adopt"),
            asyncio.create_task(self.checkpoints.run(), name="journal-checkpoints"),
            asyncio.create_task(self.resolver.run(), name="pin-resolver"),
        ]

    async def stop(self) -> None:
        """Stop appends, roll what is durable, release every claim, close the journal.

        What cannot be rolled stays in the journal, which is just as durable.
        """
        self.refuse_appends()
        await self._cancel_tasks()
        try:
            for topic in list(self.topics.values()):
                await self._stop_topic(topic)
            await self.checkpoints.write()
            await self._release()
        except DanubeError as error:
            # A restart then recovers as after a crash; only the lock must not stay.
            LOG.error("not stopped in order", error=str(error))
        finally:
            await asyncio.to_thread(self.context.workers.close)
            await asyncio.to_thread(self.context.journal.close)

    async def abandon(self) -> None:
        """Close without rolling or releasing, as after a crash; what was synced stays."""
        self.refuse_appends()
        await self._cancel_tasks()
        await asyncio.to_thread(self.context.workers.close)
        await asyncio.to_thread(self.context.journal.close)

    def refuse_appends(self) -> None:
        """Answer appends with UNAVAILABLE from now on; what is under way still lands."""
        self.stopping.set()
        reason = Unavailable("the broker is stopping; look the topic's owner up again")
        for topic in self.topics.values():
            topic.refuse(reason)

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop_topic(self, topic: TopicLog) -> None:
        for owned in topic.partitions.values():
            await owned.log.drained()
        try:
            await self.roller.roll(topic)
        except Exception as error:
            # Whatever it is: the other topics roll, and what did not stays in the journal.
            expected = isinstance(error, (DanubeError, OSError))
            name = str(topic.record.name)
            LOG.warning("final roll failed", topic=name, error=str(error), exc_info=not expected)

    async def _release(self) -> None:
        """Write the releases to the journal first: they prove the tail to whoever comes next."""
        logs = [o.log for topic in self.topics.values() for o in topic.partitions.values()]
        if not logs:
            return
        entries = [log.state_entry(encode("release", end=log.durable_offset)) for log in logs]
        await self.context.writer.submit_future(entries)
        for log in logs:
            try:
                await self.context.catalog.release(log.claim, self.context.journal.identity)
            except DanubeError as error:
                LOG.warning("release failed", partition=str(log.partition), error=str(error))

    # -- topics and partitions -------------------------------------------------------------

    async def topic(self, record: TopicRecord) -> TopicLog:
        """The topic's log here; costs nothing until a partition is opened."""
        key = str(record.topic_id)
        topic = self.topics.get(key)
        if topic is None:
            topic = self.topics[key] = TopicLog(self.context, record)
        return topic

    async def partition(self, record: TopicRecord, number: int) -> Owned:
        """An open partition, claimed and fenced on first use.

        Raises:
            TopicNotFound: the topic has no such partition.
            Unavailable: the broker is stopping.
            Corruption: the partition's log is damaged.
        """
        topic = await self.topic(record)
        found = topic.partitions.get(number)
        if found is not None:
            return found
        if not 0 <= number < record.partitions:
            raise TopicNotFound(
                f"{record.name} has no partition {number}, only {record.partitions}"
            )
        if self.stopping.is_set():
            raise Unavailable("the broker is stopping; look the topic's owner up again")
        partition = PartitionId(record.topic_id, number)
        async with self._locks.setdefault(partition, asyncio.Lock()):
            found = topic.partitions.get(number)
            return found if found is not None else await self._open(topic, partition)

    async def _open(self, topic: TopicLog, partition: PartitionId) -> Owned:
        catalog, identity = self.context.catalog, self.context.journal.identity
        # Not the last holder of the claim: that may be ourselves, from a take-over that failed
        # before it had recorded what was lost.
        reserved_by = await catalog.ceiling_holder(partition)
        proved = reserved_by is None or self._proves(reserved_by)
        claim = await catalog.claim(partition, self.broker_id, identity.incarnation)
        state = self._states.get(partition) or PartitionState(partition)
        owned = await topic.open_partition(claim, state, proved=proved, number=partition.partition)
        self._states[partition] = owned.log.state
        await owned.sinks.drop(owned.sinks.broken_sets())
        owned.log.on_durable(lambda: self.roller.touch(topic))
        if owned.log.unrolled_bytes():
            self.roller.touch(topic)
        return owned

    def _proves(self, incarnation: str) -> bool:
        """Whether this journal holds everything that incarnation acknowledged."""
        return incarnation == self.context.journal.identity.incarnation or (
            incarnation in self._proved
        )

    async def _adopt(self) -> None:
        """Open what the journal left unfinished: un-rolled messages, staged sets, pins.

        Partitions whose table or metadata is away for a while are tried again: until they are
        open, they keep their segments of the journal.
        """
        slots = asyncio.Semaphore(ADOPT_AT_ONCE)

        async def adopt(partition: PartitionId) -> bool:
            async with slots:
                return await self._adopt_one(partition)

        waiting = [p for p, state in self._states.items() if _unfinished(state)]
        while waiting:
            done = await asyncio.gather(*(adopt(partition) for partition in waiting))
            waiting = [p for p, adopted in zip(waiting, done, strict=True) if not adopted]
            if waiting:
                await asyncio.sleep(ADOPT_AGAIN_S)

    async def _adopt_one(self, partition: PartitionId) -> bool:
        """Open one partition; False when that may work later."""
        try:
            record = await self.context.catalog.topic_by_id(partition.topic_id)
            if record is None:
                await self._forget_deleted(partition)
            else:
                await self.partition(record, partition.partition)
        except (Unavailable, OSError) as error:
            LOG.warning("partition not opened yet", partition=str(partition), error=str(error))
            return self.stopping.is_set()
        except DanubeError as error:
            LOG.error("partition not opened", partition=str(partition), error=str(error))
        return True

    async def _forget_deleted(self, partition: PartitionId) -> None:
        """Drop what the journal holds of a topic that is not there, if it was really deleted."""
        if not await self.context.catalog.was_deleted(partition.topic_id):
            LOG.error(
                "journal holds a topic that the metadata never knew; it is kept",
                partition=str(partition),
            )
            return
        await self.forget_partition(partition)

    async def delete_topic(self, record: TopicRecord) -> None:
        """Delete a topic: its name is free at once, its objects go later (``danube/upkeep``)."""
        await self.context.catalog.delete_topic(record)
        topic = self.topics.pop(str(record.topic_id), None)
        if topic is not None:
            topic.refuse(TopicNotFound(f"{record.name} was deleted"), fenced=True)
            for owned in topic.partitions.values():
                await owned.log.drained()
            # A roll under way still reads the journal.
            async with topic.rolling:
                self.roller.forget(topic)
        for number in range(record.partitions):
            await self.forget_partition(PartitionId(record.topic_id, number))

    async def forget_partition(self, partition: PartitionId) -> None:
        """Drop a deleted topic's partition from the journal."""
        state = self._states.pop(partition, None)
        self._locks.pop(partition, None)
        if state is None:
            return
        # Taken out before the first wait: streams that still run must not free it a second time.
        freed = [e.position for e in state.extents if e.position is not None]
        for extent in state.extents:
            extent.position = None
        sets = state.staging.take_all()
        raw = partition.topic_id.raw
        entry = state_entry(raw, partition.partition, 0, encode("gone"))
        await self.context.writer.submit_future([entry])
        for staged in sets:
            freed += [body.position for body in staged.bodies]
            self.context.staged.give_back(staged.bytes)
        self.context.journal.forget(freed)

    # -- journal checkpoints ---------------------------------------------------------------

    def checkpoint_entries(self) -> Iterator[Entry]:
        """Everything a journal checkpoint must carry."""
        yield self.incarnations_entry(EntryKind.CHECKPOINT_STATE)
        now_us, ttl_s = self.context.clock.now_us(), self.context.settings.producer_ttl_s
        for partition, state in list(self._states.items()):
            state.producers.expire(now_us=now_us, ttl_s=ttl_s)
            if not state.is_empty:
                yield Entry(
                    kind=EntryKind.CHECKPOINT_STATE,
                    body=state.to_checkpoint(),
                    topic_id=partition.topic_id.raw,
                    partition=partition.partition,
                    essential=True,
                )

    def incarnations_entry(self, kind: EntryKind) -> Entry:
        """Which incarnations this journal vouches for: earlier ones, and this one from now on.

        A repair in between opens the journal as well, and must not break the chain.
        """
        own = self.context.journal.identity.incarnation
        body = encode("incarnations", ids=[*self._proved, own])
        return Entry(kind=kind, body=body, essential=True)

    def open_partitions(self) -> Iterator[tuple[TopicLog, Owned]]:
        """Every open partition."""
        for topic in list(self.topics.values()):
            for owned in list(topic.partitions.values()):
                yield topic, owned

    def describe(self) -> dict[str, Any]:
        """A few numbers for metrics and people."""
        return {
            "partitions": len(self._states),
            "open_partitions": sum(1 for _ in self.open_partitions()),
            "tail_cache_bytes": self.context.cache.held_bytes,
            "staged_bytes": self.context.staged.used_bytes,
            "in_flight_bytes": self.context.writer.in_flight_bytes,
        }


def _unfinished(state: PartitionState) -> bool:
    return bool(len(state.extents) or state.staging.sets or state.staging.pins or state.lost)


def _staged_bytes(recovered: Recovered) -> int:
    return sum(state.staging.bytes for state in recovered.states.values())
