"""BatchAdmin: topics, subscriptions, sinks and upkeep of our own protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from danube.broker.administration import Administration
from danube.broker.upkeep import BrokerUpkeep
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(rpc.BatchAdminServicer):
    """Each call is one line here."""

    def __init__(self, administration: Administration, upkeep: BrokerUpkeep) -> None:
        self._admin = administration
        self._upkeep = upkeep

    async def CreateTopic(
        self, request: pb.CreateTopicRequest, context: Context
    ) -> pb.CreateTopicResponse:
        """Create a topic."""
        return await self._admin.create_topic(request)

    async def ListTopics(
        self, request: pb.ListTopicsRequest, context: Context
    ) -> pb.ListTopicsResponse:
        """One page of topics."""
        return await self._admin.list_topics(request)

    async def DescribeTopic(
        self, request: pb.DescribeTopicRequest, context: Context
    ) -> pb.DescribeTopicResponse:
        """Everything about one topic."""
        return await self._admin.describe_topic(request)

    async def DeleteTopic(
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        """Delete a topic."""
        return await self._admin.delete_topic(request)

    async def ListSubscriptions(
        self, request: pb.ListSubscriptionsRequest, context: Context
    ) -> pb.ListSubscriptionsResponse:
        """Subscriptions with cursors and lag."""
        return await self._admin.list_subscriptions(request)

    async def CreateSubscription(
        self, request: pb.CreateSubscriptionRequest, context: Context
    ) -> pb.CreateSubscriptionResponse:
        """Create a subscription without a consumer."""
        return await self._admin.create_subscription(request)

    async def ResetSubscription(
        self, request: pb.ResetSubscriptionRequest, context: Context
    ) -> pb.ResetSubscriptionResponse:
        """Put a subscription's cursors elsewhere."""
        return await self._admin.reset_subscription(request)

    async def DeleteSubscription(
        self, request: pb.DeleteSubscriptionRequest, context: Context
    ) -> pb.DeleteSubscriptionResponse:
        """Delete a subscription."""
        return await self._admin.delete_subscription(request)

    async def ListSinks(
        self, request: pb.ListSinksRequest, context: Context
    ) -> pb.ListSinksResponse:
        """Spark sinks with their last decided batches."""
        return await self._admin.list_sinks()

    async def ForgetSink(
        self, request: pb.ForgetSinkRequest, context: Context
    ) -> pb.ForgetSinkResponse:
        """Forget a sink."""
        return await self._admin.forget_sink(request)

    async def Verify(
        self, request: pb.VerifyRequest, context: Context
    ) -> AsyncIterator[pb.VerifyResponse]:
        """Prove that log and table agree."""
        async for line in self._upkeep.verify(request.topic):
            yield line

    async def Roll(self, request: pb.RollRequest, context: Context) -> pb.RollResponse:
        """Roll into tables now."""
        return await self._admin.roll(request)
