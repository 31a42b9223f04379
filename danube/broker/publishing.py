"""The publish stream: frames in, receipts out, in order and without waiting for each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from danube.broker.topics import Topics, require
from danube.core import telemetry
from danube.core.errors import DanubeError, InvalidFrame, Unavailable
from danube.core.frames import Frame, FrameHeader, parse_frame, validate_frame
from danube.core.limits import MAX_IN_FLIGHT_FRAMES
from danube.log.partition import Appended, PartitionLog
from danube.log.settings import LogSettings
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import failure_of

PUBLISHED = telemetry.counter("published_messages", "Messages acknowledged to producers.")
PUBLISHED_BYTES = telemetry.counter("published_bytes", "Bytes of frames acknowledged.")
REFUSED = telemetry.counter("refused_frames", "Frames refused, by reason.", ("reason",))


@dataclass(frozen=True, slots=True)
class _Pending:
    """A frame between its arrival and its receipt; no header if it could not even be read."""

    header: FrameHeader | None
    bytes: int
    outcome: asyncio.Future[Appended] | DanubeError


def check_frame(data: bytes, settings: LogSettings, max_message_bytes: int) -> Frame:
    """Parse and fully validate a frame from the wire, before anything is done with it.

    Raises:
        InvalidFrame, MessageTooLarge: it must not get in.
    """
    frame = parse_frame(data)
    validate_frame(
        frame,
        max_message_bytes=max_message_bytes,
        max_frame_bytes=settings.max_frame_bytes,
        max_uncompressed_bytes=settings.max_uncompressed_bytes,
    )
    return frame


class PublishStream:
    """One producer's stream to one partition."""

    def __init__(self, topics: Topics, requests: AsyncIterator[pb.PublishRequest]) -> None:
        self._topics = topics
        self._requests = requests
        self._settings = topics.engine.context.settings
        self._refused: DanubeError | None = None
        self._pending: asyncio.Queue[_Pending | None] = asyncio.Queue(2 * MAX_IN_FLIGHT_FRAMES)

    async def run(self) -> AsyncIterator[pb.PublishResponse]:
        """Answer the stream."""
        first = await anext(aiter(self._requests), None)
        require(first is not None and first.HasField("open"), "open message as its first one")
        assert first is not None
        log, opened = await self._open(first.open)
        yield pb.PublishResponse(opened=opened)
        reader = asyncio.create_task(self._read(log, opened))
        stopper = asyncio.create_task(self._stop_with_broker(reader))
        try:
            while not (reader.done() and self._pending.empty()):
                item = await self._pending.get()
                if item is not None:
                    yield pb.PublishResponse(receipt=await self._receipt(item))
            if self._topics.engine.stopping.is_set():
                raise Unavailable("the broker is stopping; look the topic's owner up again")
            await reader
        finally:
            for task in (reader, stopper):
                task.cancel()
                with suppress(asyncio.CancelledError, DanubeError):
                    await task

    async def _stop_with_broker(self, reader: asyncio.Task[None]) -> None:
        """Take no more frames once the broker stops; what was taken still gets its receipt."""
        await self._topics.engine.stopping.wait()
        reader.cancel()

    async def _open(self, request: pb.PublishOpen) -> tuple[PartitionLog, pb.PublishOpened]:
        name = translate.producer_name(request.producer_name)
        record, _, owned = await self._topics.open(
            request.topic, request.topic_id, request.partition
        )
        number, epoch = await owned.log.open_producer(name, request.producer_epoch)
        return owned.log, pb.PublishOpened(
            topic_id=str(record.topic_id),
            producer_id=number,
            producer_epoch=epoch,
            max_message_bytes=record.max_message_bytes,
            max_frame_bytes=self._settings.max_frame_bytes,
            max_in_flight=MAX_IN_FLIGHT_FRAMES,
        )

    async def _read(self, log: PartitionLog, opened: pb.PublishOpened) -> None:
        """Take frames as they come; what cannot be appended is refused, and all that follows."""
        try:
            async for request in self._requests:
                await self._pending.put(await self._take(log, request, opened))
        finally:
            # Wakes a writer that waits; one that has receipts left sees that the reader is done.
            with suppress(asyncio.QueueFull):
                self._pending.put_nowait(None)

    async def _take(
        self, log: PartitionLog, request: pb.PublishRequest, opened: pb.PublishOpened
    ) -> _Pending:
        header: FrameHeader | None = None
        size = len(request.frame)
        try:
            if self._refused is not None:
                header = parse_frame(request.frame).header
                raise self._refused
            require(request.WhichOneof("kind") == "frame", "frame: a stream is opened once")
            frame = check_frame(request.frame, self._settings, opened.max_message_bytes)
            header = frame.header
            if header.producer_id != opened.producer_id:
                raise InvalidFrame(
                    f"the frame is of producer {header.producer_id:016x}, the stream of "
                    f"{opened.producer_id:016x}; a stream carries one producer's frames"
                )
            return _Pending(header, size, await log.append(frame))
        except DanubeError as error:
            self._refused = error
            REFUSED.labels(type(error).__name__).inc()
            return _Pending(header, size, error)

    async def _receipt(self, item: _Pending) -> pb.Receipt:
        header, receipt = item.header, pb.Receipt()
        if header is not None:
            receipt.first_sequence, receipt.count = header.first_sequence, header.count
        try:
            if isinstance(item.outcome, DanubeError):
                raise item.outcome
            # Shielded: the frame is being written whoever still waits, and a copy of it that is
            # sent again must find that out.
            appended = await asyncio.shield(item.outcome)
        except DanubeError as error:
            receipt.failure.CopyFrom(failure_of(error))
            return receipt
        receipt.base_offset = appended.base_offset
        receipt.append_time_us = appended.append_time_us
        receipt.duplicate = appended.duplicate
        PUBLISHED.inc(receipt.count)
        PUBLISHED_BYTES.inc(item.bytes)
        return receipt
