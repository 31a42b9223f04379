"""The client: one connection to Danube, from which producers, consumers and readers are made."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any

from danube.client.admin import Admin
from danube.client.connection import Connection, Router, TopicView
from danube.client.consumer import Consumer
from danube.client.messages import OnDelivery
from danube.client.opening import Opening
from danube.client.producer import Producer
from danube.client.reader import Reader
from danube.client.settings import ClientSettings, CodecName
from danube.core.batch import message_records
from danube.core.names import check_name
from danube.wire.channels import DEFAULT_SERVICE_URL
from danube.wire.translate import StartPosition, SubscriptionKind


def connect(
    service_url: str = DEFAULT_SERVICE_URL, *, settings: ClientSettings | None = None
) -> Opening[Client]:
    """Connect to a broker: ``await connect(url)``, or ``async with connect(url) as client``.

    Args:
        service_url: ``host:port``.
        settings: deadlines and bounds; see :class:`ClientSettings`.

    Raises (when awaited):
        Unavailable: nobody answers within ``connect_timeout_s``.
        InvalidRequest: the address is not one.
    """

    async def open_client() -> Client:
        client = Client(service_url, settings or ClientSettings())
        try:
            await client.ready()
        except BaseException:
            await client.close()
            raise
        return client

    return Opening(open_client)


class Client:
    """One connection, shared by everything made from it. An async context manager.

    ``close`` closes producers (flushing them) and consumers that are still open.
    """

    def __init__(self, service_url: str, settings: ClientSettings) -> None:
        self.settings = settings
        self._connection = Connection(service_url, settings)
        self._open: set[Producer | Consumer] = set()
        self.admin = Admin(self._connection)

    async def ready(self) -> None:
        """Wait for a broker. Raises Unavailable."""
        # The first array that pyarrow makes of a list imports pandas, if there is one: meanwhile,
        # and not in the first publish.
        warming_up = asyncio.create_task(
            asyncio.to_thread(message_records, [b""], now_us=0, producer="")
        )
        try:
            await self._connection.ready()
        finally:
            await warming_up

    async def topic(self, name: str) -> TopicView:
        """Partitions, owners and offsets of a topic. Raises TopicNotFound."""
        return await self._connection.lookup(name)

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        linger_ms: float | None = None,
        batch_bytes: int | None = None,
        max_in_flight: int | None = None,
        buffer_bytes: int | None = None,
        resend_in_doubt: bool | None = None,
        codec: CodecName = "none",
        create: bool = False,
        partitions: int = 0,
        on_delivery: OnDelivery | None = None,
    ) -> Opening[Producer]:
        """A producer for a topic; await it or enter it.

        Args:
            topic: ``/namespace/topic``.
            name: of the producer, in every message; at most one at a time may use it, a second
                one fences the first. Default: a random one.
            linger_ms: how long ``publish`` lets a batch fill.
            batch_bytes: up to where a frame is filled.
            max_in_flight: frames per partition without a receipt, at most 5.
            buffer_bytes: what may wait for receipts, over all partitions.
            resend_in_doubt: repeat (and perhaps duplicate) instead of ``OutcomeUnknown``.
            codec: compression of frames.
            create: create the topic when it does not exist, with ``partitions`` partitions.
            partitions: 0: not partitioned.
            on_delivery: told the outcome of every batch.

        Raises (when awaited):
            InvalidName, TopicNotFound, Unavailable.
        """
        settings = _with(
            self.settings,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            max_in_flight_frames=max_in_flight,
            buffer_bytes=buffer_bytes,
            resend_in_doubt=resend_in_doubt,
        )
        named = check_name(name or f"producer-{os.urandom(6).hex()}", "producer name")

        async def open_producer() -> Producer:
            found = await self._connection.lookup(topic, create=create, partitions=partitions)
            producer = Producer(
                Router(self._connection, found),
                settings,
                name=named,
                codec=codec,
                on_delivery=on_delivery,
                on_closed=self._open.discard,
            )
            self._open.add(producer)
            return producer

        return Opening(open_producer)

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionKind = "exclusive",
        start: StartPosition = "latest",
        consumer_name: str | None = None,
        prefetch_bytes: int | None = None,
    ) -> Opening[Consumer]:
        """A consumer of a subscription, which is created if it does not exist; await or enter it.

        Args:
            topic: ``/namespace/topic``; all its partitions.
            subscription: its name.
            type: ``exclusive`` (one consumer) or ``shared`` (messages spread over consumers).
            start: where a new subscription begins: ``latest``, ``earliest``, an offset, or a
                datetime with a zone (append time).
            consumer_name: default: a random one.
            prefetch_bytes: what is fetched ahead, per partition.

        Raises (when awaited):
            InvalidName, TopicNotFound, SubscriptionBusy, Unavailable.
        """
        check_name(subscription, "subscription")
        named = check_name(consumer_name or f"consumer-{os.urandom(6).hex()}", "consumer name")
        settings = _with(self.settings, prefetch_bytes=prefetch_bytes)

        async def open_consumer() -> Consumer:
            consumer = Consumer(
                Router(self._connection, await self._connection.lookup(topic)),
                settings,
                subscription=subscription,
                name=named,
                kind=type,
                start=start,
                on_closed=self._open.discard,
            )
            self._open.add(consumer)
            try:
                await consumer.opened()
            except BaseException:
                await consumer.close()
                raise
            return consumer

        return Opening(open_consumer)

    def reader(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: StartPosition = "earliest",
        end: int | None = None,
        follow: bool = False,
        skip_lost: bool = False,
    ) -> Reader:
        """Read messages by offset, without a subscription.

        Args:
            topic: ``/namespace/topic``.
            partition: one of them; None: all, one after the other.
            start: first offset, ``earliest``, ``latest``, or a datetime (append time).
            end: offset to stop before; None: where the topic ends now.
            follow: go on with what is published later, up to ``end`` or for ever (one partition).
            skip_lost: step over recorded lost ranges instead of raising DataLost.
        """
        return Reader(
            self._connection,
            topic,
            partition=partition,
            start=start,
            end=end,
            follow=follow,
            skip_lost=skip_lost,
        )

    async def close(self) -> None:
        """Close what is still open, then the connection. A second call does nothing.

        Raises:
            DanubeError: a producer's first failure that nobody was told.
        """
        results = await asyncio.gather(
            *(each.close() for each in list(self._open)), return_exceptions=True
        )
        await self._connection.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _with(settings: ClientSettings, **changes: Any) -> ClientSettings:
    """Settings with those changes that are not None, checked as the others are."""
    given = {name: value for name, value in changes.items() if value is not None}
    return ClientSettings(**{**settings.model_dump(), **given}) if given else settings
