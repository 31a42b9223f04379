"""One partition of one consumer: its stream, its credit, and what a broken stream means.

Credit is in bytes: granted once for what may be fetched ahead, and again as batches are handed to
the application. When a stream breaks, what was fetched and not handed out is thrown away, because
the broker delivers it again; acks without an answer go first on the next stream, before any credit,
so that what they name is not delivered again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from danube.client.acks import AckBuffer
from danube.client.connection import Router
from danube.client.retry import Backoff, is_transient
from danube.client.settings import ClientSettings
from danube.client.streams import (
    Deadline,
    answered_in_time,
    next_response,
    only_error,
    stream_errors,
    wait_event,
    write,
)
from danube.core.batch import MessageBatch
from danube.core.errors import Corruption, DanubeError, InvalidFrame, SubscriptionBusy
from danube.core.frames import decode_frame, parse_frame
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import error_of
from danube.wire.translate import StartPosition, kind_to_proto, start_to_proto


class ConsumerState(Protocol):
    """What a partition's subscriber needs of its consumer."""

    name: str
    subscription: str
    kind: str
    start: StartPosition
    settings: ClientSettings

    def arrived(self, piece: FetchedPiece) -> None:
        """A run of messages is ready to be handed out."""


class FetchedPiece:
    """A run of messages from one delivery, and the stream it came on.

    ``credit`` is what handing it out gives back: the delivery's bytes, on its last run.
    """

    __slots__ = ("append_us", "batch", "credit", "redelivery_count", "session", "subscriber")

    def __init__(
        self,
        subscriber: PartitionSubscriber,
        batch: MessageBatch,
        *,
        append_us: int,
        redelivery_count: int,
        credit: int = 0,
    ) -> None:
        self.subscriber = subscriber
        self.session = subscriber.session
        self.batch = batch
        self.append_us = append_us
        self.redelivery_count = redelivery_count
        self.credit = credit

    def cut(self, count: int) -> FetchedPiece:
        """Take the first ``count`` messages; this piece keeps the others and the credit."""
        middle = self.batch.base_offset + count
        first = FetchedPiece(
            self.subscriber,
            self.batch.slice(0, middle),
            append_us=self.append_us,
            redelivery_count=self.redelivery_count,
        )
        self.batch = self.batch.slice(middle, self.batch.end_offset)
        return first

    @property
    def stale(self) -> bool:
        """Whether its stream is over, so that the broker delivers it again."""
        return self.session != self.subscriber.session


class PartitionSubscriber:
    """Receives one partition's messages and sends acks."""

    def __init__(self, consumer: ConsumerState, router: Router, partition: int) -> None:
        self.partition = partition
        self.session = 0
        self._consumer = consumer
        self._router = router
        self._settings = consumer.settings
        self._topic = router.topic
        self._doing = (
            f"consuming partition {partition} of {self._topic.name} as {consumer.subscription}"
        )
        self._event = asyncio.Event()
        self.acks = AckBuffer(self._event.set)
        self._credit = 0
        self._closing = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Receive until closed.

        Raises:
            DanubeError: the subscription cannot go on.
        """
        backoff = Backoff(self._settings)
        while not (self._closing and self.acks.idle):
            try:
                await self._session(backoff)
            except DanubeError as error:
                self.session += 1  # what is queued from this stream comes again
                await self._recover(error, backoff)

    def hand_out(self, piece: FetchedPiece) -> None:
        """The application has a piece: its bytes may be fetched again."""
        if piece.credit and not piece.stale:
            self._credit += piece.credit
            if self._credit >= self._settings.prefetch_bytes // 4:
                self._event.set()

    def close(self) -> None:
        """End once every ack is answered."""
        self._closing = True
        self._event.set()

    async def _recover(self, error: DanubeError, backoff: Backoff) -> None:
        self._router.distrust()
        # After a broken connection the broker may still see the old consumer for a moment.
        still_there = isinstance(error, SubscriptionBusy) and self.opened.done()
        pause_s = backoff.pause_s() if is_transient(error) or still_there else None
        if pause_s is None:
            raise error
        await asyncio.sleep(pause_s)

    async def _session(self, backoff: Backoff) -> None:
        stub = await self._router.stub(self.partition)
        call: Any = cast(Any, stub).Subscribe()
        try:
            async with (
                answered_in_time(self._settings.request_timeout_s, self._doing) as deadline,
                asyncio.TaskGroup() as tasks,
            ):
                with stream_errors(self._doing):
                    deadline.start()
                    await self._open(call)
                    deadline.stop()
                    sender = tasks.create_task(self._send(call, deadline))
                    try:
                        await self._receive(call, deadline, backoff)
                    finally:
                        sender.cancel()
        except BaseExceptionGroup as group:
            raise only_error(group) from None
        finally:
            call.cancel()

    async def _open(self, call: Any) -> None:
        consumer = self._consumer
        request = pb.SubscribeOpen(
            topic=self._topic.name,
            partition=self.partition,
            topic_id=self._topic.topic_id,
            subscription=consumer.subscription,
            consumer_name=consumer.name,
            type=kind_to_proto(consumer.kind),
            start=start_to_proto(consumer.start),
        )
        await write(call, pb.SubscribeRequest(open=request))
        opened = (await next_response(call, self._doing)).opened
        self.acks.opened(opened.cursor)
        self._credit = self._settings.prefetch_bytes
        if not self.opened.done():
            self.opened.set_result(None)

    async def _send(self, call: Any, deadline: Deadline) -> None:
        """Acks first, then credit: what an ack names must not be delivered again."""
        while True:
            request = self.acks.next_request()
            if request is not None:
                deadline.start()
                if not await write(call, pb.SubscribeRequest(acknowledge=request)):
                    return
            if self._credit and not self._closing:
                credit, self._credit = self._credit, 0
                grant = pb.Credit(bytes=credit)
                if not await write(call, pb.SubscribeRequest(credit=grant)):
                    return
            if self._closing and self.acks.idle:
                deadline.start()
                await call.done_writing()
                return
            await wait_event(self._event, None)

    async def _receive(self, call: Any, deadline: Deadline, backoff: Backoff) -> None:
        while True:
            response = await next_response(call, self._doing, end=self._is_done)
            if response is None:
                return
            backoff.progress()
            if response.HasField("delivery"):
                self._deliver(response.delivery)
            elif response.HasField("acknowledged"):
                answer = response.acknowledged
                failure = error_of(answer.failure) if answer.HasField("failure") else None
                self.acks.answered(answer.request_id, answer.cursor, failure)
                if not self.acks.awaiting_answer:
                    deadline.stop()
                self._event.set()

    def _is_done(self) -> bool:
        return self._closing and self.acks.idle

    def _deliver(self, delivery: pb.Delivery) -> None:
        try:
            records = decode_frame(parse_frame(delivery.frame))
        except InvalidFrame as error:
            raise Corruption(f"{self._doing}: a delivered frame is damaged: {error}") from error
        whole = MessageBatch(delivery.base_offset, records)
        pieces = [
            FetchedPiece(
                self,
                whole.slice(span.start, span.end),
                append_us=delivery.append_time_us,
                redelivery_count=delivery.redelivery_count,
            )
            for span in delivery.spans
        ]
        if pieces:
            pieces[-1].credit = len(delivery.frame)
        for piece in pieces:
            self._consumer.arrived(piece)
