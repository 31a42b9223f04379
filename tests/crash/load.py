"""The load of the kill tests: producers, consumers and a sink's driver, which outlive brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, Final

import grpc.aio

import danube
from danube.client.settings import ClientSettings
from danube.core.offsets import OffsetRange, RangeSet
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import error_of, is_retryable
from tests.crash.beliefs import Beliefs, hold
from tests.integration.broker.raw import DEADLINE_S, EOF, Raw, eventually, failed, values_of

TOPIC: Final = "/default/load"
PARTITIONS: Final = 3
SETTINGS: Final = ClientSettings(retry_min_ms=5, retry_max_ms=50, retry_timeout_s=60)
PAUSE_S: Final = 0.01
"""Between attempts while the broker is away."""

WRITE_TO_BROKEN_STREAM: Final = "Internal error from Core"
"""What grpc makes, all by itself, of a write to a stream whose connection has just gone."""

SINK_ROWS: Final = 40
SUBSCRIPTIONS: Final = {"alone": (pb.EXCLUSIVE, 1), "together": (pb.SHARED, 2)}
"""Name to kind and how many consumers it has."""


class Load:
    """Everything that goes on at once; ``run`` until ``stop``."""

    def __init__(self, url: str, beliefs: Beliefs, random_: random.Random) -> None:
        self.url = url
        self.beliefs = beliefs
        self.raw = Raw(url)
        self.stopping = asyncio.Event()
        self.batches = 0
        self.reconnects = 0
        self._random = random_
        self._topic_id = ""

    async def run(self, topic_id: str) -> None:
        """Produce, consume and commit until stopped; raises what breaks a promise."""
        self._topic_id = topic_id
        async with (
            danube.connect(self.url, settings=SETTINGS) as client,
            asyncio.TaskGroup() as group,
        ):
            consumers = [
                group.create_task(self._consume(name, kind, number, copy))
                for number in range(PARTITIONS)
                for name, (kind, copies) in SUBSCRIPTIONS.items()
                for copy in range(copies)
            ]
            async with asyncio.TaskGroup() as producers:
                producers.create_task(self._send(client))
                producers.create_task(self._send_batches(client))
                producers.create_task(self._publish(client))
                producers.create_task(self._drive_sink())
            await self._catch_up()
            for consumer in consumers:
                consumer.cancel()
        await self.raw.close()

    # -- producers -------------------------------------------------------------------------

    async def _send(self, client: danube.Client) -> None:
        numbers = count()
        async with client.producer(TOPIC, name="sender") as producer:
            while not self.stopping.is_set():
                values = [b"send %d" % next(numbers) for _ in range(20)]
                sent = [
                    producer.send(v, partition=self._random.randrange(PARTITIONS)) for v in values
                ]
                for value, found in zip(values, await asyncio.gather(*sent), strict=True):
                    self.beliefs.acknowledged(found.partition, found.offset, value)

    async def _send_batches(self, client: danube.Client) -> None:
        numbers = count()
        async with client.producer(TOPIC, name="batcher", codec="lz4") as producer:
            while not self.stopping.is_set():
                values = [b"batch %d" % next(numbers) for _ in range(100)]
                partition = self._random.randrange(PARTITIONS)
                at = 0
                for found in await producer.send_batch(values, partition=partition):
                    for offset in range(found.start, found.end):
                        self.beliefs.acknowledged(found.partition, offset, values[at])
                        at += 1
                await asyncio.sleep(0.02)

    async def _publish(self, client: danube.Client) -> None:
        async with client.producer(TOPIC, name="publisher", linger_ms=2) as producer:
            for number in count():
                if self.stopping.is_set():
                    return
                value = b"publish %d" % number

                def told(found: danube.Delivery, value: bytes = value) -> None:
                    hold(found.error is None, f"{value!r} was not published: {found.error}")
                    assert found.offset is not None
                    self.beliefs.acknowledged(found.partition, found.offset, value)

                producer.publish(value, partition=number % PARTITIONS, on_delivery=told)
                if number % 100 == 99:
                    await producer.flush()
                    await asyncio.sleep(0.01)

    # -- consumers -------------------------------------------------------------------------

    async def _consume(
        self, name: str, kind: pb.SubscriptionType.ValueType, partition: int, copy: int
    ) -> None:
        while True:
            try:
                await self._consume_stream(name, kind, partition, f"{name}-{copy}")
            except grpc.aio.AioRpcError as error:
                self._passing(error)
            except asyncio.InvalidStateError:
                # A write to a stream that has just broken.
                self.reconnects += 1
            await asyncio.sleep(PAUSE_S)

    async def _consume_stream(
        self, name: str, kind: pb.SubscriptionType.ValueType, partition: int, consumer_name: str
    ) -> None:
        before = self.beliefs.subscriptions[name, partition].answered.copy()
        waiting: dict[int, list[OffsetRange]] = {}
        stream = self.raw.consumer(TOPIC, name, partition, kind=kind, name=consumer_name)
        async with stream as consumer:
            while (item := await consumer.call.read()) is not EOF:
                if item.WhichOneof("kind") == "acknowledged":
                    spans = waiting.pop(item.acknowledged.request_id)
                    self._take_answer(name, partition, before, item.acknowledged, spans)
                    continue
                found = item.delivery
                for offset, value in values_of(found.frame, found.base_offset, found.spans):
                    self.beliefs.delivered(name, partition, before, offset, value)
                spans = [OffsetRange(s.start, s.end) for s in found.spans]
                waiting[await consumer.post_ack(spans)] = spans
                await consumer.give(len(found.frame))

    def _take_answer(
        self,
        name: str,
        partition: int,
        before: RangeSet,
        answer: pb.Acknowledged,
        spans: list[OffsetRange],
    ) -> None:
        refused = failed(answer)
        if refused is not None:
            hold(is_retryable(refused), f"an ack was refused: {refused}")
            return
        for span in spans:
            self.beliefs.answered(name, partition, span)
            before.add(span.start, span.end)

    async def _catch_up(self) -> None:
        """Wait until both subscriptions have got everything and lag behind nothing.

        Not until they got all answers: a kill takes some of those with it.
        """
        for number in range(PARTITIONS):
            end = (await self.raw.where(TOPIC, number)).durable_offset
            for name in SUBSCRIPTIONS:
                acks = self.beliefs.subscriptions[name, number]
                await eventually(partial(acks.seen.covers, 0, end))
        await eventually(self._no_lag)

    async def _no_lag(self) -> bool:
        request = pb.ListSubscriptionsRequest(topic=TOPIC)
        found = await self.raw.admin.ListSubscriptions(request, timeout=DEADLINE_S)
        return not sum(p.lag_messages for item in found.subscriptions for p in item.partitions)

    # -- the sink's driver -----------------------------------------------------------------

    async def _drive_sink(self) -> None:
        for batch_id in count():
            if self.stopping.is_set():
                return
            values = await self._stage_and_commit(batch_id)
            if values is not None:
                self.beliefs.committed.update(values)
                self.batches += 1

    async def _stage_and_commit(self, batch_id: int) -> list[bytes] | None:
        for attempt in count():
            values = [b"sink %d.%d.%d" % (batch_id, attempt, n) for n in range(SINK_ROWS)]
            half = SINK_ROWS // 2
            try:
                sets = [
                    await self._stage(batch_id, partition, part)
                    for partition, part in ((0, values[:half]), (1, values[half:]))
                ]
            except grpc.aio.AioRpcError as error:
                self._passing(error)
                self.beliefs.never.update(values)
                await asyncio.sleep(PAUSE_S)
                continue
            if self._random.random() < 0.2:
                # A driver that changes its mind: nothing of this may ever be seen.
                was_decided = await self._again(partial(self.raw.abort, sets, batch_id))
                hold(not was_decided, f"batch {batch_id} was decided before its commit")
                self.beliefs.never.update(values)
                continue
            answer = await self._again(partial(self.raw.commit, sets, batch_id))
            hold(not answer.lost, f"parts of batch {batch_id} are lost")
            return values
        raise AssertionError("count() does not end")

    async def _stage(self, batch_id: int, partition: int, values: list[bytes]) -> pb.StagedSet:
        return await self.raw.stage(
            TOPIC, self._topic_id, values, batch_id=batch_id, partition=partition, chunk=8
        )

    async def _again(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                self._passing(error)
                await asyncio.sleep(PAUSE_S)

    # -- small parts -----------------------------------------------------------------------

    def _passing(self, error: grpc.aio.AioRpcError) -> None:
        """A broker that is away is no news; anything else is a finding."""
        if error.details() == WRITE_TO_BROKEN_STREAM:
            return
        found = error_of(error)
        hold(is_retryable(found), f"{type(found).__name__}: {found}")
        self.reconnects += 1
