"""Calls of the batch service without the client, which would mend what these tests break."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import grpc.aio

from danube.core.batch import message_records
from danube.core.errors import DanubeError
from danube.core.frames import Codec, Frame, decode_frame, encode_frame, parse_frame
from danube.core.names import TopicId, producer_id
from danube.core.offsets import OffsetRange
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import open_channel
from danube.wire.status import error_of

NOW_US = 1_700_000_000_000_000
DEADLINE_S = 30.0
PLENTY = 32 * 1024 * 1024
EARLIEST = pb.StartPosition(earliest=True)
LATEST = pb.StartPosition(latest=True)

EOF: Any = vars(grpc.aio)["EOF"]
"""The end of a stream; the stubs do not know it."""

Values = Sequence[bytes]
Placed = tuple[int, bytes]
"""Offset and value."""


def frame_of(
    values: Values,
    *,
    topic_id: str,
    partition: int = 0,
    producer: int = 0,
    epoch: int = 0,
    first_sequence: int = 0,
    codec: Codec = Codec.NONE,
) -> Frame:
    """A frame as a producer makes it."""
    return encode_frame(
        message_records(list(values), now_us=NOW_US, producer="raw"),
        topic_id=TopicId.parse(topic_id).raw,
        partition=partition,
        producer_id=producer,
        producer_epoch=epoch,
        first_sequence=first_sequence,
        codec=codec,
    )


def values_of(frame: bytes, base_offset: int, spans: Iterable[pb.OffsetSpan]) -> list[Placed]:
    """The messages of a frame that are meant, with their offsets."""
    column: Any = decode_frame(parse_frame(frame)).column("value")
    values: list[bytes] = column.to_pylist()
    return [(n, values[n - base_offset]) for span in spans for n in range(span.start, span.end)]


def failed(item: pb.Receipt | pb.Acknowledged) -> DanubeError | None:
    """The error that a receipt or an answer carries, if it does."""
    return _raised(item.failure) if item.HasField("failure") else None


def _raised(failure: pb.Failure) -> DanubeError:
    return error_of(failure)


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call was refused: status, class and message."""

    code: grpc.StatusCode
    error: DanubeError

    def check(self, kind: type[DanubeError], code: grpc.StatusCode, *words: str) -> None:
        """Compare with what is expected; every word must be in the message."""
        assert (type(self.error), self.code) == (kind, code), self.error
        text = str(self.error)
        assert all(word in text for word in words), text
        assert "Traceback" not in text


