"""Staging: a task's rows as frames in staged sets at their partitions' owners.

A set is collected in memory up to :data:`SET_BYTES` and then sent as one ``Stage`` stream, while
the next one is collected. So a task's memory is bounded however large the batch is, and a set that
a broker's restart cut off is simply sent again, under a new id: what became of the first attempt
does not matter, because only sets named in the commit can become visible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, cast

import grpc
import numpy as np
import pyarrow as pa

from danube.core.batch import message_bytes
from danube.core.errors import DanubeError, MessageTooLarge
from danube.core.frames import encode_frame
from danube.core.limits import MIB, TARGET_FRAME_BYTES
from danube.core.names import TopicId, producer_id
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.blocking import Patience, batch_stub
from danube.wire.status import error_of
from spark_sink.broker import Broker
from spark_sink.messages import StagedPart

SET_BYTES: Final = 8 * MIB
"""A partition's rows are sent once there are so many bytes of them."""

COLLECTED_BYTES: Final = 32 * MIB
"""Over all partitions; above it the largest collection is sent early."""

IN_FLIGHT_BYTES: Final = 32 * MIB
IN_FLIGHT_CALLS: Final = 32
"""Sets sent and not yet confirmed durable, at most."""

STAGE_TIMEOUT_S: Final = 30.0
"""Deadline of one attempt to stage one set."""

ROW_OVERHEAD_BYTES: Final = 48
"""What a row costs in a frame beside its texts: offsets, times, validity."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a lookup told of a topic that is written to."""

    name: str
    topic_id: TopicId
    partitions: int
    owners: dict[int, str]
    max_message_bytes: int

    @classmethod
    def from_lookup(cls, found: pb.LookupResponse) -> Topic:
        """Read a broker's answer."""
        return cls(
            found.topic,
            TopicId.parse(found.topic_id),
            len(found.partitions),
            {info.partition: info.broker_url for info in found.partitions},
            found.max_message_bytes,
        )


