"""All subscriptions of consumers: created, joined, described, reset, deleted."""

from __future__ import annotations

import asyncio
from datetime import datetime

from danube.broker.delivery import Delivery, Port
from danube.broker.settings import DispatchSettings
from danube.broker.topics import Topics
from danube.core.clock import Clock
from danube.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    SubscriptionBusy,
    SubscriptionNotFound,
    TopicNotFound,
    Unavailable,
)
from danube.core.limits import KIB
from danube.core.names import PartitionId
from danube.dispatch.cursor import Cursor
from danube.dispatch.kinds import KINDS, make_subscription
from danube.dispatch.subscription import Limits
from danube.log.partition import PartitionLog
from danube.log.times import offset_for_time
from danube.log.topic import Owned, TopicLog
from danube.metadata.catalog import SubscriptionRecord, TopicRecord
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.translate import StartPosition

MIN_SHARE_BYTES = 256 * KIB
"""A consumer may have this much waiting however many there are: one frame gets through."""


class Subscriptions:
    """The subscriptions of every partition that this broker owns."""

    def __init__(self, topics: Topics, settings: DispatchSettings, clock: Clock) -> None:
        self.topics = topics
        self.settings = settings
        self._clock = clock
        self._live: dict[tuple[PartitionId, str], Delivery] = {}
        self._creating = asyncio.Lock()
        self._consumers = 0
        self._connected = 0
        self._stopping = False

    # -- consumers -------------------------------------------------------------------------

    async def join(
        self, record: TopicRecord, number: int, request: pb.SubscribeOpen
    ) -> tuple[Delivery, Port]:
        """Connect a consumer, creating the subscription when it does not exist.

        Raises:
            FailedPrecondition: the subscription has another type.
            SubscriptionBusy: it is taken.
        """
        if self._stopping:
            raise Unavailable("the broker is stopping; look the topic's owner up again")
        name = translate.subscription_name(request.subscription)
        consumer = translate.consumer_name(request.consumer_name)
        kind = translate.kind_from_proto(request.type)
        _check_kind(kind)
        found = await self._find_or_create(record, name, kind, request)
        if found.type != kind:
            raise FailedPrecondition(
                f"subscription {name!r} of {record.name} is {found.type}, not {kind}; subscribe "
                "with its type or under another name"
            )
        delivery = await self._open(record, number, found)
        self._consumers += 1
        port = Port(self._consumers, consumer)
        delivery.join(port)
        self._connected += 1
        return delivery, port

    def leave(self, partition: PartitionId, delivery: Delivery, port: Port) -> None:
        """A consumer's stream has ended; the last one takes the live state with it."""
        self._connected -= 1
        delivery.leave(port)
        key = (partition, delivery.name)
        if not delivery.ports and self._live.get(key) is delivery:
            del self._live[key]
            delivery.close()

    async def _open(self, record: TopicRecord, number: int, found: SubscriptionRecord) -> Delivery:
        owned = await self.topics.engine.partition(record, number)
        owned.log.check_serving()
        key = (PartitionId(record.topic_id, number), found.name)
        delivery = self._live.get(key)
        if delivery is None:
            cursor = cursor_of(owned.log, found.name)
            limits = Limits(
                max_unacked_messages=self.settings.max_unacked_messages,
                max_acked_ranges=self.settings.max_acked_ranges_count,
                fetch_bytes=self.settings.read_ahead_bytes,
                max_credit_bytes=self.settings.max_credit_bytes,
            )
            machine = make_subscription(found.type, cursor, owned.log.durable_offset, limits)
            topic = await self.topics.engine.topic(record)
            delivery = self._live.setdefault(
                key,
                Delivery(found.name, machine, topic, owned, number, share_bytes=self._share_bytes),
            )
        return delivery

    async def _find_or_create(
        self, record: TopicRecord, name: str, kind: str, request: pb.SubscribeOpen
    ) -> SubscriptionRecord:
        found = await self.topics.engine.context.catalog.subscription(record.topic_id, name)
        if found is None:
            start = translate.start_from_proto(request.start)
            found = await self.create(record, name, kind, start)
        return found

    # -- life of a subscription ------------------------------------------------------------

    async def create(
        self, record: TopicRecord, name: str, kind: str, start: StartPosition
    ) -> SubscriptionRecord:
        """Create a subscription, with a durable cursor on every partition, at one position.

        Raises:
            InvalidRequest: the position is not in the log.
        """
        _check_kind(kind)
        async with self._creating:
            catalog = self.topics.engine.context.catalog
            found = await catalog.subscription(record.topic_id, name)
            if found is not None:
                return found
            for number in range(record.partitions):
                _, topic, owned = await self.topics.open(
                    str(record.name), str(record.topic_id), number
                )
                offset = await resolve(topic, owned.log, number, start)
                await place_cursor(owned.log, name, offset)
            made = SubscriptionRecord(
                topic_id=record.topic_id,
                name=name,
                type=kind,
                created_us=self._clock.now_us(),
                start=str(start),
            )
            await catalog.create_subscription(made)
            return made

    async def reset(
        self, record: TopicRecord, name: str, position: StartPosition, numbers: list[int]
    ) -> None:
        """Put cursors elsewhere, at once also for connected consumers.

        Raises:
            SubscriptionNotFound: no such subscription.
            InvalidRequest: the position is not in the log.
        """
        found = await self._existing(record, name)
        if found.type == "spark":
            raise InvalidRequest(
                f"{name!r} is the cursor of a Spark query, which starts from its checkpoint; start "
                "the query with a new Spark checkpoint and startingOffsets instead"
            )
        for number in numbers:
            owned = await self.topics.engine.partition(record, number)
            topic = await self.topics.engine.topic(record)
            offset = await resolve(topic, owned.log, number, position)
            live = self._live.get((PartitionId(record.topic_id, number), name))
            if live is not None:
                await live.reset(offset)
            else:
                await place_cursor(owned.log, name, offset)

    async def delete(self, record: TopicRecord, name: str) -> None:
        """Delete a subscription that no consumer uses.

        Raises:
            SubscriptionBusy: consumers are connected.
        """
        found = await self._existing(record, name)
        for number in range(record.partitions):
            live = self._live.get((PartitionId(record.topic_id, number), name))
            if live is not None and live.ports:
                names = ", ".join(sorted({port.name for port in live.ports.values()}))
                raise SubscriptionBusy(
                    f"subscription {name!r} of {record.name} has consumers ({names}); stop them "
                    "before deleting it"
                )
        await self.topics.engine.context.catalog.delete_subscription(record.topic_id, found.name)
        for number in range(record.partitions):
            owned = await self.topics.engine.partition(record, number)
            await owned.log.delete_cursor(name)

    async def _existing(self, record: TopicRecord, name: str) -> SubscriptionRecord:
        found = await self.topics.engine.context.catalog.subscription(record.topic_id, name)
        if found is None:
            raise SubscriptionNotFound(
                f"{record.name} has no subscription {name!r}; list them with "
                f"`danube subscriptions list --topic {record.name}`"
            )
        return found

    async def close_topic(self, record: TopicRecord) -> None:
        """The topic is being deleted: tell its consumers."""
        for (partition, _), delivery in list(self._live.items()):
            if partition.topic_id == record.topic_id:
                for port in list(delivery.ports.values()):
                    delivery.disconnect(port, TopicNotFound(f"{record.name} was deleted"))

    async def run(self) -> None:
        """Follow retention: cursors below a log start move up."""
        while True:
            await asyncio.sleep(1.0)
            for (partition, _), delivery in list(self._live.items()):
                topic = self.topics.engine.topics.get(str(partition.topic_id))
                if topic is not None and partition.partition in topic.partitions:
                    delivery.trimmed(topic.partitions[partition.partition].log.log_start)

    async def stop(self) -> None:
        """The broker stops: consumers are told to look for the next owner."""
        self._stopping = True
        for delivery in list(self._live.values()):
            for port in list(delivery.ports.values()):
                delivery.disconnect(port, Unavailable("the broker is stopping; connect again"))

    def _share_bytes(self) -> int:
        """One consumer's share of the memory for deliveries that wait."""
        return max(self.settings.outbox_bytes // max(self.consumer_count(), 1), MIN_SHARE_BYTES)

    # -- facts -----------------------------------------------------------------------------

    def consumer_count(self) -> int:
        """Connected consumers."""
        return self._connected

    async def describe(self, record: TopicRecord, item: SubscriptionRecord) -> pb.SubscriptionInfo:
        """A subscription with its cursors and lag."""
        info = pb.SubscriptionInfo(
            topic=str(record.name),
            subscription=item.name,
            type=translate.kind_to_proto(item.type),
        )
        for number in range(record.partitions):
            owned = await self.topics.engine.partition(record, number)
            topic = await self.topics.engine.topic(record)
            live = self._live.get((PartitionId(record.topic_id, number), item.name))
            info.partitions.append(self._describe(topic, owned, number, item.name, live))
        return info

    def _describe(
        self, topic: TopicLog, owned: Owned, number: int, name: str, live: Delivery | None
    ) -> pb.SubscriptionPartition:
        log = owned.log
        cursor = log.state.cursors.get(name) or Cursor(log.log_start)
        waiting = cursor.unacked(cursor.offset, log.durable_offset)
        lost = sum(len(x) for item in waiting for x in log.lost.within(item.start, item.end))
        lag = sum(len(item) for item in waiting) - lost
        oldest = waiting[0].start if lag else log.durable_offset
        return pb.SubscriptionPartition(
            partition=number,
            generation=cursor.generation,
            cursor=cursor.offset,
            acked_above=cursor.acked.total(),
            lag_messages=lag,
            lag_seconds=lag_seconds(topic, log, number, oldest, self._clock.now_us()),
            consumers=[port.name for port in live.ports.values()] if live else [],
            unacked=live.machine.unacked_messages if live else 0,
        )


def cursor_of(log: PartitionLog, name: str) -> Cursor:
    """The live cursor of a subscription; one whose journal was lost starts at the log's start."""
    cursor = log.state.cursors.get(name)
    if cursor is None:
        cursor = Cursor(log.log_start)
        log.put_cursor(name, cursor)
    cursor.advance(log.log_start)
    return cursor


async def place_cursor(log: PartitionLog, name: str, offset: int) -> None:
    """Put a cursor that no consumer uses at ``offset``, durably."""
    cursor = log.state.cursors.get(name)
    if cursor is None:
        log.put_cursor(name, Cursor(offset))
    else:
        cursor.reset(offset)
    await log.save_cursor(name)


async def resolve(topic: TopicLog, log: PartitionLog, number: int, start: StartPosition) -> int:
    """The offset that a start position means on one partition.

    Raises:
        InvalidRequest: an offset outside of the log.
    """
    if start == "earliest":
        return log.log_start
    if start == "latest":
        return log.durable_offset
    if isinstance(start, datetime):
        return await offset_for_time(topic, number, translate.timestamp_us(start))
    assert isinstance(start, int)
    if not log.log_start <= start <= log.durable_offset:
        raise InvalidRequest(
            f"offset {start} of {log.record.name} partition {number} is not in "
            f"[{log.log_start}, {log.durable_offset}]; choose one within it"
        )
    return start


def lag_seconds(topic: TopicLog, log: PartitionLog, number: int, oldest: int, now: int) -> float:
    """Age of the oldest message that is not acknowledged, by append time."""
    if oldest >= log.durable_offset:
        return 0.0
    extent = log.state.extents.find(oldest)
    if extent is not None:
        return max(now - extent.append_time_us, 0) / 1e6
    file = topic.table.snapshot.file_at(number, oldest) if topic.table is not None else None
    return max(now - file.min_append_time_us, 0) / 1e6 if file is not None else 0.0


def _check_kind(kind: str) -> None:
    if kind == "spark":
        raise InvalidRequest(
            "a subscription of type spark belongs to a Spark query; consumers cannot join it"
        )
    if kind not in KINDS:
        make_subscription(kind, Cursor(0), 0, Limits())
