"""A small batch service in memory whose misbehaviour is scripted: lost replies, resets, refusals.

It keeps what a client can observe of a broker (idempotent producers, cursors, credit, topic ids)
and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from danube.core.batch import MessageBatch
from danube.core.errors import (
    DanubeError,
    ProducerFenced,
    SequenceGap,
    SubscriptionBusy,
    TopicNotFound,
    TopicReplaced,
    Unavailable,
    Unsupported,
)
from danube.core.frames import Frame, decode_frame, parse_frame
from danube.core.names import TopicId, producer_id
from danube.core.offsets import RangeSet
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import server_options
from danube.wire.status import GuardInterceptor, failure_of


@dataclass
class StoredFrame:
    base: int
    frame: Frame

    @property
    def end(self) -> int:
        return self.base + self.frame.header.count


@dataclass
class KnownProducer:
    """Of one (producer id, epoch): the next sequence, and the last five frames' offsets."""

    next_sequence: int = 0
    last: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))


@dataclass
class Cursor:
    acked: RangeSet = field(default_factory=RangeSet)
    start: int = 0
    consumers: int = 0

    @property
    def offset(self) -> int:
        for span in self.acked:
            if span.start <= self.start < span.end:
                return span.end
        return self.start


@dataclass
class Partition:
    frames: list[StoredFrame] = field(default_factory=list)
    producers: dict[tuple[int, int], KnownProducer] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        return self.frames[-1].end if self.frames else 0

    def values(self) -> list[bytes]:
        found: list[Any] = []
        for stored in self.frames:
            found.extend(decode_frame(stored.frame).column("value").to_pylist())
        return found

    def append(self, frame: Frame) -> tuple[int, bool]:
        header = frame.header
        known = self.producers.get((header.producer_id, header.producer_epoch))
        if known is None:
            if header.first_sequence:
                raise SequenceGap("the broker does not know this producer")
            known = self.producers[header.producer_id, header.producer_epoch] = KnownProducer()
        for sequence, offset in known.last:
            if sequence == header.first_sequence:
                return offset, True
        if header.first_sequence != known.next_sequence:
            raise SequenceGap(f"expected {known.next_sequence}, got {header.first_sequence}")
        base = self.end
        self.frames.append(StoredFrame(base, frame))
        known.next_sequence += header.count
        known.last.append((header.first_sequence, base))
        self.wake()
        return base, False

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Topic:
    def __init__(self, partitions: int) -> None:
        self.topic_id = TopicId(os.urandom(16))
        self.partitions = [Partition() for _ in range(partitions)]


