"""Administration: topics, subscriptions, sinks, verification. Typed requests and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from danube.client.connection import Connection, PartitionView, partition_view
from danube.core.names import TopicName, check_name
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import danube_errors
from danube.wire.translate import (
    StartPosition,
    SubscriptionKind,
    from_timestamp_us,
    kind_from_proto,
    kind_to_proto,
    start_to_proto,
)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic in a list.

    Attributes:
        name: ``/namespace/topic``.
        topic_id: 32 hex digits, never reused.
        partitions: how many; 1 if it is not partitioned.
        partitioned: whether it was created with partitions.
        reliable: whether it is stored.
        durability: when a message counts as acknowledged: ``disk``, ``object``, ``memory``.
        created: when.
    """

    name: str
    topic_id: str
    partitions: int
    partitioned: bool
    reliable: bool
    durability: str
    created: datetime


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Everything about one topic. Retention None: keep for ever."""

    info: TopicInfo
    partitions: tuple[PartitionView, ...]
    table_uri: str
    table_version: int
    max_message_bytes: int
    retention_ms: int | None
    retention_bytes: int | None
    retention_until_acked: bool
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """A subscription on one partition: everything below ``cursor`` is acknowledged."""

    partition: int
    generation: int
    cursor: int
    acked_above: int
    lag_messages: int
    lag_seconds: float
    consumers: tuple[str, ...]
    unacked: int


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """One subscription of one topic."""

    topic: str
    name: str
    kind: SubscriptionKind
    partitions: tuple[CursorInfo, ...]

    @property
    def lag_messages(self) -> int:
        """Messages that are not acknowledged, over all partitions."""
        return sum(each.lag_messages for each in self.partitions)


@dataclass(frozen=True, slots=True)
class SinkInfo:
    """What the exactly-once sink of one Spark query has decided last."""

    query_id: str
    name: str
    last_batch_id: int
    run_id: str
    finished: bool
    streaming: bool
    decided: datetime


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Progress of a verification; ``finding``: a promise is broken."""

    message: str
    finding: bool
    finished: bool
    messages: int


