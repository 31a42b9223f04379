"""A broker in this process that keeps messages in lists and fails when a test says so.

It implements what the Spark source and sink need of the batch service, plainly enough to be
compared with: a staged set is invisible until its commit, a decided batch is decided once.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import pyarrow as pa

from danube.core.batch import message_records
from danube.core.errors import (
    DanubeError,
    OffsetOutOfRange,
    StaleSink,
    SubscriptionBusy,
    TopicNotFound,
    TopicReplaced,
)
from danube.core.frames import decode_frame, encode_frame, parse_frame, validate_frame
from danube.core.offsets import OffsetRange, RangeSet
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as pb_grpc
from danube.wire.channels import server_options
from danube.wire.status import ERROR_METADATA, status_of, wire_name

T = TypeVar("T")
APPEND_TIME_US = 1_700_000_000_000_000


@dataclass
class Stored:
    base_offset: int
    frame: bytes
    count: int


@dataclass
class Partition:
    frames: list[Stored] = field(default_factory=list)
    log_start: int = 0
    durable: int = 0
    lost: RangeSet = field(default_factory=RangeSet)
    # [start, end) -> uri of a file that has it
    files: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass
class Topic:
    name: str
    topic_id: bytes
    partitions: list[Partition]
    reliable: bool = True
    max_message_bytes: int = 4_000_000


class ScriptedBroker(pb_grpc.BatchServiceServicer):
    """Topics, staged sets and cursors in memory; `calls` counts, `failures` scripts errors."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, deque[DanubeError]] = {}
        self.staged: dict[str, tuple[pb.StageOpen, list[bytes]]] = {}
        self.decided: dict[tuple[str, str], tuple[int, str]] = {}
        self.busy: set[str] = set()
        self.cursors: dict[str, dict[str, dict[int, int]]] = {}
        self.read_frames_limit: int | None = None
        self._called = threading.Condition()
        self._server: Any = None
        self.url = ""

    # --- for tests -----------------------------------------------------------------------------

    def start(self) -> str:
        self._server = grpc.server(ThreadPoolExecutor(8), options=server_options())
        pb_grpc.add_BatchServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.url = f"127.0.0.1:{port}"
        return self.url

    def stop(self) -> None:
        self._server.stop(None).wait()

    def create(self, name: str, partitions: int = 1) -> Topic:
        topic = Topic(name, uuid.uuid4().bytes, [Partition() for _ in range(partitions)])
        self.topics[name] = topic
        return topic

    def append(
        self,
        name: str,
        partition: int,
        values: Sequence[bytes | str],
        *,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> None:
        records = message_records(values, keys=keys, now_us=APPEND_TIME_US, producer="test")
        self.append_records(self.topics[name], partition, records)

    def append_records(self, topic: Topic, partition: int, records: pa.RecordBatch) -> None:
        frame = encode_frame(
            records,
            topic_id=topic.topic_id,
            partition=partition,
            producer_id=1,
            producer_epoch=0,
            first_sequence=0,
        )
        self._append(topic.partitions[partition], frame.to_bytes(), records.num_rows)

    def lose(self, name: str, partition: int, count: int) -> None:
        """Record the next ``count`` offsets as lost."""
        found = self.topics[name].partitions[partition]
        found.lost.add(found.durable, found.durable + count)
        found.durable += count

    def fail(self, method: str, *errors: DanubeError) -> None:
        """Answer the next calls of ``method`` with these errors, one each."""
        self.failures.setdefault(method, deque()).extend(errors)

    def count(self, method: str) -> int:
        return sum(1 for name, _ in self.calls if name == method)

    def wait_for(self, method: str, calls: int) -> None:
        """Wait until ``method`` was called so often."""
        with self._called:
            assert self._called.wait_for(lambda: self.count(method) >= calls, timeout=10)

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    def values(self, name: str, partition: int) -> list[bytes]:
        """What readers can see."""
        values: list[Any] = []
        for stored in self.topics[name].partitions[partition].frames:
            values += decode_frame(parse_frame(stored.frame)).column("value").to_pylist()
        return values

    # --- the service ---------------------------------------------------------------------------

    def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupResponse:
        return self._answer("Lookup", request, context, lambda: self._lookup(request))

    def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        return self._answer("Plan", request, context, lambda: self._plan(request))

    def Read(self, request: pb.ReadRequest, context: Any) -> Iterator[pb.ReadResponse]:
        responses = self._answer("Read", request, context, lambda: self._read(request))
        for sent, response in enumerate(responses):
            if self.read_frames_limit is not None and sent >= self.read_frames_limit:
                self.read_frames_limit = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "the stream breaks here")
            yield response

    def Stage(self, requests: Iterator[pb.StageRequest], context: Any) -> pb.StageResponse:
        opening = next(requests).open
        frames = [request.frame for request in requests]
        return self._answer("Stage", opening, context, lambda: self._stage(opening, frames))

    def CommitBatch(self, request: pb.CommitBatchRequest, context: Any) -> pb.CommitBatchResponse:
        return self._answer("CommitBatch", request, context, lambda: self._commit(request))

    def AbortBatch(self, request: pb.AbortBatchRequest, context: Any) -> pb.AbortBatchResponse:
        return self._answer("AbortBatch", request, context, lambda: self._abort(request))

    def RegisterQuery(
        self, request: pb.RegisterQueryRequest, context: Any
    ) -> pb.RegisterQueryResponse:
        return self._answer("RegisterQuery", request, context, lambda: self._register(request))

    def MoveCursor(self, request: pb.MoveCursorRequest, context: Any) -> pb.MoveCursorResponse:
        return self._answer("MoveCursor", request, context, lambda: self._move(request))

    def Publish(self, requests: Any, context: Any) -> Any:
        raise NotImplementedError

    def Subscribe(self, requests: Any, context: Any) -> Any:
        raise NotImplementedError

    def OffsetsForTime(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    # --- how -----------------------------------------------------------------------------------

    def _answer(self, method: str, request: Any, context: Any, work: Callable[[], T]) -> T:
        with self._called:
            self.calls.append((method, request))
            self._called.notify_all()
        try:
            waiting = self.failures.get(method)
            if waiting:
                raise waiting.popleft()
            return work()
        except DanubeError as error:
            context.set_trailing_metadata(((ERROR_METADATA, wire_name(error)),))
            context.abort(status_of(error), str(error))
            raise  # abort() has raised already

    def _topic(self, name: str, topic_id: str = "") -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}")
        if topic_id and topic.topic_id.hex() != topic_id:
            raise TopicReplaced(f"{name} has another id now")
        return topic

    def _append(self, partition: Partition, frame: bytes, count: int) -> None:
        partition.frames.append(Stored(partition.durable, frame, count))
        partition.durable += count

    def _lookup(self, request: pb.LookupRequest) -> pb.LookupResponse:
        topic = self._topic(request.topic)
        return pb.LookupResponse(
            topic=topic.name,
            topic_id=topic.topic_id.hex(),
            reliable=topic.reliable,
            max_message_bytes=topic.max_message_bytes,
            partitions=[
                pb.PartitionInfo(
                    partition=number,
                    broker_url=self.url,
                    log_start_offset=found.log_start,
                    durable_offset=found.durable,
                    lost=[pb.OffsetSpan(start=span.start, end=span.end) for span in found.lost],
                )
                for number, found in enumerate(topic.partitions)
            ],
        )

    def _plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        answer = pb.PlanResponse()
        for wanted in request.ranges:
            found = self._topic(wanted.topic, wanted.topic_id).partitions[wanted.partition]
            if wanted.end > found.durable:
                raise OffsetOutOfRange(f"{wanted.end} is above {found.durable}")
            if wanted.start < found.log_start:
                gone = answer.lost.add(
                    topic=wanted.topic, topic_id=wanted.topic_id, partition=wanted.partition
                )
                gone.start, gone.end, gone.kind = wanted.start, found.log_start, "retention"
            for span in found.lost.within(wanted.start, wanted.end):
                lost = answer.lost.add(
                    topic=wanted.topic, topic_id=wanted.topic_id, partition=wanted.partition
                )
                lost.start, lost.end, lost.kind = span.start, span.end, "test"
            self._splits(answer, wanted, found)
        return answer

    def _splits(self, answer: pb.PlanResponse, wanted: pb.TopicRange, found: Partition) -> None:
        at = max(wanted.start, found.log_start)
        for start, end, uri in found.files:
            span = OffsetRange(start, end).intersect(OffsetRange(wanted.start, wanted.end))
            if span is not None:
                split = answer.splits.add(range=wanted)
                split.range.start, split.range.end = span.start, span.end
                split.object.uri, split.object.first_offset = uri, start
                split.object.size_bytes = 1000
                at = span.end
        if at < wanted.end:
            split = answer.splits.add(range=wanted)
            split.range.start = at
            split.tail.broker_url = self.url

    def _read(self, request: pb.ReadRequest) -> list[pb.ReadResponse]:
        found = self._topic(request.topic, request.topic_id).partitions[request.partition]
        responses = []
        for stored in found.frames:
            stored_range = OffsetRange(stored.base_offset, stored.base_offset + stored.count)
            span = stored_range.intersect(OffsetRange(request.start, request.end))
            if span is not None:
                response = pb.ReadResponse(
                    frame=stored.frame,
                    base_offset=stored.base_offset,
                    append_time_us=APPEND_TIME_US,
                    span=pb.OffsetSpan(start=span.start, end=span.end),
                )
                responses.append(response)
        return responses

    def _stage(self, opening: pb.StageOpen, frames: list[bytes]) -> pb.StageResponse:
        self._topic(opening.topic, opening.topic_id)
        count = 0
        for frame in frames:
            parsed = parse_frame(frame)
            validate_frame(parsed)
            count += parsed.header.count
        self.staged[opening.set_id] = (opening, frames)
        done = pb.StagedSet(
            set_id=opening.set_id,
            topic=opening.topic,
            topic_id=opening.topic_id,
            partition=opening.partition,
            count=count,
            bytes=sum(map(len, frames)),
        )
        return pb.StageResponse(set=done)

    def _commit(self, request: pb.CommitBatchRequest) -> pb.CommitBatchResponse:
        sink = (request.query_id, request.sink_name)
        last = self.decided.get(sink)
        if last is not None and request.batch_id == last[0]:
            return pb.CommitBatchResponse(already_committed=True, commit_id=last[1])
        if last is not None and request.batch_id < last[0]:
            raise StaleSink(f"batch {request.batch_id} is older than {last[0]}")
        commit_id = uuid.uuid4().hex
        self.decided[sink] = (request.batch_id, commit_id)
        for named in request.sets:
            opening, frames = self.staged.pop(named.set_id)
            partition = self.topics[opening.topic].partitions[opening.partition]
            for frame in frames:
                self._append(partition, frame, parse_frame(frame).header.count)
        return pb.CommitBatchResponse(commit_id=commit_id)

    def _abort(self, request: pb.AbortBatchRequest) -> pb.AbortBatchResponse:
        last = self.decided.get((request.query_id, request.sink_name))
        if last is not None and last[0] >= request.batch_id:
            return pb.AbortBatchResponse(was_decided=True)
        for named in request.sets:
            self.staged.pop(named.set_id, None)
        return pb.AbortBatchResponse()

    def _register(self, request: pb.RegisterQueryRequest) -> pb.RegisterQueryResponse:
        if request.subscription in self.busy:
            raise SubscriptionBusy(f"{request.subscription} has a live run")
        self._set_cursors(request.subscription, request.cursors)
        return pb.RegisterQueryResponse()

    def _move(self, request: pb.MoveCursorRequest) -> pb.MoveCursorResponse:
        self._set_cursors(request.subscription, request.cursors)
        return pb.MoveCursorResponse()

    def _set_cursors(self, name: str, cursors: Sequence[pb.QueryCursor]) -> None:
        for cursor in cursors:
            self._topic(cursor.topic, cursor.topic_id)
            self.cursors.setdefault(name, {})[cursor.topic] = dict(cursor.next)
