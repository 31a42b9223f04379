"""The reader: messages by offset, without a subscription. Nothing is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from types import TracebackType
from typing import Any, cast

from danube.client.connection import Connection, Router, TopicView
from danube.client.messages import MessagesView
from danube.client.retry import Backoff, is_transient
from danube.client.streams import END_OF_STREAM
from danube.core.batch import MessageBatch
from danube.core.errors import (
    Corruption,
    DanubeError,
    DeadlineExceeded,
    InvalidFrame,
    InvalidRequest,
    OffsetOutOfRange,
)
from danube.core.frames import decode_frame, parse_frame
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import danube_errors
from danube.wire.translate import StartPosition, timestamp_us


class Reader:
    """Reads ranges of offsets. Made by ``client.reader(topic)``.

    An async iterator over batches (:class:`MessagesView`), partition by partition, in offset
    order; :meth:`messages` goes message by message. After a broken connection it goes on behind
    the last message it had.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        partition: int | None,
        start: StartPosition,
        end: int | None,
        follow: bool,
        skip_lost: bool,
    ) -> None:
        if end is not None and end < 0:
            raise InvalidRequest(f"the end {end} is not an offset")
        self._connection = connection
        self._name = topic
        self._partition = partition
        self._start = start
        self._end = end
        self._follow = follow
        self._skip_lost = skip_lost
        self._batches: AsyncIterator[MessagesView] | None = None
        self._call: Any = None

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> MessagesView:
        if self._batches is None:
            self._batches = self._read()
        return await anext(self._batches)

    async def messages(self) -> AsyncIterator[Any]:
        """One message after the other."""
        async for batch in self:
            for message in batch:
                yield message

    async def _read(self) -> AsyncIterator[MessagesView]:
        topic = await self._connection.lookup(self._name)
        router = Router(self._connection, topic)
        numbers = sorted(topic.partitions) if self._partition is None else [self._partition]
        if self._follow and len(numbers) > 1:
            raise InvalidRequest(f"{topic.name} has {len(numbers)} partitions; follow one of them")
        starts = await self._starts(topic, numbers)
        for number in numbers:
            end = self._end_of(topic, number, starts[number])
            async for batch in self._partition_batches(router, number, starts[number], end):
                yield batch

    def _end_of(self, topic: TopicView, partition: int, start: int) -> int | None:
        """Where to stop; None: never. Without following, what is there now is all there is."""
        if self._follow:
            return self._end
        durable = topic.partition(partition).durable_offset
        if start > durable:
            raise OffsetOutOfRange(
                f"offset {start} of {topic.name} partition {partition} is above the durable offset "
                f"{durable}; start there or below, or follow"
            )
        return durable if self._end is None else min(self._end, durable)

    async def _starts(self, topic: TopicView, numbers: list[int]) -> dict[int, int]:
        start = self._start
        if isinstance(start, datetime):
            request = pb.OffsetsForTimeRequest(
                topic=topic.name,
                topic_id=topic.topic_id,
                time_us=timestamp_us(start),
                partitions=numbers,
            )
            method = self._connection.data().OffsetsForTime
            found = await self._connection.call(method, request, f"searching {topic.name} by time")
            return dict(cast(pb.OffsetsForTimeResponse, found).offsets)
        views = {number: topic.partition(number) for number in numbers}
        if start == "earliest":
            return {number: view.log_start_offset for number, view in views.items()}
        if start == "latest":
            return {number: view.durable_offset for number, view in views.items()}
        if isinstance(start, int) and start >= 0:
            return dict.fromkeys(numbers, start)
        raise InvalidRequest(
            f"{start!r} is no position; give an offset, 'earliest', 'latest' or a datetime"
        )

    async def _partition_batches(
        self, router: Router, partition: int, start: int, end: int | None
    ) -> AsyncIterator[MessagesView]:
        """One partition's batches from ``start`` on, over as many streams as it takes."""
        backoff = Backoff(self._connection.settings)
        while end is None or start < end:
            try:
                async for batch in self._stream(router, partition, start, end):
                    backoff.progress()
                    yield batch
                    start = batch.end
                    if end is not None and start >= end:
                        return
                # The rest may be lost ranges that are stepped over: the broker has said its all.
                if not self._follow:
                    return
            except DanubeError as error:
                router.distrust()
                pause_s = backoff.pause_s() if is_transient(error) else None
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)

    async def _stream(
        self, router: Router, partition: int, start: int, end: int | None
    ) -> AsyncIterator[MessagesView]:
        topic = router.topic
        doing = f"reading partition {partition} of {topic.name} from {start}"
        request = pb.ReadRequest(
            topic=topic.name,
            partition=partition,
            topic_id=topic.topic_id,
            start=start,
            # A follower's end may not be there yet: it follows for ever, and stops by itself.
            end=0 if self._follow or end is None else end,
            skip_lost=self._skip_lost,
        )
        stub = await router.stub(partition)
        call = self._call = cast(Any, stub).Read(request)
        try:
            while True:
                with danube_errors(doing):
                    response = await self._next(call, doing)
                if response is END_OF_STREAM:
                    return
                yield _view(topic.name, partition, response, doing, end)
        finally:
            call.cancel()

    async def _next(self, call: Any, doing: str) -> Any:
        # A follower waits for what is not published yet; keep-alive finds a dead peer.
        timeout_s = None if self._follow else self._connection.settings.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await call.read()
        except TimeoutError:
            raise DeadlineExceeded(f"{doing}: no answer within {timeout_s} s") from None

    async def close(self) -> None:
        """End the stream. A second call does nothing."""
        if self._call is not None:
            self._call.cancel()
        if self._batches is not None:
            await cast(Any, self._batches).aclose()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _view(
    topic: str, partition: int, response: pb.ReadResponse, doing: str, end: int | None
) -> MessagesView:
    try:
        records = decode_frame(parse_frame(response.frame))
    except InvalidFrame as error:
        raise Corruption(f"{doing}: a delivered frame is damaged: {error}") from error
    batch = MessageBatch(response.base_offset, records)
    last = response.span.end if end is None else min(response.span.end, end)
    meant = batch.slice(response.span.start, last)
    return MessagesView(topic, partition, meant, response.append_time_us)