class ScriptedBroker(rpc.BatchServiceServicer, rpc.BatchAdminServicer):
    """``script`` is consulted per frame, the oldest first; when it is empty all goes well.

    lose-reply: append, then break the stream; reset: break it before; hang: append and say
    nothing; hold: append, and answer once ``released``; an exception: refuse the frame with it;
    forget: forget all producers before looking at the frame.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.script: deque[str | DanubeError] = deque()
        self.ack_script: deque[str | DanubeError] = deque()
        self.released = asyncio.Event()
        self.held = asyncio.Event()
        self.frames_seen: list[Frame] = []
        self.frame_came = asyncio.Event()
        self.opens: list[pb.PublishOpen] = []
        self.subscribes: list[pb.SubscribeOpen] = []
        self.subscribe_came = asyncio.Event()
        self.acks_seen: list[pb.Acknowledge] = []
        self.credit_granted: list[int] = []
        self.lookups = 0
        self.lookup_errors: deque[DanubeError] = deque()
        self.max_message_bytes = 4 << 20
        self.calls: list[asyncio.Event] = []
        self.url = ""
        self._server: Any = None

    # --- life -----------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> str:
        server = grpc.aio.server(options=server_options(), interceptors=[GuardInterceptor()])
        rpc.add_BatchServiceServicer_to_server(self, server)
        rpc.add_BatchAdminServicer_to_server(self, server)
        number = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        self._server = server
        self.url = f"127.0.0.1:{number}"
        return self.url

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def create(self, name: str, partitions: int = 1) -> Topic:
        topic = self.topics[name] = Topic(partitions)
        return topic

    async def seen(self, frames: int) -> None:
        """Wait until so many frames arrived."""
        while len(self.frames_seen) < frames:
            self.frame_came.clear()
            await self.frame_came.wait()

    async def subscribed(self, times: int) -> None:
        """Wait until so many subscribe streams were opened."""
        while len(self.subscribes) < times:
            self.subscribe_came.clear()
            await self.subscribe_came.wait()

    def reset_streams(self) -> None:
        """Break every stream there is."""
        for broken in self.calls:
            broken.set()

    def _topic(self, name: str, topic_id: str = "") -> Topic:
        if name not in self.topics:
            raise TopicNotFound(f"there is no topic {name}")
        topic = self.topics[name]
        if topic_id and topic_id != str(topic.topic_id):
            raise TopicReplaced(f"{name} is another topic now")
        return topic

    # --- BatchService ---------------------------------------------------------------------------

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupResponse:
        self.lookups += 1
        if self.lookup_errors:
            raise self.lookup_errors.popleft()
        if request.create and request.topic not in self.topics:
            self.create(request.topic, max(1, request.partitions))
        topic = self._topic(request.topic)
        return pb.LookupResponse(
            topic=request.topic,
            topic_id=str(topic.topic_id),
            partitioned=len(topic.partitions) > 1,
            partitions=[
                pb.PartitionInfo(partition=number, broker_url=self.url, durable_offset=each.end)
                for number, each in enumerate(topic.partitions)
            ],
            max_message_bytes=self.max_message_bytes,
            max_frame_bytes=8 << 20,
            reliable=True,
        )

    async def Publish(
        self, request_iterator: AsyncIterator[pb.PublishRequest], context: Any
    ) -> AsyncIterator[pb.PublishResponse]:
        broken = asyncio.Event()
        self.calls.append(broken)
        opened: pb.PublishOpen | None = None
        partition = Partition()
        while True:
            request = await _next(request_iterator, broken)
            if request is None:
                return
            if opened is None:
                opened = request.open
                self.opens.append(opened)
                topic = self._topic(opened.topic, opened.topic_id)
                partition = topic.partitions[opened.partition]
                yield pb.PublishResponse(opened=self._open(topic, partition, opened))
                continue
            receipt = await self._receive(partition, parse_frame(request.frame))
            if receipt is not None:
                yield pb.PublishResponse(receipt=receipt)

    def _open(self, topic: Topic, partition: Partition, opened: pb.PublishOpen) -> pb.PublishOpened:
        identity = producer_id(topic.topic_id, opened.producer_name)
        epoch = partition.epochs.get(identity, 0)
        if opened.producer_epoch and opened.producer_epoch < epoch:
            raise ProducerFenced(f"{opened.producer_name} has been opened by somebody else")
        if not opened.producer_epoch:
            epoch = partition.epochs[identity] = epoch + 1
        return pb.PublishOpened(
            topic_id=str(topic.topic_id),
            producer_id=identity,
            producer_epoch=opened.producer_epoch or epoch,
            max_message_bytes=self.max_message_bytes,
            max_frame_bytes=8 << 20,
            max_in_flight=5,
        )

    async def _receive(self, partition: Partition, frame: Frame) -> pb.Receipt | None:
        self.frames_seen.append(frame)
        self.frame_came.set()
        sequence = frame.header.first_sequence
        step = self.script.popleft() if self.script else "ok"
        if step == "reset":
            raise Unavailable("the connection broke")
        if step == "forget":
            partition.producers.clear()
        try:
            if isinstance(step, DanubeError):
                raise step
            base, duplicate = partition.append(frame)
        except DanubeError as error:
            return pb.Receipt(first_sequence=sequence, failure=failure_of(error))
        if step == "lose-reply":
            raise Unavailable("the connection broke after the append")
        if step == "hang":
            return None
        if step == "hold":
            self.held.set()
            await self.released.wait()
        return pb.Receipt(
            first_sequence=sequence,
            count=frame.header.count,
            base_offset=base,
            duplicate=duplicate,
            append_time_us=1_700_000_000_000_000,
        )

    async def Subscribe(
        self, request_iterator: AsyncIterator[pb.SubscribeRequest], context: Any
    ) -> AsyncIterator[pb.SubscribeResponse]:
        broken = asyncio.Event()
        self.calls.append(broken)
        first = await _next(request_iterator, broken)
        if first is None:
            return
        request = first.open
        self.subscribes.append(request)
        self.subscribe_came.set()
        topic = self._topic(request.topic, request.topic_id)
        partition = topic.partitions[request.partition]
        cursor = partition.cursors.get(request.subscription)
        if cursor is None:
            start = 0 if request.start.earliest else request.start.offset or partition.end
            cursor = partition.cursors[request.subscription] = Cursor(start=start)
        if request.type == pb.EXCLUSIVE and cursor.consumers:
            raise SubscriptionBusy(f"{request.subscription} is taken")
        cursor.consumers += 1
        try:
            yield pb.SubscribeResponse(
                opened=pb.SubscribeOpened(
                    topic_id=str(topic.topic_id), consumer_id=1, cursor=cursor.offset
                )
            )
            stream = _SubscriptionStream(self, partition, cursor)
            async for response in stream.run(request_iterator, broken):
                yield response
        finally:
            cursor.consumers -= 1

    async def Read(self, request: pb.ReadRequest, context: Any) -> AsyncIterator[pb.ReadResponse]:
        broken = asyncio.Event()
        self.calls.append(broken)
        partition = self._topic(request.topic, request.topic_id).partitions[request.partition]
        at = request.start
        while not request.end or at < request.end:
            stored = next((each for each in partition.frames if each.end > at), None)
            if stored is None:
                await _either(partition.changed, broken)
                continue
            if broken.is_set() or (self.script and self.script.popleft() == "reset"):
                raise Unavailable("the connection broke")
            end = min(stored.end, request.end or stored.end)
            yield pb.ReadResponse(
                frame=stored.frame.to_bytes(),
                base_offset=stored.base,
                append_time_us=1_700_000_000_000_000,
                span=pb.OffsetSpan(start=at, end=end),
            )
            at = end

    async def Plan(self, request: Any, context: Any) -> Any:
        raise Unsupported("the scripted broker cannot do this")

    Stage: Any = Plan
    CommitBatch: Any = Plan
    AbortBatch: Any = Plan
    RegisterQuery: Any = Plan
    MoveCursor: Any = Plan

    async def OffsetsForTime(self, request: Any, context: Any) -> Any:
        return pb.OffsetsForTimeResponse(offsets=dict.fromkeys(request.partitions, 1))

    # --- BatchAdmin -----------------------------------------------------------------------------

    async def CreateTopic(self, request: Any, context: Any) -> Any:
        created = request.topic not in self.topics
        topic = self.create(request.topic, max(1, request.partitions))
        return pb.CreateTopicResponse(topic_id=str(topic.topic_id), created=created)

    async def ListTopics(self, request: Any, context: Any) -> Any:
        names = sorted(name for name in self.topics if name > request.start_after)
        page = names[:2]
        return pb.ListTopicsResponse(
            topics=[
                pb.TopicSummary(topic=name, topic_id=str(self.topics[name].topic_id), partitions=1)
                for name in page
            ],
            next=page[-1] if len(names) > 2 else "",
        )

    async def DeleteTopic(self, request: Any, context: Any) -> Any:
        self._topic(request.topic, request.topic_id)
        del self.topics[request.topic]
        return pb.DeleteTopicResponse()

    async def Verify(self, request: Any, context: Any) -> Any:
        yield pb.VerifyResponse(message="reading", messages=1)
        yield pb.VerifyResponse(message="log and table agree", finished=True, messages=2)

    DescribeTopic: Any = Plan
    ListSubscriptions: Any = Plan
    CreateSubscription: Any = Plan
    ResetSubscription: Any = Plan
    DeleteSubscription: Any = Plan
    ListSinks: Any = Plan
    ForgetSink: Any = Plan
    Roll: Any = Plan


class _SubscriptionStream:
    """One consumer's stream: credit and acks in, deliveries out."""

    def __init__(self, broker: ScriptedBroker, partition: Partition, cursor: Cursor) -> None:
        self._broker = broker
        self._partition = partition
        self._cursor = cursor
        self._credit = 0
        self._at = cursor.offset
        self._redeliver: deque[tuple[int, int]] = deque()
        self._answers: deque[pb.Acknowledged] = deque()
        self._event = asyncio.Event()
        self._ended = False

    async def run(
        self, requests: AsyncIterator[pb.SubscribeRequest], broken: asyncio.Event
    ) -> AsyncIterator[pb.SubscribeResponse]:
        reader = asyncio.create_task(self._take(requests, broken))
        try:
            while True:
                self._event.clear()
                changed = self._partition.changed
                while self._answers:
                    yield pb.SubscribeResponse(acknowledged=self._answers.popleft())
                for delivery in self._due():
                    yield pb.SubscribeResponse(delivery=delivery)
                if broken.is_set():
                    raise Unavailable("the connection broke")
                if self._ended:
                    return
                await _either(self._event, changed)
        finally:
            reader.cancel()

    async def _take(
        self, requests: AsyncIterator[pb.SubscribeRequest], broken: asyncio.Event
    ) -> None:
        try:
            while (request := await _next(requests, broken)) is not None:
                if request.HasField("credit"):
                    self._credit += request.credit.bytes
                    self._broker.credit_granted.append(request.credit.bytes)
                else:
                    self._acknowledge(request.acknowledge, broken)
                self._event.set()
            self._ended = True
        except Unavailable:
            broken.set()
        self._event.set()

    def _acknowledge(self, request: pb.Acknowledge, broken: asyncio.Event) -> None:
        self._broker.acks_seen.append(request)
        script = self._broker.ack_script
        step = script.popleft() if script else "ok"
        answer = pb.Acknowledged(request_id=request.request_id)
        if step == "reset":
            broken.set()
            return
        if isinstance(step, DanubeError):
            answer.failure.CopyFrom(failure_of(step))
        else:
            for span in request.acked:
                self._cursor.acked.add(span.start, span.end)
            self._redeliver.extend((span.start, span.end) for span in request.nacked)
        answer.cursor = self._cursor.offset
        if step == "lose-reply":
            broken.set()
        else:
            self._answers.append(answer)

    def _due(self) -> Iterable[pb.Delivery]:
        while self._credit > 0 and self._redeliver:
            start, end = self._redeliver.popleft()
            for stored in self._partition.frames:
                low, high = max(start, stored.base), min(end, stored.end)
                if low < high:
                    yield self._delivery(stored, [(low, high)], 1)
        for stored in self._partition.frames:
            if self._credit <= 0 or stored.end <= self._at:
                continue
            start = max(stored.base, self._at)
            self._at = stored.end
            gaps = [(gap.start, gap.end) for gap in self._cursor.acked.gaps(start, stored.end)]
            if gaps:
                yield self._delivery(stored, gaps, 0)

    def _delivery(
        self, stored: StoredFrame, spans: list[tuple[int, int]], count: int
    ) -> pb.Delivery:
        frame = stored.frame.to_bytes()
        self._credit -= len(frame)
        return pb.Delivery(
            frame=frame,
            base_offset=stored.base,
            append_time_us=1_700_000_000_000_000,
            spans=[pb.OffsetSpan(start=start, end=end) for start, end in spans],
            redelivery_count=count,
        )


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def _next(requests: AsyncIterator[Any], broken: asyncio.Event) -> Any:
    """The next request, None at the end. Raises Unavailable when the stream is to break."""
    waiting = asyncio.ensure_future(anext(requests, None))
    breaking = asyncio.ensure_future(broken.wait())
    try:
        await asyncio.wait([waiting, breaking], return_when=asyncio.FIRST_COMPLETED)
        if broken.is_set():
            raise Unavailable("the connection broke")
        return waiting.result()
    finally:
        waiting.cancel()
        breaking.cancel()


def batches_of(partition: Partition) -> list[MessageBatch]:
    """What is stored, as batches."""
    return [MessageBatch(each.base, decode_frame(each.frame)) for each in partition.frames]
