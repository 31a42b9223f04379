"""The consumer: an async iterator over messages, or batch by batch, over all partitions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeAlias

from danube.client.connection import Router, TopicView
from danube.client.messages import Message, MessageId, MessageRange, MessagesView
from danube.client.partition_subscriber import FetchedPiece, PartitionSubscriber
from danube.client.settings import ClientSettings
from danube.client.streams import only_error
from danube.core.batch import MessageBatch, message_records
from danube.core.errors import DanubeError, FailedPrecondition, InvalidRequest
from danube.core.offsets import OffsetRange
from danube.core.telemetry import get_logger
from danube.wire.translate import StartPosition

log = get_logger(__name__)


class ReceivedBatch(MessagesView):
    """A run of delivered messages of one partition. Empty only after a time-out."""

    def __init__(self, consumer: Consumer, piece: FetchedPiece) -> None:
        super().__init__(
            consumer.topic.name, piece.subscriber.partition, piece.batch, piece.append_us
        )
        self._consumer = consumer
        self.redelivery_count = piece.redelivery_count

    def ack(self) -> asyncio.Future[None]:
        """All of it is done; see :meth:`Consumer.ack`."""
        return self._consumer.ack(self)

    def nack(self) -> asyncio.Future[None]:
        """All of it is to be delivered again; see :meth:`Consumer.nack`."""
        return self._consumer.nack(self)


Acknowledgeable: TypeAlias = Message | MessageId | MessageRange | MessagesView


class Consumer:
    """Receives one subscription's messages. Made by ``client.subscribe(topic, subscription)``.

    An async iterator and an async context manager. Messages that are not acknowledged are
    delivered again after a reconnect: every message is seen at least once.
    """

    def __init__(
        self,
        router: Router,
        settings: ClientSettings,
        *,
        subscription: str,
        name: str,
        kind: str,
        start: StartPosition,
        on_closed: Callable[[Consumer], object],
    ) -> None:
        self.name = name
        self.subscription = subscription
        self.kind = kind
        self.start = start
        self.settings = settings
        self._topic = router.topic
        self._on_closed = on_closed
        self._pieces: deque[FetchedPiece] = deque()
        self._arrived = asyncio.Event()
        self._error: DanubeError | None = None
        self._closing = False
        self._messages: Iterator[Message] = iter(())
        numbers = sorted(self._topic.partitions)
        self._subscribers = {n: PartitionSubscriber(self, router, n) for n in numbers}
        self._task = asyncio.create_task(self._run(), name=f"consumer {name}")

    @property
    def topic(self) -> TopicView:
        """The topic as it was when the consumer was made."""
        return self._topic

    async def opened(self) -> None:
        """Wait until every partition's stream is open. Raises what prevents it."""
        opened = [each.opened for each in self._subscribers.values()]
        waiting: asyncio.Future[Any] = asyncio.gather(*opened)
        # Cancelled below when the consumer ends first: nobody else looks at its outcome then.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        ending: asyncio.Future[Any] = self._task
        try:
            await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise self._error or _closed(self.name)
        finally:
            waiting.cancel()

    # --- receiving ------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        while True:
            for message in self._messages:
                return message
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._messages = iter(batch)

    async def next_batch(self) -> ReceivedBatch | None:
        """The next batch for an iteration; None once the consumer was closed."""
        try:
            return await self._next(None)
        except FailedPrecondition:
            if self._closing:
                return None
            raise

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when none came within ``timeout_s``."""
        for message in self._messages:
            return message
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except TimeoutError:
            return None

    async def receive_batch(
        self, max_messages: int | None = None, timeout_s: float | None = None
    ) -> ReceivedBatch:
        """The next messages of one partition, at most ``max_messages``, as one batch.

        After ``timeout_s`` without any it is an empty batch (and false). Do not mix with
        iterating over messages: what an iteration has begun is not returned here.

        Raises:
            TopicReplaced, TopicNotFound: the topic was deleted (and created again).
            Unavailable: no broker for ``retry_timeout_s``.
        """
        if max_messages is not None and max_messages < 1:
            raise InvalidRequest(f"max_messages is {max_messages}; it must be at least 1")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._next(max_messages)
        except TimeoutError:
            return self._nothing()

    async def _next(self, max_messages: int | None) -> ReceivedBatch:
        while True:
            if self._error is not None:
                raise self._error.with_traceback(None)
            piece = self._pop(max_messages)
            if piece is not None:
                return ReceivedBatch(self, piece)
            self._arrived.clear()
            await self._arrived.wait()

    def _pop(self, max_messages: int | None) -> FetchedPiece | None:
        while self._pieces:
            piece = self._pieces[0]
            if piece.stale:
                self._pieces.popleft()
                continue
            if max_messages is not None and piece.batch.count > max_messages:
                return piece.cut(max_messages)
            self._pieces.popleft()
            piece.subscriber.hand_out(piece)
            return piece
        return None

    def arrived(self, piece: FetchedPiece) -> None:
        """A run of messages is here. Called by our subscribers."""
        self._pieces.append(piece)
        self._arrived.set()

    def _nothing(self) -> ReceivedBatch:
        subscriber = next(iter(self._subscribers.values()))
        empty = MessageBatch(0, message_records([], now_us=0, producer=self.name))
        return ReceivedBatch(self, FetchedPiece(subscriber, empty, append_us=0, redelivery_count=0))

    # --- acknowledging --------------------------------------------------------------------------

    def ack(self, what: Acknowledgeable) -> asyncio.Future[None]:
        """A message, a range of them or a batch is done and need not come again.

        Sent at once, together with what else is acknowledged meanwhile. Awaiting the result waits
        until the broker has it safe; it need not be awaited.

        Raises (when awaited):
            FailedPrecondition: the consumer is closed, or the subscription was reset.
        """
        partition, start, end = _range(what)
        if self._error is not None:
            return self._refused()
        if start == end:
            return _done()
        return self._subscriber(partition).acks.ack(start, end)

    def nack(self, what: Acknowledgeable) -> asyncio.Future[None]:
        """A message, a range or a batch is to be delivered again, to any consumer."""
        partition, start, end = _range(what)
        if self._error is not None:
            return self._refused()
        if start == end:
            return _done()
        return self._subscriber(partition).acks.nack([OffsetRange(start, end)])

    async def ack_and_wait(self, what: Acknowledgeable) -> None:
        """As :meth:`ack`, for the blocking twin."""
        await self.ack(what)

    async def nack_and_wait(self, what: Acknowledgeable) -> None:
        """As :meth:`nack`, for the blocking twin."""
        await self.nack(what)

    def _subscriber(self, partition: int) -> PartitionSubscriber:
        try:
            return self._subscribers[partition]
        except KeyError:
            raise InvalidRequest(f"{self._topic.name} has no partition {partition}") from None

    def _refused(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(self._error or _closed(self.name))
        future.add_done_callback(lambda done: done.exception())
        return future

    # --- life -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: DanubeError = _closed(self.name)
        try:
            async with asyncio.TaskGroup() as tasks:
                for subscriber in self._subscribers.values():
                    tasks.create_task(subscriber.run(), name=f"subscriber of {self.name}")
        except BaseExceptionGroup as group:
            cause = only_error(group)
            if isinstance(cause, DanubeError):
                error = cause
            else:
                log.error("a consumer failed unexpectedly", exc_info=group)
                error = DanubeError(f"the consumer failed unexpectedly: {cause!r}")
        finally:
            self._end(error)

    def _end(self, error: DanubeError) -> None:
        self._error = error
        self._pieces.clear()
        for subscriber in self._subscribers.values():
            subscriber.acks.fail(error)
        self._arrived.set()

    async def close(self) -> None:
        """Wait for answers to all acks, then end the streams. A second call does nothing.

        What was received and not acknowledged goes to other consumers, or comes again later.
        """
        self._closing = True
        try:
            if not self._task.done():
                for subscriber in self._subscribers.values():
                    subscriber.close()
                await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            self._on_closed(self)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _range(what: Acknowledgeable) -> tuple[int, int, int]:
    if isinstance(what, Message):
        offset = what.offset
        return what.partition, offset, offset + 1
    if isinstance(what, MessagesView):
        return what.partition, what.start, what.end
    if isinstance(what, MessageId):
        return what.partition, what.offset, what.offset + 1
    return what


def _closed(name: str) -> DanubeError:
    return FailedPrecondition(f"the consumer {name} is closed; subscribe again")


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
