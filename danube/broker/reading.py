"""Reading without a subscription: ranges of frames, plans for Spark, offsets by time, lookups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from danube.broker.topics import Topics
from danube.core.errors import (
    DataLost,
    DeadlineExceeded,
    InvalidRequest,
    MemoryFull,
    OffsetOutOfRange,
)
from danube.core.limits import MIB
from danube.log.reading import StoredFrame
from danube.log.times import offset_for_time
from danube.log.topic import Owned, PlannedRange
from danube.metadata.catalog import TopicRecord
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb

READ_AHEAD_BYTES = 4 * MIB
"""What one read holds in memory at a time."""

SLOT_WAIT_S = 10.0
"""Longest wait for other reads to end."""

MAX_WAIT_S = 60.0
"""Longest wait for messages that are not there yet."""


class Reads:
    """The reading half of the batch service."""

    def __init__(self, topics: Topics, broker_url: str, *, max_reads: int) -> None:
        self._topics = topics
        self._url = broker_url
        self._slots = asyncio.Semaphore(max_reads)

    async def lookup(self, record: TopicRecord) -> pb.LookupResponse:
        """Where a topic's partitions live and up to where they can be read."""
        settings = self._topics.engine.context.settings
        partitions = [await self._partition(record, n) for n in range(record.partitions)]
        return pb.LookupResponse(
            topic=str(record.name),
            topic_id=str(record.topic_id),
            partitioned=record.partitioned,
            partitions=partitions,
            max_message_bytes=record.max_message_bytes,
            max_frame_bytes=settings.max_frame_bytes,
            reliable=record.reliable,
        )

    async def _partition(self, record: TopicRecord, number: int) -> pb.PartitionInfo:
        if not record.reliable:
            return pb.PartitionInfo(partition=number, broker_url=self._url)
        owned = await self._topics.engine.partition(record, number)
        return self.partition_info(owned, number)

    def partition_info(self, owned: Owned, number: int) -> pb.PartitionInfo:
        """One partition's positions."""
        log = owned.log
        return pb.PartitionInfo(
            partition=number,
            broker_url=self._url,
            log_start_offset=log.log_start,
            durable_offset=log.durable_offset,
            rolled_offset=log.rolled_offset,
            lost=translate.spans_of(log.lost),
        )

    async def read(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        """Frames of [start, end); ``end`` 0 follows the tail for ever.

        Raises:
            OffsetOutOfRange: outside of what the partition has (after ``wait_ms``).
            DataLost: a lost range lies in the way and ``skip_lost`` is not set.
        """
        _, topic, owned = await self._topics.open(
            request.topic, request.topic_id, request.partition
        )
        if request.end and request.end < request.start:
            raise InvalidRequest(
                f"the range [{request.start}, {request.end}) ends before it starts"
            )
        at = request.start
        if request.end:
            await self._wait(owned, request)
        elif at > owned.log.durable_offset:
            raise OffsetOutOfRange(
                f"offset {at} of {request.topic} partition {request.partition} is above the "
                f"durable offset {owned.log.durable_offset}; follow from there"
            )
        while not request.end or at < request.end:
            if not request.end and at >= owned.log.durable_offset:
                owned.log.check_serving()
                await owned.log.wait_durable(at + 1, MAX_WAIT_S)
                continue
            async with self._slot():
                result = await topic.read(
                    request.partition, at, end=request.end or None, max_bytes=READ_AHEAD_BYTES
                )
                if result.lost and not request.skip_lost:
                    raise DataLost(
                        f"offsets {result.lost[0]} of {request.topic} partition "
                        f"{request.partition} are lost; skip them with the option for data loss "
                        "if that is acceptable"
                    )
                for item in result.frames:
                    yield read_response(item)
            if result.next_offset == at:
                # The tail moved to the table between two looks; the next one finds it there.
                await asyncio.sleep(0)
            at = result.next_offset

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """One of a bounded number of reads that hold frames in memory.

        Raises:
            MemoryFull: all were taken for too long, by readers that take their frames slowly.
        """
        try:
            await asyncio.wait_for(self._slots.acquire(), SLOT_WAIT_S)
        except TimeoutError:
            raise MemoryFull(
                "as many reads are under way as dispatch.max_reads_count allows; read again "
                "later, or raise it"
            ) from None
        try:
            yield
        finally:
            self._slots.release()

    async def _wait(self, owned: Owned, request: pb.ReadRequest) -> None:
        if request.end <= owned.log.durable_offset:
            return
        wait_s = min(request.wait_ms / 1000, MAX_WAIT_S)
        if not wait_s:
            raise OffsetOutOfRange(
                f"offset {request.end} of {request.topic} partition {request.partition} is above "
                f"the durable offset {owned.log.durable_offset}; read up to there, or wait"
            )
        if not await owned.log.wait_durable(request.end, wait_s):
            raise DeadlineExceeded(
                f"offset {request.end} of {request.topic} partition {request.partition} did not "
                f"become durable within {wait_s} s; it is at {owned.log.durable_offset}"
            )

    async def plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        """Splits for ranges: objects for what is rolled, this broker for the tail."""
        response = pb.PlanResponse()
        for wanted in request.ranges:
            _, topic, _ = await self._topics.open(wanted.topic, wanted.topic_id, wanted.partition)
            if wanted.end < wanted.start:
                raise InvalidRequest(f"the range [{wanted.start}, {wanted.end}) is backwards")
            planned = topic.plan(wanted.partition, wanted.start, wanted.end)
            self._add_splits(response, wanted, planned)
        return response

    def _add_splits(
        self, response: pb.PlanResponse, wanted: pb.TopicRange, planned: PlannedRange
    ) -> None:
        root = self._topics.engine.context.store.uri
        for file, span in planned.files:
            split = response.splits.add()
            split.range.CopyFrom(wanted)
            split.range.start, split.range.end = span.start, span.end
            split.object.uri = f"{root}/{file.key}"
            split.object.size_bytes = file.size_bytes
            split.object.first_offset = file.start
            split.object.table_version = planned.table_version
        if planned.tail is not None:
            split = response.splits.add()
            split.range.CopyFrom(wanted)
            split.range.start, split.range.end = planned.tail.start, planned.tail.end
            split.tail.broker_url = self._url
        for item in planned.lost:
            response.lost.add(
                topic=wanted.topic,
                topic_id=wanted.topic_id,
                partition=wanted.partition,
                start=item.start,
                end=item.end,
                kind=item.kind,
            )

    async def offsets_for_time(
        self, request: pb.OffsetsForTimeRequest
    ) -> pb.OffsetsForTimeResponse:
        """First offset appended at or after a time, per partition."""
        record = await self._topics.record(request.topic, request.topic_id)
        numbers = list(request.partitions) or range(record.partitions)
        found: dict[int, int] = {}
        for number in numbers:
            _, topic, _ = await self._topics.open(request.topic, request.topic_id, number)
            found[number] = await offset_for_time(topic, number, request.time_us)
        return pb.OffsetsForTimeResponse(offsets=found)


def read_response(item: StoredFrame) -> pb.ReadResponse:
    """One stored frame on the wire."""
    return pb.ReadResponse(
        frame=item.frame.to_bytes(),
        base_offset=item.base_offset,
        append_time_us=item.append_time_us,
        span=translate.span_of(item.span),
    )