class Admin:
    """Administration through one client; ``client.admin``.

    Every method raises ``Unavailable`` when no broker answers for ``retry_timeout_s``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _call(self, name: str, request: Any, doing: str) -> Any:
        method = getattr(self._connection.admin(), name)
        return await self._connection.call(method, request, doing)

    # --- topics ---------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 0,
        reliable: bool = True,
        durability: str = "disk",
        max_message_bytes: int = 0,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        retention_until_acked: bool = False,
        if_not_exists: bool = False,
    ) -> tuple[str, bool]:
        """Create a topic.

        Args:
            name: ``/namespace/topic``.
            partitions: 0: not partitioned.
            reliable: stored, in journal and table.
            durability: what an acknowledgement means: ``disk``, ``object`` or ``memory``.
            max_message_bytes: 0: the broker's default.
            retention_ms: remove what was appended longer ago, by whole files; None: keep.
            retention_bytes: remove the oldest above so many; None: keep.
            retention_until_acked: remove what every subscription has acknowledged.
            if_not_exists: an existing topic of the name is fine.

        Returns:
            The topic id, and whether it was created now.

        Raises:
            InvalidName, AlreadyExists.
        """
        TopicName.parse(name)
        options = pb.TopicOptions(
            reliable=reliable,
            durability=durability,
            max_message_bytes=max_message_bytes,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            retention_until_acked=retention_until_acked,
        )
        request = pb.CreateTopicRequest(
            topic=name, partitions=partitions, options=options, if_not_exists=if_not_exists
        )
        made = await self._call("CreateTopic", request, f"creating {name}")
        return made.topic_id, made.created

    async def list_topics(self, namespace: str | None = None) -> list[TopicInfo]:
        """All topics, or those of a namespace, by name."""
        found: list[TopicInfo] = []
        after = ""
        while True:
            request = pb.ListTopicsRequest(namespace=namespace or "", start_after=after)
            page = await self._call("ListTopics", request, "listing topics")
            found.extend(map(_topic_info, page.topics))
            after = page.next
            if not after:
                return found

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic with its partitions, table and options. Raises TopicNotFound."""
        TopicName.parse(name)
        request = pb.DescribeTopicRequest(topic=name)
        found = await self._call("DescribeTopic", request, f"describing {name}")
        return _description(cast(pb.DescribeTopicResponse, found))

    async def delete_topic(self, name: str, *, topic_id: str = "") -> None:
        """Delete a topic with its messages, subscriptions and table. Raises TopicNotFound.

        With ``topic_id`` only if the name still belongs to that topic (else TopicReplaced).
        """
        request = pb.DeleteTopicRequest(topic=name, topic_id=topic_id)
        await self._call("DeleteTopic", request, f"deleting {name}")

    async def roll(self, name: str | None = None) -> int:
        """Write what is durable to the table(s) now and wait for it. Returns messages rolled."""
        request = pb.RollRequest(topic=name or "")
        done = await self._call("Roll", request, f"rolling {name or 'every topic'}")
        return cast(pb.RollResponse, done).messages

    async def verify(self, name: str) -> AsyncIterator[VerifyStep]:
        """Compare a topic's log with its table, step by step; the last step says the result."""
        call: Any = self._connection.admin().Verify(pb.VerifyRequest(topic=name))
        try:
            with danube_errors(f"verifying {name}"):
                async for step in call:
                    yield VerifyStep(step.message, step.finding, step.finished, step.messages)
        finally:
            call.cancel()

    # --- subscriptions --------------------------------------------------------------------------

    async def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        """The subscriptions of a topic, or of all, with cursors and lag."""
        request = pb.ListSubscriptionsRequest(topic=topic or "")
        found = await self._call("ListSubscriptions", request, "listing subscriptions")
        return [_subscription(each) for each in found.subscriptions]

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionKind = "exclusive",
        start: StartPosition = "latest",
    ) -> None:
        """Create a subscription that no consumer has joined yet. Raises AlreadyExists."""
        check_name(subscription, "subscription")
        request = pb.CreateSubscriptionRequest(
            topic=topic,
            subscription=subscription,
            type=kind_to_proto(type),
            start=start_to_proto(start),
        )
        await self._call("CreateSubscription", request, f"creating {subscription} on {topic}")

    async def reset_subscription(
        self,
        topic: str,
        subscription: str,
        position: StartPosition,
        *,
        partitions: Sequence[int] = (),
    ) -> None:
        """Move a subscription's cursors, on all partitions or some. Raises SubscriptionNotFound."""
        request = pb.ResetSubscriptionRequest(
            topic=topic,
            subscription=subscription,
            position=start_to_proto(position),
            partitions=partitions,
        )
        await self._call("ResetSubscription", request, f"resetting {subscription} on {topic}")

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription with its cursors. Raises SubscriptionNotFound."""
        request = pb.DeleteSubscriptionRequest(topic=topic, subscription=subscription)
        await self._call("DeleteSubscription", request, f"deleting {subscription} on {topic}")

    # --- sinks ----------------------------------------------------------------------------------

    async def list_sinks(self) -> list[SinkInfo]:
        """The exactly-once sinks of Spark queries, and what they decided last."""
        found = await self._call("ListSinks", pb.ListSinksRequest(), "listing sinks")
        return [
            SinkInfo(
                sink.query_id,
                sink.sink_name,
                sink.last_batch_id,
                sink.run_id,
                sink.finished,
                sink.streaming,
                from_timestamp_us(sink.decided_us),
            )
            for sink in found.sinks
        ]

    async def forget_sink(self, query_id: str, name: str) -> None:
        """Drop a sink's record: its query can then not go on exactly once. Raises NotFound."""
        request = pb.ForgetSinkRequest(query_id=query_id, sink_name=name)
        await self._call("ForgetSink", request, f"forgetting sink {name} of query {query_id}")


def _topic_info(summary: pb.TopicSummary) -> TopicInfo:
    return TopicInfo(
        summary.topic,
        summary.topic_id,
        summary.partitions,
        summary.partitioned,
        summary.reliable,
        summary.durability,
        from_timestamp_us(summary.created_us),
    )


def _description(found: pb.DescribeTopicResponse) -> TopicDescription:
    options = found.options
    return TopicDescription(
        _topic_info(found.summary),
        tuple(map(partition_view, found.partitions)),
        found.table_uri,
        found.table_version,
        options.max_message_bytes,
        options.retention_ms if options.HasField("retention_ms") else None,
        options.retention_bytes if options.HasField("retention_bytes") else None,
        options.retention_until_acked,
        tuple(found.subscriptions),
    )


def _subscription(info: pb.SubscriptionInfo) -> SubscriptionInfo:
    cursors = (
        CursorInfo(
            each.partition,
            each.generation,
            each.cursor,
            each.acked_above,
            each.lag_messages,
            each.lag_seconds,
            tuple(each.consumers),
            each.unacked,
        )
        for each in info.partitions
    )
    return SubscriptionInfo(
        info.topic, info.subscription, kind_from_proto(info.type), tuple(cursors)
    )
