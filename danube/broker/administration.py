"""Topics, subscriptions and sinks as administrators see them."""

from __future__ import annotations

from danube.broker.queries import Queries
from danube.broker.reading import Reads
from danube.broker.subscriptions import Subscriptions
from danube.broker.topics import Topics, all_topics, require
from danube.core.errors import InvalidRequest, Unsupported
from danube.core.names import TopicId, TopicName
from danube.metadata.catalog import SinkRecord, TopicRecord
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb

PAGE = 1_000
"""Topics per page of a listing, unless fewer are asked for."""

DURABILITIES = ("disk",)
"""Levels that this version serves; ``object`` and ``memory`` come with object stores."""


class Administration:
    """The calls of BatchAdmin that look at or change the catalog."""

    def __init__(
        self, topics: Topics, subscriptions: Subscriptions, queries: Queries, reads: Reads
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._queries = queries
        self._engine = topics.engine
        self._catalog = topics.engine.context.catalog
        self._reads = reads

    # -- topics ----------------------------------------------------------------------------

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        """Create a topic.

        Raises:
            InvalidName, InvalidRequest: a name or an option cannot be used.
            AlreadyExists: the name is taken, or its base or partitions are.
        """
        record = self._record(request.topic, request.partitions, request.options)
        found, created = await self._catalog.create_topic(
            record, if_not_exists=request.if_not_exists
        )
        return pb.CreateTopicResponse(topic_id=str(found.topic_id), created=created)

    async def create_on_lookup(self, request: pb.LookupRequest) -> TopicRecord:
        """Create the topic that a client is about to use."""
        record = self._record(request.topic, request.partitions, pb.TopicOptions(reliable=True))
        found, _ = await self._catalog.create_topic(record, if_not_exists=True)
        return found

    def _record(self, name: str, partitions: int, options: pb.TopicOptions) -> TopicRecord:
        count = translate.partition_count(partitions)
        durability = options.durability or "disk"
        if durability not in DURABILITIES:
            raise Unsupported(
                f"durability {durability!r} is not served by this broker; use "
                f"{' or '.join(map(repr, DURABILITIES))}"
            )
        if not options.reliable:
            raise Unsupported("non-reliable topics are not built yet; create a reliable one")
        context = self._engine.context
        return TopicRecord(
            name=TopicName.parse(name),
            topic_id=TopicId(context.ids.random_bytes(16)),
            partitions=max(count, 1),
            partitioned=count > 0,
            reliable=options.reliable,
            durability=durability,
            max_message_bytes=_message_limit(
                options.max_message_bytes or context.settings.max_message_bytes,
                context.settings.max_frame_bytes,
            ),
            retention_ms=options.retention_ms if options.HasField("retention_ms") else None,
            retention_bytes=(
                options.retention_bytes if options.HasField("retention_bytes") else None
            ),
            retention_until_acked=options.retention_until_acked,
            created_us=context.clock.now_us(),
        )

    async def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        """One page of topics, by name."""
        limit = min(request.limit or PAGE, PAGE)
        found = await self._catalog.list_topics(
            request.namespace or None,
            start_after=TopicName.parse(request.start_after) if request.start_after else None,
            limit=limit + 1,
        )
        page = found[:limit]
        after = str(page[-1].name) if len(found) > limit else ""
        return pb.ListTopicsResponse(topics=[summary_of(r) for r in page], next=after)

    async def describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        """Everything about one topic."""
        record = await self._topics.record(request.topic)
        found = await self._reads.lookup(record)
        topic = await self._engine.topic(record)
        table = topic.table
        subscriptions = await self._catalog.list_subscriptions(record.topic_id)
        return pb.DescribeTopicResponse(
            summary=summary_of(record),
            partitions=found.partitions,
            table_uri=table.uri if table is not None else "",
            table_version=table.snapshot.version if table is not None else -1,
            options=options_of(record),
            subscriptions=[item.name for item in subscriptions],
        )

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        """Delete a topic; its consumers and producers are told."""
        record = await self._topics.record(request.topic, request.topic_id)
        await self._subscriptions.close_topic(record)
        await self._engine.delete_topic(record)
        return pb.DeleteTopicResponse()

    async def roll(self, request: pb.RollRequest) -> pb.RollResponse:
        """Roll one topic, or all, into their tables now."""
        if request.topic:
            record = await self._topics.record(request.topic)
            for number in range(record.partitions):
                await self._engine.partition(record, number)
            targets = [await self._engine.topic(record)]
        else:
            targets = list(self._engine.topics.values())
        messages = 0
        for topic in targets:
            messages += await self._engine.roller.roll(topic)
        return pb.RollResponse(messages=messages)

    # -- subscriptions ---------------------------------------------------------------------

    async def list_subscriptions(
        self, request: pb.ListSubscriptionsRequest
    ) -> pb.ListSubscriptionsResponse:
        """Subscriptions of one topic, or of every topic, with cursors and lag."""
        if request.topic:
            records = [await self._topics.record(request.topic)]
        else:
            records = [record async for record in all_topics(self._catalog)]
        response = pb.ListSubscriptionsResponse()
        for record in records:
            for item in await self._catalog.list_subscriptions(record.topic_id):
                response.subscriptions.append(await self._subscriptions.describe(record, item))
        return response

    async def create_subscription(
        self, request: pb.CreateSubscriptionRequest
    ) -> pb.CreateSubscriptionResponse:
        """Create a subscription with its cursors, without a consumer."""
        record = await self._topics.record(request.topic)
        kind = translate.kind_from_proto(request.type)
        if kind == "spark":
            raise InvalidRequest("a subscription of type spark is made by the query that owns it")
        name = translate.subscription_name(request.subscription)
        start = translate.start_from_proto(request.start)
        await self._subscriptions.create(record, name, kind, start)
        return pb.CreateSubscriptionResponse()

    async def reset_subscription(
        self, request: pb.ResetSubscriptionRequest
    ) -> pb.ResetSubscriptionResponse:
        """Put the cursors of a subscription elsewhere."""
        require(request.HasField("position"), "position to reset to")
        record = await self._topics.record(request.topic)
        numbers = list(request.partitions) or list(range(record.partitions))
        for number in numbers:
            translate.partition_number(number, record.partitions)
        position = translate.start_from_proto(request.position)
        await self._subscriptions.reset(record, request.subscription, position, numbers)
        return pb.ResetSubscriptionResponse()

    async def delete_subscription(
        self, request: pb.DeleteSubscriptionRequest
    ) -> pb.DeleteSubscriptionResponse:
        """Delete a subscription that nobody uses."""
        record = await self._topics.record(request.topic)
        self._queries.check_idle(record, request.subscription)
        await self._subscriptions.delete(record, request.subscription)
        return pb.DeleteSubscriptionResponse()

    # -- sinks -----------------------------------------------------------------------------

    async def list_sinks(self) -> pb.ListSinksResponse:
        """Every Spark sink with its last decided batch."""
        sinks: list[SinkRecord] = []
        after: tuple[str, str] | None = None
        while page := await self._engine.context.sinks.list(after):
            sinks += page
            after = page[-1].query_id, page[-1].sink_name
        return pb.ListSinksResponse(
            sinks=[
                pb.SinkInfo(
                    query_id=item.query_id,
                    sink_name=item.sink_name,
                    last_batch_id=item.last_batch_id,
                    run_id=item.run_id,
                    finished=item.finished,
                    streaming=item.streaming,
                    decided_us=item.decided_us,
                )
                for item in sinks
            ]
        )

    async def forget_sink(self, request: pb.ForgetSinkRequest) -> pb.ForgetSinkResponse:
        """Forget what a sink has decided: its query starts anew, and so may write again."""
        await self._engine.context.sinks.forget(request.query_id, request.sink_name)
        return pb.ForgetSinkResponse()


def _message_limit(wanted: int, max_frame_bytes: int) -> int:
    if wanted > max_frame_bytes:
        raise InvalidRequest(
            f"messages of {wanted} bytes do not fit into frames of {max_frame_bytes}; raise "
            "log.max_frame_bytes first"
        )
    return wanted


def summary_of(record: TopicRecord) -> pb.TopicSummary:
    """A topic's record on the wire."""
    return pb.TopicSummary(
        topic=str(record.name),
        topic_id=str(record.topic_id),
        partitions=record.partitions,
        partitioned=record.partitioned,
        reliable=record.reliable,
        durability=record.durability,
        created_us=record.created_us,
    )


def options_of(record: TopicRecord) -> pb.TopicOptions:
    """A topic's options on the wire."""
    options = pb.TopicOptions(
        reliable=record.reliable,
        durability=record.durability,
        max_message_bytes=record.max_message_bytes,
        retention_until_acked=record.retention_until_acked,
    )
    if record.retention_ms is not None:
        options.retention_ms = record.retention_ms
    if record.retention_bytes is not None:
        options.retention_bytes = record.retention_bytes
    return options