async def refusal(call: Any) -> Refusal:
    """Await a call, or exhaust a stream, that must be refused."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return Refusal(error.code(), error_of(error))
    raise AssertionError("the call was not refused")


class Raw:
    """One channel to one broker."""

    def __init__(self, url: str) -> None:
        self._channel = open_channel(url)
        self.batch: Any = rpc.BatchServiceStub(self._channel)
        self.admin: Any = rpc.BatchAdminStub(self._channel)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- topics ----------------------------------------------------------------------------

    async def create(self, topic: str, partitions: int = 0, **options: Any) -> str:
        """Create a reliable topic; returns its id."""
        request = pb.CreateTopicRequest(
            topic=topic, partitions=partitions, options=pb.TopicOptions(reliable=True, **options)
        )
        return str((await self.admin.CreateTopic(request, timeout=DEADLINE_S)).topic_id)

    async def delete(self, topic: str) -> None:
        """Delete a topic."""
        await self.admin.DeleteTopic(pb.DeleteTopicRequest(topic=topic), timeout=DEADLINE_S)

    async def lookup(self, topic: str) -> pb.LookupResponse:
        """Where a topic stands."""
        found = await self.batch.Lookup(pb.LookupRequest(topic=topic), timeout=DEADLINE_S)
        assert isinstance(found, pb.LookupResponse)
        return found

    async def where(self, topic: str, partition: int = 0) -> pb.PartitionInfo:
        """Positions of one partition."""
        return (await self.lookup(topic)).partitions[partition]

    async def roll(self, topic: str = "") -> None:
        """Roll what is durable."""
        await self.admin.Roll(pb.RollRequest(topic=topic), timeout=DEADLINE_S)

    async def findings(self, topic: str) -> list[str]:
        """What ``verify`` has to complain about."""
        lines = self.admin.Verify(pb.VerifyRequest(topic=topic), timeout=DEADLINE_S)
        return [line.message async for line in lines if line.finding]

    # -- writing and reading ---------------------------------------------------------------

    @asynccontextmanager
    async def producer(
        self, topic: str, partition: int = 0, *, name: str = "", epoch: int = 0, topic_id: str = ""
    ) -> AsyncIterator[RawProducer]:
        """A publish stream."""
        call = self.batch.Publish()
        producer = RawProducer(call, partition, name or os.urandom(6).hex())
        try:
            await producer.open(topic, epoch, topic_id)
            yield producer
            await call.done_writing()
        finally:
            call.cancel()

    async def publish(self, topic: str, values: Values, partition: int = 0) -> int:
        """Append messages as a producer of its own; returns the first offset."""
        async with self.producer(topic, partition) as producer:
            receipt = await producer.send(values)
            assert not receipt.HasField("failure"), receipt.failure
            return receipt.base_offset

    async def read(
        self, topic: str, start: int = 0, end: int | None = None, partition: int = 0, **options: Any
    ) -> list[Placed]:
        """Messages of a range; by default everything."""
        if end is None:
            end = (await self.where(topic, partition)).durable_offset
        if start == end:
            return []
        request = pb.ReadRequest(topic=topic, partition=partition, start=start, end=end, **options)
        found: list[Placed] = []
        async for item in self.batch.Read(request, timeout=DEADLINE_S):
            found += values_of(item.frame, item.base_offset, [item.span])
        return found

    @asynccontextmanager
    async def consumer(
        self,
        topic: str,
        subscription: str,
        partition: int = 0,
        *,
        kind: pb.SubscriptionType.ValueType = pb.EXCLUSIVE,
        start: pb.StartPosition = EARLIEST,
        name: str = "",
        credit: int = PLENTY,
        topic_id: str = "",
    ) -> AsyncIterator[RawConsumer]:
        """A subscribe stream that has given ``credit`` bytes."""
        call = self.batch.Subscribe()
        consumer = RawConsumer(call)
        opening = pb.SubscribeOpen(
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            subscription=subscription,
            consumer_name=name or os.urandom(6).hex(),
            type=kind,
            start=start,
        )
        try:
            await consumer.open(opening, credit)
            yield consumer
            await call.done_writing()
        finally:
            call.cancel()

    # -- the sink --------------------------------------------------------------------------

    async def stage(
        self,
        topic: str,
        topic_id: str,
        values: Values,
        *,
        batch_id: int = 0,
        partition: int = 0,
        query: str = "query",
        sink: str = "sink",
        run: str = "run",
        chunk: int = 1000,
    ) -> pb.StagedSet:
        """Stage one set."""
        label = pb.SinkLabel(query_id=query, sink_name=sink, batch_id=batch_id, run_id=run)
        opening = pb.StageOpen(
            label=label,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            set_id=os.urandom(16).hex(),
        )

        async def requests() -> AsyncIterator[pb.StageRequest]:
            yield pb.StageRequest(open=opening)
            for at in range(0, len(values), chunk):
                part = values[at : at + chunk]
                frame = frame_of(part, topic_id=topic_id, partition=partition)
                yield pb.StageRequest(frame=frame.to_bytes())

        response = await self.batch.Stage(requests(), timeout=DEADLINE_S)
        assert isinstance(response, pb.StageResponse)
        return response.set

    async def commit(
        self,
        sets: Sequence[pb.StagedSet],
        batch_id: int = 0,
        *,
        query: str = "query",
        sink: str = "sink",
        run: str = "run",
    ) -> pb.CommitBatchResponse:
        """Commit a batch."""
        request = pb.CommitBatchRequest(
            query_id=query, sink_name=sink, batch_id=batch_id, run_id=run, sets=sets, streaming=True
        )
        response = await self.batch.CommitBatch(request, timeout=DEADLINE_S)
        assert isinstance(response, pb.CommitBatchResponse)
        return response

    async def abort(
        self, sets: Sequence[pb.StagedSet], batch_id: int = 0, run: str = "run"
    ) -> bool:
        """Abort a batch; whether it was decided."""
        request = pb.AbortBatchRequest(
            query_id="query", sink_name="sink", batch_id=batch_id, run_id="run", sets=sets
        )
        return bool((await self.batch.AbortBatch(request, timeout=DEADLINE_S)).was_decided)


class RawProducer:
    """A publish stream, frame by frame."""

    def __init__(self, call: Any, partition: int, name: str) -> None:
        self._call = call
        self._partition = partition
        self.name = name
        self.next_sequence = 0
        self.opened = pb.PublishOpened()

    async def open(self, topic: str, epoch: int, topic_id: str) -> None:
        """Open it."""
        opening = pb.PublishOpen(
            topic=topic,
            partition=self._partition,
            topic_id=topic_id,
            producer_name=self.name,
            producer_epoch=epoch,
        )
        await self._call.write(pb.PublishRequest(open=opening))
        self.opened = (await _next(self._call)).opened
        known = producer_id(TopicId.parse(self.opened.topic_id), self.name)
        assert self.opened.producer_id == known

    def frame(self, values: Values, first_sequence: int | None = None, **changes: Any) -> Frame:
        """The next frame, or the one at ``first_sequence``."""
        if first_sequence is None:
            first_sequence = self.next_sequence
            self.next_sequence += len(values)
        given = {
            "topic_id": self.opened.topic_id,
            "partition": self._partition,
            "producer": self.opened.producer_id,
            "epoch": self.opened.producer_epoch,
            **changes,
        }
        return frame_of(values, first_sequence=first_sequence, **given)

    async def post(self, frame: Frame | bytes) -> None:
        """Send a frame without waiting for its receipt."""
        data = frame if isinstance(frame, bytes) else frame.to_bytes()
        await self._call.write(pb.PublishRequest(frame=data))

    async def receipt(self) -> pb.Receipt:
        """The next receipt."""
        found: pb.Receipt = (await _next(self._call)).receipt
        return found

    async def send(self, values: Values, first_sequence: int | None = None) -> pb.Receipt:
        """Send a frame and wait for its receipt."""
        await self.post(self.frame(values, first_sequence))
        return await self.receipt()


class RawConsumer:
    """A subscribe stream."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.opened = pb.SubscribeOpened()
        self._requests = 0

    async def open(self, opening: pb.SubscribeOpen, credit: int) -> None:
        """Open it and give credit."""
        await self.call.write(pb.SubscribeRequest(open=opening))
        self.opened = (await _next(self.call)).opened
        if credit:
            await self.give(credit)

    async def give(self, credit: int) -> None:
        """Give credit."""
        await self.call.write(pb.SubscribeRequest(credit=pb.Credit(bytes=credit)))

    async def next(self) -> pb.SubscribeResponse:
        """Whatever comes next."""
        found: pb.SubscribeResponse = await _next(self.call)
        return found

    async def delivery(self) -> list[Placed]:
        """The messages of the next delivery; its bytes are given back as credit."""
        found = (await self.next()).delivery
        assert found.spans, "an acknowledgement came in between"
        await self.give(len(found.frame))
        return values_of(found.frame, found.base_offset, found.spans)

    async def messages(self, count: int) -> list[Placed]:
        """At least ``count`` messages."""
        found: list[Placed] = []
        while len(found) < count:
            found += await self.delivery()
        return found

    async def post_ack(
        self, acked: Iterable[OffsetRange] = (), nacked: Iterable[OffsetRange] = ()
    ) -> int:
        """Send an acknowledgement; returns its request id."""
        self._requests += 1
        request = pb.Acknowledge(
            request_id=self._requests,
            acked=[pb.OffsetSpan(start=r.start, end=r.end) for r in acked],
            nacked=[pb.OffsetSpan(start=r.start, end=r.end) for r in nacked],
        )
        await self.call.write(pb.SubscribeRequest(acknowledge=request))
        return self._requests

    async def ack(self, start: int, end: int) -> pb.Acknowledged:
        """Acknowledge a range and wait for the answer, passing over deliveries."""
        await self.post_ack([OffsetRange(start, end)])
        while True:
            found = await self.next()
            if found.WhichOneof("kind") == "acknowledged":
                return found.acknowledged


async def _next(call: Any) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        found = await call.read()
    assert found is not EOF, "the stream has ended in order"
    return found


async def eventually(check: Any, timeout_s: float = DEADLINE_S) -> None:
    """Look until ``check()`` (plain or async) is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = check()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
