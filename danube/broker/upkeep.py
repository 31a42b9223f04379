"""Upkeep of this broker's tables on a schedule, and the proof that log and table agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from danube.broker.topics import Topics, all_topics
from danube.core import telemetry
from danube.core.errors import DanubeError, ForeignCommit
from danube.core.frames import decode_frame
from danube.core.limits import MIB
from danube.log.engine import LogEngine
from danube.log.topic import TopicLog
from danube.metadata.catalog import TopicRecord
from danube.upkeep.cleaning import remove_deleted_table
from danube.upkeep.retention import RetentionPolicy
from danube.upkeep.runner import TableUpkeep, Upkeep
from danube.upkeep.settings import UpkeepSettings
from danube.upkeep.verify import VerifyReport, verify_table
from danube.wire._generated import DanubeBatch_pb2 as pb

LOG = telemetry.get_logger(__name__)
PERIOD_S = 15.0
"""How often tables are looked at."""

READ_BYTES = 8 * MIB


class BrokerUpkeep:
    """Runs retention, Delta checkpoints and clean-up over the tables this broker owns."""

    def __init__(self, engine: LogEngine, topics: Topics, settings: UpkeepSettings) -> None:
        self._engine = engine
        self._topics = topics
        self._settings = settings
        self._upkeep = Upkeep(settings, engine.context.clock)

    async def run(self) -> None:
        """Look after every table for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.run_once()
            except Exception as error:
                # Whatever it is, between the tables, too: the next pass may find it healed.
                expected = isinstance(error, (DanubeError, OSError))
                LOG.warning("upkeep pass failed", error=str(error), exc_info=not expected)

    async def run_once(self) -> None:
        """One pass over all tables; one that fails does not stop the others."""
        async for record in all_topics(self._engine.context.catalog):
            try:
                await self._look_after(record)
            except ForeignCommit as error:
                LOG.error("foreign commit", topic=str(record.name), error=str(error))
                (await self._engine.topic(record)).refuse(error, fenced=True)
            except (DanubeError, OSError) as error:
                LOG.warning("upkeep failed", topic=str(record.name), error=str(error))
        await self._remove_deleted()

    async def _look_after(self, record: TopicRecord) -> None:
        policy = RetentionPolicy(
            max_age_ms=record.retention_ms,
            max_bytes=record.retention_bytes,
            until_acked=record.retention_until_acked,
        )
        topic = self._engine.topics.get(str(record.topic_id))
        if topic is None or not topic.partitions:
            if policy == RetentionPolicy() or not (
                await self._engine.context.catalog.table(record.topic_id)
            ):
                return
            for number in range(record.partitions):
                await self._engine.partition(record, number)
            topic = await self._engine.topic(record)
        if topic.table is not None:
            await self._keep(topic, policy)

    async def _keep(self, topic: TopicLog, policy: RetentionPolicy) -> None:
        assert topic.table is not None
        acknowledged, spark = await self._needs(topic)
        job = TableUpkeep(
            table=topic.table,
            policy=policy,
            epochs=lambda: {n: o.log.claim.epoch for n, o in topic.partitions.items()},
            acknowledged=acknowledged.get,
            spark_floor=spark.get,
        )
        report = await self._engine.context.workers.lake(self._upkeep.run, job)
        for number, start in report.starts.items():
            topic.trimmed(number, start)

    async def _needs(self, topic: TopicLog) -> tuple[dict[int, int], dict[int, int]]:
        """Per partition: acknowledged by every subscription, and needed by Spark queries."""
        catalog = self._engine.context.catalog
        kinds = {
            item.name: item.type for item in await catalog.list_subscriptions(topic.record.topic_id)
        }
        acknowledged: dict[int, int] = {}
        spark: dict[int, int] = {}
        for number, owned in topic.partitions.items():
            for name, cursor in owned.log.state.cursors.items():
                if name not in kinds:
                    # Left by a crash between a subscription's record and its cursors.
                    continue
                known = spark if kinds[name] == "spark" else acknowledged
                known[number] = min(known.get(number, cursor.offset), cursor.offset)
        return acknowledged, spark

    async def _remove_deleted(self) -> None:
        """Remove the objects of topics that were deleted long enough ago."""
        context = self._engine.context
        for stone in await context.catalog.deleted_topics():
            gone = await context.workers.lake(
                remove_deleted_table,
                context.store,
                stone.topic_id,
                stone.deleted_us,
                now_us=context.clock.now_us(),
                delay_hours=self._settings.deleted_topic_hours,
            )
            if gone:
                await context.catalog.forget_deleted(stone.topic_id)
                self._upkeep.forget(stone.topic_id)

    # -- verify ----------------------------------------------------------------------------

    async def verify(self, name: str) -> AsyncIterator[pb.VerifyResponse]:
        """Prove a topic: roll what is durable, read the table in full, then the tail.

        The last message is ``finished`` with the number of messages checked.
        """
        record = await self._topics.record(name)
        for number in range(record.partitions):
            await self._topics.open(name, str(record.topic_id), number)
        topic = await self._engine.topic(record)
        await self._engine.roller.roll(topic)
        messages = 0
        if topic.table is not None:
            report = await self._verify_table(topic)
            for problem in report.problems:
                yield pb.VerifyResponse(message=problem, finding=True)
            messages = sum(item.rows for item in report.partitions.values())
            yield pb.VerifyResponse(
                message=f"table version {report.version}: {messages} messages", messages=messages
            )
        for number in topic.partitions:
            try:
                messages += await self._verify_tail(topic, number)
            except DanubeError as error:
                yield pb.VerifyResponse(message=f"partition {number}: {error}", finding=True)
        yield pb.VerifyResponse(message="finished", finished=True, messages=messages)

    async def _verify_table(self, topic: TopicLog) -> VerifyReport:
        assert topic.table is not None
        durable = {n: owned.log.durable_offset for n, owned in topic.partitions.items()}
        return await self._engine.context.workers.read(
            verify_table, topic.table.log, durable=durable
        )

    async def _verify_tail(self, topic: TopicLog, number: int) -> int:
        """Read what is not in the table yet, decoding every frame."""
        log = topic.owned(number).log
        at, end = max(log.rolled_offset, log.log_start), log.durable_offset
        messages = 0
        while at < end:
            result = await topic.read(number, at, end=end, max_bytes=READ_BYTES)
            for item in result.frames:
                decode_frame(item.frame)
                messages += len(item.span)
            at = result.next_offset
        return messages
