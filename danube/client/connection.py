"""Channels to brokers, unary calls with deadlines, and who owns which partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from danube.client.retry import retrying
from danube.client.settings import ClientSettings
from danube.core.errors import DanubeError, InvalidRequest, TopicReplaced, Unavailable
from danube.core.names import TopicName
from danube.core.offsets import OffsetRange
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import open_channel
from danube.wire.status import danube_errors

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as its broker described it: offsets are those of that moment.

    Attributes:
        partition: its number.
        broker_url: host:port of its owner; empty while it has none.
        log_start_offset: the oldest message there still is.
        durable_offset: everything below may be read.
        rolled_offset: everything below is in the table.
        lost: recorded lost ranges.
    """

    partition: int
    broker_url: str
    log_start_offset: int
    durable_offset: int
    rolled_offset: int
    lost: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as a broker described it."""

    name: str
    topic_id: str
    partitioned: bool
    reliable: bool
    max_message_bytes: int
    max_frame_bytes: int
    partitions: Mapping[int, PartitionView]

    def partition(self, number: int) -> PartitionView:
        """One partition. Raises InvalidRequest if the topic has no such partition."""
        try:
            return self.partitions[number]
        except KeyError:
            raise InvalidRequest(
                f"{self.name} has no partition {number}; it has {len(self.partitions)}"
            ) from None


def partition_view(info: pb.PartitionInfo) -> PartitionView:
    """A partition's description from the wire."""
    return PartitionView(
        info.partition,
        info.broker_url,
        info.log_start_offset,
        info.durable_offset,
        info.rolled_offset,
        tuple(OffsetRange(span.start, span.end) for span in info.lost),
    )


class Connection:
    """One client's channels, by broker, and its way of calling."""

    def __init__(self, service_url: str, settings: ClientSettings) -> None:
        self.service_url = service_url
        self.settings = settings
        self._channels: dict[str, grpc.aio.Channel] = {}

    def channel(self, url: str) -> grpc.aio.Channel:
        """The channel to a broker, made at first use."""
        found = self._channels.get(url)
        if found is None:
            found = open_channel(url)
            self._channels[url] = found
        return found

    def data(self, url: str | None = None) -> rpc.BatchServiceStub:
        """The batch service at ``url``, or wherever this client was pointed to."""
        return rpc.BatchServiceStub(self.channel(url or self.service_url))

    def admin(self) -> rpc.BatchAdminStub:
        """The administration service."""
        return rpc.BatchAdminStub(self.channel(self.service_url))

    async def ready(self) -> None:
        """Wait for a broker. Raises Unavailable after ``connect_timeout_s``."""
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                await self.channel(self.service_url).channel_ready()
        except TimeoutError:
            raise Unavailable(
                f"no broker answers at {self.service_url} within "
                f"{self.settings.connect_timeout_s:g} s; check that it runs and the address"
            ) from None

    async def call(self, method: Any, request: Any, doing: str) -> Any:
        """Call a unary method, with its deadline, again after transient failures.

        Only for requests that may safely arrive twice. Raises DanubeError.
        """

        return await self.retrying(lambda: self._attempt(method, request, doing))

    async def _attempt(self, method: Any, request: Any, doing: str) -> Any:
        with danube_errors(doing):
            return await method(request, timeout=self.settings.request_timeout_s)

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry as :func:`danube.client.retry.retrying` does, with this client's settings."""
        return await retrying(self.settings, attempt, asyncio.sleep)

    async def lookup(
        self, topic: str, *, create: bool = False, partitions: int = 0, once: bool = False
    ) -> TopicView:
        """Ask where a topic lives; ``once``: the caller itself repeats what fails.

        Raises:
            InvalidName, TopicNotFound, Unavailable.
        """
        TopicName.parse(topic)
        request = pb.LookupRequest(topic=topic, create=create, partitions=partitions)
        call = self._attempt if once else self.call
        found = cast(
            pb.LookupResponse, await call(self.data().Lookup, request, f"looking up {topic}")
        )
        return TopicView(
            found.topic or topic,
            found.topic_id,
            found.partitioned,
            found.reliable,
            found.max_message_bytes,
            found.max_frame_bytes,
            {info.partition: partition_view(info) for info in found.partitions},
        )

    async def close(self) -> None:
        """Close every channel."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)


class Router:
    """Where one topic's partitions live now; the topic itself is pinned by its id."""

    def __init__(self, connection: Connection, topic: TopicView) -> None:
        self._connection = connection
        self.topic = topic
        self._stale = False
        self._lock = asyncio.Lock()

    def distrust(self) -> None:
        """A broker did not answer as the owner: ask again before the next connection."""
        self._stale = True

    async def stub(self, partition: int) -> rpc.BatchServiceStub:
        """The batch service of the partition's owner.

        Raises:
            TopicReplaced: another topic has the name now.
            TopicNotFound: none has.
            Unavailable: the partition has no owner at present.
        """
        async with self._lock:
            if self._stale or not self.topic.partition(partition).broker_url:
                self.topic = await self._look_up()
                self._stale = False
        url = self.topic.partition(partition).broker_url
        if not url:
            self._stale = True
            raise Unavailable(f"partition {partition} of {self.topic.name} has no owner at present")
        return self._connection.data(url)

    async def _look_up(self) -> TopicView:
        # One attempt: the caller pauses between attempts itself.
        found = await self._connection.lookup(self.topic.name, once=True)
        if found.topic_id != self.topic.topic_id:
            raise TopicReplaced(
                f"{self.topic.name} was deleted and created again (id {self.topic.topic_id} is now "
                f"{found.topic_id}); open it anew to go on with the new topic"
            )
        return found


def same_error(error: DanubeError, message: str) -> DanubeError:
    """An error of the same class with more words in front."""
    return type(error)(f"{message}: {error}")