@dataclass(slots=True)
class _Collected:
    """Rows of one partition that were not sent yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


@dataclass(slots=True)
class _Sent:
    """A set on its way, with what is needed to send it again."""

    topic: Topic
    partition: int
    frames: list[bytes]
    count: int
    bytes: int
    set_id: str = ""
    call: Any = None


class Stager:
    """Stages one task's rows.

    Args:
        broker: any broker; owners are asked from it.
        label: whose sets these are.
        producer_name: for the frames' producer id.
        random_bytes: where set ids come from.
    """

    def __init__(
        self,
        broker: Broker,
        label: pb.SinkLabel,
        *,
        producer_name: str,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._broker = broker
        self._label = label
        self._producer_name = producer_name
        self._random_bytes = random_bytes
        self._topics: dict[str, Topic] = {}
        self._collected: dict[tuple[str, int], _Collected] = {}
        self._collected_bytes = 0
        self._in_flight: deque[_Sent] = deque()
        self._in_flight_bytes = 0
        self._done: list[StagedPart] = []

    def topic(self, name: str) -> Topic:
        """The topic of that name, looked up once per task. Raises TopicNotFound, Unsupported."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = Topic.from_lookup(self._broker.lookup(name))
        return found

    def add(self, topic: Topic, partition: int, records: pa.RecordBatch) -> None:
        """Add rows (exactly MESSAGE_SCHEMA) of one partition.

        Raises:
            MessageTooLarge: a row is above the topic's limit.
            DanubeError: a set that was sent before was refused, or its owner away for too long.
        """
        size = records.nbytes
        here = self._collected.setdefault((topic.name, partition), _Collected())
        here.batches.append(records)
        here.bytes += size
        self._collected_bytes += size
        if here.bytes >= SET_BYTES:
            self._send(topic.name, partition)
        while self._collected_bytes > COLLECTED_BYTES:
            largest = max(self._collected, key=lambda key: self._collected[key].bytes)
            self._send(*largest)

    def finish(self) -> tuple[StagedPart, ...]:
        """Send what is left and wait until every set is durable.

        Raises:
            DanubeError: a set was refused, or its owner away for too long.
        """
        for topic, partition in list(self._collected):
            self._send(topic, partition)
        while self._in_flight:
            self._await_oldest()
        return tuple(self._done)

    def cancel(self) -> None:
        """The task failed: stop what is on its way. Brokers drop unnamed sets after a while."""
        for sent in self._in_flight:
            sent.call.cancel()
        self._in_flight.clear()

    def _send(self, name: str, partition: int) -> None:
        collected = self._collected.pop((name, partition))
        self._collected_bytes -= collected.bytes
        topic = self._topics[name]
        frames = list(self._frames(topic, partition, collected.batches))
        count = sum(batch.num_rows for batch in collected.batches)
        sent = _Sent(topic, partition, frames, count, sum(map(len, frames)))
        while self._in_flight and (
            self._in_flight_bytes + sent.bytes > IN_FLIGHT_BYTES
            or len(self._in_flight) >= IN_FLIGHT_CALLS
        ):
            self._await_oldest()
        self._start(sent)
        self._in_flight.append(sent)
        self._in_flight_bytes += sent.bytes

    def _frames(
        self, topic: Topic, partition: int, batches: list[pa.RecordBatch]
    ) -> Iterator[bytes]:
        sequence = 0
        for records in _cut(_joined(batches), topic):
            frame = encode_frame(
                records,
                topic_id=topic.topic_id.raw,
                partition=partition,
                producer_id=producer_id(topic.topic_id, self._producer_name),
                producer_epoch=0,
                first_sequence=sequence,
            )
            sequence += records.num_rows
            yield frame.to_bytes()

    def _start(self, sent: _Sent) -> None:
        sent.set_id = self._random_bytes(16).hex()
        url = sent.topic.owners.get(sent.partition) or self._broker.url
        sent.call = cast(Any, batch_stub(url).Stage).future(
            self._requests(sent), timeout=STAGE_TIMEOUT_S
        )

    def _requests(self, sent: _Sent) -> Iterator[pb.StageRequest]:
        opening = pb.StageOpen(
            label=self._label,
            topic=sent.topic.name,
            topic_id=str(sent.topic.topic_id),
            partition=sent.partition,
            set_id=sent.set_id,
        )
        yield pb.StageRequest(open=opening)
        for frame in sent.frames:
            yield pb.StageRequest(frame=frame)

    def _await_oldest(self) -> None:
        sent = self._in_flight[0]
        patience = Patience(self._broker.retry_timeout_s)
        staged: StagedPart | None = None
        while staged is None:
            try:
                staged = _result(sent)
            except DanubeError as error:
                patience.wait(
                    error,
                    f"staging {sent.count} messages for partition {sent.partition} of "
                    f"{sent.topic.name}",
                )
                self._find_owner(sent)
                self._start(sent)
        self._in_flight.popleft()
        self._in_flight_bytes -= sent.bytes
        self._done.append(staged)

    def _find_owner(self, sent: _Sent) -> None:
        found = Topic.from_lookup(self._broker.lookup(sent.topic.name))
        sent.topic.owners.update(found.owners)


def _result(sent: _Sent) -> StagedPart:
    try:
        answer = cast(pb.StageResponse, sent.call.result())
    except grpc.RpcError as error:
        raise error_of(error) from None
    if answer.set.set_id != sent.set_id or answer.set.count != sent.count:
        raise DanubeError(
            f"the broker confirmed staged set {answer.set.set_id} with {answer.set.count} messages "
            f"where {sent.set_id} with {sent.count} was sent; upgrade the broker"
        )
    return StagedPart(
        sent.set_id,
        sent.topic.name,
        str(sent.topic.topic_id),
        sent.partition,
        sent.count,
        answer.set.bytes,
    )


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    # Not in pyarrow's stubs.
    return cast(pa.RecordBatch, cast(Any, pa).concat_batches(batches))


def _cut(records: pa.RecordBatch, topic: Topic) -> Iterator[pa.RecordBatch]:
    """``records`` in slices of about TARGET_FRAME_BYTES, whatever the rows' sizes."""
    sizes = message_bytes(records).to_numpy(zero_copy_only=False)
    largest = int(sizes.max())
    if largest > topic.max_message_bytes:
        raise MessageTooLarge(
            f"a row has {largest} bytes; {topic.name} takes messages of at most "
            f"{topic.max_message_bytes}: split it, or raise the topic's limit"
        )
    ends = np.cumsum(sizes + ROW_OVERHEAD_BYTES)
    frame_of = ends // TARGET_FRAME_BYTES
    starts = [0, *(np.flatnonzero(np.diff(frame_of)) + 1).tolist(), len(ends)]
    for start, end in pairwise(starts):
        yield records.slice(start, end - start)
