"""The blocking twin: the same classes' methods, run on a background event loop.

There is one implementation, the asyncio one; here is only the crossing. ``publish`` does not
cross: it buffers under a lock in the calling thread and wakes the loop once per batch.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

from danube.client import admin as aio_admin
from danube.client import client as aio
from danube.client import consumer as aio_consumer
from danube.client import producer as aio_producer
from danube.client import reader as aio_reader
from danube.client.admin import VerifyStep
from danube.client.connection import TopicView
from danube.client.consumer import Acknowledgeable
from danube.client.messages import Message, MessageRange, MessagesView, OnDelivery
from danube.client.opening import Closable, Opening
from danube.client.outbox import MESSAGE_OVERHEAD_BYTES
from danube.client.portal import Portal, acquire, release
from danube.client.producer import Outcomes, ProducerCounts
from danube.client.settings import ClientSettings
from danube.client.splitting import Batchable, Keys
from danube.core.errors import MemoryFull
from danube.wire.channels import DEFAULT_SERVICE_URL

P = ParamSpec("P")
T = TypeVar("T")
InnerT = TypeVar("InnerT")
OpenedT = TypeVar("OpenedT", bound=Closable)
InnerCo = TypeVar("InnerCo", covariant=True)

EXIT_TIMEOUT_S: Final = 5.0
"""How long an interpreter that exits waits for clients that nobody closed."""


class _Twin(Protocol[InnerCo]):
    """A blocking object: the asyncio one it stands for, and the way to its loop."""

    @property
    def _inner(self) -> InnerCo: ...

    @property
    def _portal(self) -> Portal: ...


def _blocking(
    method: Callable[Concatenate[InnerT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Twin[InnerT], P], T]:
    """The same method, waiting for its result."""

    def call(self: _Twin[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class _Entered:
    """``with`` for what has a ``close``."""

    def close(self) -> None:
        """Finish and let go."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Producer(_Entered):
    """Publishes to one topic, from any thread; see :class:`danube.client.producer.Producer`."""

    def __init__(self, portal: Portal, inner: aio_producer.Producer) -> None:
        self._portal = portal
        self._inner = inner
        self._put = inner.put

    @property
    def name(self) -> str:
        """The producer's name."""
        return self._inner.name

    @property
    def counts(self) -> ProducerCounts:
        """How many messages were published, and what became of them so far."""
        return self._inner.counts

    @property
    def topic(self) -> TopicView:
        """The topic as it was when the producer was made."""
        return self._inner.topic

    def publish(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        timestamp_us: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Buffer one message, as the asyncio ``publish`` does, but wait while there is no room.

        Callbacks run in the background thread.

        Raises:
            MemoryFull: no room for ``retry_timeout_s``, or no room within a callback.
            DanubeError: as :meth:`danube.client.producer.Producer.publish`.
        """
        try:
            self._put(value, key, attributes, timestamp_us, partition, on_delivery)
        except MemoryFull:
            if self._portal.inside:
                raise
            self._put_patiently(value, key, attributes, timestamp_us, partition, on_delivery)

    def _put_patiently(self, value: bytes | str, *rest: Any) -> None:
        size = len(value) + MESSAGE_OVERHEAD_BYTES
        give_up = time.monotonic() + self._inner.settings.retry_timeout_s
        while True:
            self._inner.outbox.wait_for_room(size, max(0.0, give_up - time.monotonic()))
            try:
                return self._put(value, *rest)
            except MemoryFull:
                size += MESSAGE_OVERHEAD_BYTES  # its key and attributes need room as well

    def send_batch(
        self, records: Batchable, *, keys: Keys | None = None, partition: int | None = None
    ) -> list[MessageRange]:
        """Publish many messages and wait until all are durable; iterables run in this thread.

        See :meth:`danube.client.producer.Producer.send_batch`.
        """
        outcomes: Outcomes = []
        failure: BaseException | None = None
        try:
            for batch in self._inner.to_batches(records, keys):
                self._portal.call(self._inner.enqueue(batch, partition, outcomes))
        except BaseException as error:
            failure = error
        return self._portal.call(self._inner.ranges_of(outcomes, failure))

    send = _blocking(aio_producer.Producer.send)
    flush = _blocking(aio_producer.Producer.flush)
    close = _blocking(aio_producer.Producer.close)


class Consumer(_Entered):
    """Receives one subscription's messages; see :class:`danube.client.consumer.Consumer`.

    An iterator over messages; for one thread at a time.
    """

    def __init__(self, portal: Portal, inner: aio_consumer.Consumer) -> None:
        self._portal = portal
        self._inner = inner
        self._messages: Iterator[Message] = iter(())
        self._unsent: deque[Acknowledgeable] = deque()
        self._crossing = False

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._inner.name

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self._inner.subscription

    @property
    def topic(self) -> TopicView:
        """The topic as it was when the consumer was made."""
        return self._inner.topic

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            for message in self._messages:
                return message
            batch = self._portal.call(self._inner.next_batch())
            if batch is None:
                raise StopIteration
            self._messages = iter(batch)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when none came within ``timeout_s``."""
        for message in self._messages:
            return message
        return self._portal.call(self._inner.receive(timeout_s))

    def ack(self, what: Acknowledgeable, *, wait: bool = True) -> None:
        """A message, a range or a batch is done.

        ``wait=False`` returns at once: the ack is sent with others, and a failure is only logged.
        """
        if wait:
            self._portal.call(self._inner.ack_and_wait(what))
            return
        # One crossing for all that gather until the loop takes them.
        self._unsent.append(what)
        if not self._crossing:
            self._crossing = True
            self._portal.soon(self._send_acks)

    def _send_acks(self) -> None:
        self._crossing = False
        while self._unsent:
            self._inner.ack(self._unsent.popleft())

    def nack(self, what: Acknowledgeable, *, wait: bool = True) -> None:
        """A message, a range or a batch is to be delivered again."""
        if wait:
            self._portal.call(self._inner.nack_and_wait(what))
        else:
            self._portal.soon(lambda: self._inner.nack(what))

    receive_batch = _blocking(aio_consumer.Consumer.receive_batch)
    close = _blocking(aio_consumer.Consumer.close)


class Reader(_Entered):
    """Iterates over batches by offset; see :class:`danube.client.reader.Reader`."""

    def __init__(self, portal: Portal, inner: aio_reader.Reader) -> None:
        self._portal = portal
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessagesView:
        try:
            return self._portal.call(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def messages(self) -> Iterator[Message]:
        """One message after the other."""
        for batch in self:
            yield from batch

    close = _blocking(aio_reader.Reader.close)


class Admin:
    """Administration; see :class:`danube.client.admin.Admin`."""

    def __init__(self, portal: Portal, inner: aio_admin.Admin) -> None:
        self._portal = portal
        self._inner = inner

    create_topic = _blocking(aio_admin.Admin.create_topic)
    list_topics = _blocking(aio_admin.Admin.list_topics)
    describe_topic = _blocking(aio_admin.Admin.describe_topic)
    delete_topic = _blocking(aio_admin.Admin.delete_topic)
    roll = _blocking(aio_admin.Admin.roll)
    list_subscriptions = _blocking(aio_admin.Admin.list_subscriptions)
    create_subscription = _blocking(aio_admin.Admin.create_subscription)
    reset_subscription = _blocking(aio_admin.Admin.reset_subscription)
    delete_subscription = _blocking(aio_admin.Admin.delete_subscription)
    list_sinks = _blocking(aio_admin.Admin.list_sinks)
    forget_sink = _blocking(aio_admin.Admin.forget_sink)

    def verify(self, name: str) -> Iterator[VerifyStep]:
        """Compare a topic's log with its table, step by step; the last step says the result."""
        steps = self._inner.verify(name)
        try:
            while (step := self._portal.call(_next_or_none(steps))) is not None:
                yield step
        finally:
            self._portal.call(_close_steps(steps))


async def _next_or_none(steps: Any) -> VerifyStep | None:
    async for step in steps:
        return step  # type: ignore[no-any-return]
    return None


async def _close_steps(steps: Any) -> None:
    await steps.aclose()


def _opens(
    method: Callable[Concatenate[aio.Client, P], Opening[OpenedT]],
    twin: Callable[[Portal, OpenedT], T],
) -> Callable[Concatenate[Client, P], T]:
    """The same method, returning the open thing's twin."""

    async def opened(inner: aio.Client, *args: P.args, **kwargs: P.kwargs) -> OpenedT:
        return await method(inner, *args, **kwargs)

    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return twin(self._portal, self._portal.call(opened(self._inner, *args, **kwargs)))

    functools.update_wrapper(call, method)
    return call


def _makes(
    method: Callable[Concatenate[aio.Client, P], OpenedT],
    twin: Callable[[Portal, OpenedT], T],
) -> Callable[Concatenate[Client, P], T]:
    """The same method, returning the twin of what it makes."""

    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return twin(self._portal, method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class Client(_Entered):
    """One connection, for any number of threads; see :class:`danube.client.client.Client`."""

    def __init__(self, portal: Portal, inner: aio.Client) -> None:
        self._portal = portal
        self._inner = inner
        self._closed = False
        self.admin = Admin(portal, inner.admin)
        _open_clients.add(self)

    @property
    def settings(self) -> ClientSettings:
        """Deadlines and bounds."""
        return self._inner.settings

    topic = _blocking(aio.Client.topic)

    producer = _opens(aio.Client.producer, Producer)
    subscribe = _opens(aio.Client.subscribe, Consumer)

    reader = _makes(aio.Client.reader, Reader)

    def close(self) -> None:
        """Close what is still open, then the connection. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        _open_clients.discard(self)
        try:
            self._portal.call(self._inner.close())
        finally:
            release(self._portal)


def connect(
    service_url: str = DEFAULT_SERVICE_URL, *, settings: ClientSettings | None = None
) -> Client:
    """Connect to a broker and wait until it answers; ``with connect(url) as client``.

    Raises:
        Unavailable: nobody answers within ``connect_timeout_s``.
        InvalidRequest: the address is not one.
    """

    async def opened() -> aio.Client:
        return await aio.connect(service_url, settings=settings)

    portal = acquire()
    try:
        return Client(portal, portal.call(opened()))
    except BaseException:
        release(portal)
        raise


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """Nobody closed these: flush what they hold, but not for long."""

    async def close_in_time(client: aio.Client) -> None:
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await client.close()
        except Exception:
            pass  # reported to callbacks; nobody is left to raise it to

    for client in list(_open_clients):
        if client._portal.pid == os.getpid():
            client._portal.call(close_in_time(client._inner))
            client._portal.stop()
