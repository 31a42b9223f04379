"""BatchService: the data plane of our own protocol (proto/DanubeBatch.proto)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from danube.broker.administration import Administration
from danube.broker.committing import Commits
from danube.broker.publishing import PublishStream
from danube.broker.queries import Queries
from danube.broker.reading import Reads
from danube.broker.staging import StageStream
from danube.broker.subscribing import SubscribeStream
from danube.broker.subscriptions import Subscriptions
from danube.broker.topics import Topics
from danube.core.errors import TopicNotFound
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]


class BatchServicer(rpc.BatchServiceServicer):
    """Each call is one line here; the work is in the module named after it."""

    def __init__(
        self,
        topics: Topics,
        subscriptions: Subscriptions,
        queries: Queries,
        administration: Administration,
        reads: Reads,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._queries = queries
        self._administration = administration
        self._reads = reads
        self._commits = Commits(topics.engine.context.sinks)

    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupResponse:
        """Where a topic's partitions live."""
        try:
            record = await self._topics.record(request.topic)
        except TopicNotFound:
            if not request.create:
                raise
            record = await self._administration.create_on_lookup(request)
        return await self._reads.lookup(record)

    async def Publish(
        self, request_iterator: AsyncIterator[pb.PublishRequest], context: Context
    ) -> AsyncIterator[pb.PublishResponse]:
        """Frames in, receipts out."""
        async for response in PublishStream(self._topics, request_iterator).run():
            yield response

    async def Subscribe(
        self, request_iterator: AsyncIterator[pb.SubscribeRequest], context: Context
    ) -> AsyncIterator[pb.SubscribeResponse]:
        """Credit and acks in, deliveries out."""
        async for response in SubscribeStream(self._subscriptions, request_iterator).run():
            yield response

    async def Read(
        self, request: pb.ReadRequest, context: Context
    ) -> AsyncIterator[pb.ReadResponse]:
        """Frames of a range."""
        async for response in self._reads.read(request):
            yield response

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        """How Spark should read ranges."""
        return await self._reads.plan(request)

    async def OffsetsForTime(
        self, request: pb.OffsetsForTimeRequest, context: Context
    ) -> pb.OffsetsForTimeResponse:
        """First offsets at or after a time."""
        return await self._reads.offsets_for_time(request)

    async def Stage(
        self, request_iterator: AsyncIterator[pb.StageRequest], context: Context
    ) -> pb.StageResponse:
        """Write a staged set."""
        return await StageStream(self._topics, request_iterator).run()

    async def CommitBatch(
        self, request: pb.CommitBatchRequest, context: Context
    ) -> pb.CommitBatchResponse:
        """Decide a Spark batch and make it visible."""
        return await self._commits.commit(request)

    async def AbortBatch(
        self, request: pb.AbortBatchRequest, context: Context
    ) -> pb.AbortBatchResponse:
        """Drop a batch that was not decided."""
        return await self._commits.abort(request)

    async def RegisterQuery(
        self, request: pb.RegisterQueryRequest, context: Context
    ) -> pb.RegisterQueryResponse:
        """Begin a run of a Spark query."""
        return await self._queries.register(request)

    async def MoveCursor(
        self, request: pb.MoveCursorRequest, context: Context
    ) -> pb.MoveCursorResponse:
        """Move a Spark query's cursor."""
        return await self._queries.move(request)
