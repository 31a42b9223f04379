"""The stage stream: a Spark task's frames, written to disk as they come, visible to nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from danube.broker.publishing import check_frame
from danube.broker.topics import Topics, require
from danube.core import telemetry
from danube.core.errors import DanubeError, InvalidFrame
from danube.log.staging import StagedSet
from danube.log.topic import Owned
from danube.metadata.catalog import TopicRecord
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb

STAGED_BYTES = telemetry.counter("staged_bytes", "Bytes of frames staged by Spark sinks.")
MAX_PENDING_FRAMES = 8
"""Frames of one stage stream on their way to the disk."""


class StageStream:
    """One attempt of one Spark task writing one staged set."""

    def __init__(self, topics: Topics, requests: AsyncIterator[pb.StageRequest]) -> None:
        self._topics = topics
        self._requests = requests
        self._settings = topics.engine.context.settings

    async def run(self) -> pb.StageResponse:
        """Write the whole set; a stream that breaks leaves nothing behind."""
        first = await anext(aiter(self._requests), None)
        require(first is not None and first.HasField("open"), "open message as its first one")
        assert first is not None
        request = first.open
        set_id = translate.set_id(request.set_id)
        require(bool(request.label.query_id), "query id in its label")
        record, _, owned = await self._topics.open(
            request.topic, request.topic_id, request.partition
        )
        staged = owned.sinks.open_set(set_id, label_of(request.label))
        try:
            await self._write(record, owned, staged)
            await owned.sinks.complete_set(staged)
        except BaseException:
            await asyncio.shield(self._abandon(owned, set_id))
            raise
        return pb.StageResponse(
            set=pb.StagedSet(
                set_id=set_id,
                topic=str(record.name),
                topic_id=str(record.topic_id),
                partition=request.partition,
                count=staged.count,
                bytes=staged.bytes,
            )
        )

    async def _write(self, record: TopicRecord, owned: Owned, staged: StagedSet) -> None:
        pending: deque[asyncio.Future[None]] = deque()
        async for request in self._requests:
            require(request.WhichOneof("kind") == "frame", "frame: a stream is opened once")
            frame = check_frame(request.frame, self._settings, record.max_message_bytes)
            address = (frame.header.topic_id, frame.header.partition)
            if address != (record.topic_id.raw, owned.log.partition.partition):
                raise InvalidFrame(
                    f"the frame is for partition {frame.header.partition} of topic "
                    f"{frame.header.topic_id.hex()}, the stream for partition "
                    f"{owned.log.partition.partition} of {record.topic_id}"
                )
            await owned.log.context.writer.room(len(request.frame))
            pending.append(owned.sinks.stage(staged, frame))
            STAGED_BYTES.inc(len(request.frame))
            if len(pending) > MAX_PENDING_FRAMES:
                await pending.popleft()
        await asyncio.gather(*pending)

    async def _abandon(self, owned: Owned, set_id: str) -> None:
        try:
            await owned.sinks.drop([set_id])
        except DanubeError:
            # The journal has failed or the broker stops: recovery drops incomplete sets.
            return


def label_of(label: pb.SinkLabel) -> dict[str, str | int]:
    """A staged set's label as it is written into the journal."""
    return {
        "query": label.query_id,
        "sink": label.sink_name,
        "batch": label.batch_id,
        "run": label.run_id,
        "part": label.spark_partition,
        "attempt": label.attempt,
    }
