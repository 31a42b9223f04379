"""One partition of one producer: its stream, its frames in flight, and what a broken stream means.

Frames leave in order, at most five without a receipt. After a reconnect those without a receipt are
sent again with the same sequences, and the broker recognises what it has. When it does not know
the producer any more (SequenceGap), a fresh producer epoch is opened, and only frames that are
known to be refused are numbered anew; a frame that went out on a stream which then broke is in
doubt and is reported as OutcomeUnknown (architecture.md, "Producer table").
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import pyarrow as pa

from danube.client.connection import Router
from danube.client.messages import Delivery
from danube.client.outbox import Lane, OpenBatch, Outbox
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
from danube.core.errors import (
    DanubeError,
    DeadlineExceeded,
    InvalidRequest,
    OutcomeUnknown,
    SequenceGap,
    StorageFailed,
)
from danube.core.frames import Codec, Frame, encode_frame
from danube.core.telemetry import get_logger
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import error_of

log = get_logger(__name__)


class _Refused(Exception):
    """The broker refused the oldest frame, and with it every later one on this stream."""

    def __init__(self, error: DanubeError) -> None:
        self.error = error


@dataclass(slots=True)
class _Pending:
    """A frame without a receipt. ``doubt``: it went out on a stream that broke."""

    batch: OpenBatch
    frame: Frame
    doubt: bool = False


@dataclass(slots=True)
class _Identity:
    """Who the broker takes us for; epoch 0: open a fresh one."""

    producer_id: int = 0
    epoch: int = 0
    next_sequence: int = 0
    window: int = 0


class ProducerState(Protocol):
    """What a partition's writer needs of its producer."""

    name: str
    codec: Codec
    settings: ClientSettings
    outbox: Outbox

    def delivered(self, batch: OpenBatch, delivery: Delivery) -> None:
        """A batch has its outcome."""


class PartitionWriter:
    """Sends one partition's batches and reports their outcome."""

    def __init__(self, producer: ProducerState, router: Router, partition: int) -> None:
        self._producer = producer
        self._router = router
        self._partition = partition
        self._settings = producer.settings
        self._topic = router.topic
        self._doing = f"publishing to partition {partition} of {self._topic.name}"
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self.lane: Lane = producer.outbox.add_lane(self._wake)
        self._identity = _Identity()
        self._unanswered: deque[_Pending] = deque()
        self._sent = 0  # how many of them went out on the present stream
        self._answered = 0  # messages with an outcome, to compare with the lane's accepted ones
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._closing = False

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the loop is closed; whoever publishes now learns it from the outbox

    # --- for the producer -----------------------------------------------------------------------

    async def run(self) -> None:
        """Send until closed.

        Raises:
            DanubeError: nothing more can be published to this topic.
        """
        backoff = Backoff(self._settings)
        while await self._work_ahead(backoff):
            try:
                await self._session(backoff)
            except _Refused as refusal:
                error = refusal.error
                if isinstance(error, StorageFailed):
                    self._doubt_sent()  # the disk may have it all the same
            except DanubeError as failure:
                error = failure
                self._doubt_sent()
            else:
                continue
            await self._recover(error, backoff)

    def close(self) -> None:
        """End when everything taken has its outcome."""
        self._closing = True
        self._event.set()

    async def answered(self, accepted: int) -> None:
        """Wait until the first ``accepted`` messages of this partition have their outcome."""
        if self._answered < accepted:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((accepted, future))
            await future

    def abandon(self, error: DanubeError) -> None:
        """Report everything that has no receipt."""
        self._doubt_sent()
        while self._unanswered:
            pending = self._unanswered.popleft()
            self._answer(pending.batch, self._outcome(pending, error))

    def left_over(self, batch: OpenBatch, error: DanubeError) -> None:
        """Report a batch that never went out."""
        self._answer(batch, Delivery(self._partition, None, batch.count, error))

    # --- streams --------------------------------------------------------------------------------

    async def _work_ahead(self, backoff: Backoff) -> bool:
        """Wait until there is something to send; False when closed and done."""
        while not self._unanswered:
            backoff.progress()  # what failed while there was nothing to do does not count
            ready = self._producer.outbox.take(self.lane)
            if isinstance(ready, OpenBatch):
                self._append(ready)
            elif self._closing and ready is None:
                return False
            else:
                await wait_event(self._event, ready)
        return True

    async def _session(self, backoff: Backoff) -> None:
        """One stream, from opening to its end."""
        stub = await self._router.stub(self._partition)
        call: Any = cast(Any, stub).Publish()
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
        identity = self._identity
        request = pb.PublishOpen(
            topic=self._topic.name,
            partition=self._partition,
            topic_id=self._topic.topic_id,
            producer_name=self._producer.name,
            producer_epoch=identity.epoch,
        )
        await write(call, pb.PublishRequest(open=request))
        opened = (await next_response(call, self._doing)).opened
        window = min(self._settings.max_in_flight_frames, opened.max_in_flight or 1)
        if identity.epoch and identity.epoch != opened.producer_epoch:
            raise SequenceGap(f"{self._doing}: the broker does not know this producer's epoch")
        if not identity.epoch:
            identity = _Identity(opened.producer_id, opened.producer_epoch)
            self._identity = identity
            for pending in self._unanswered:
                pending.frame = self._numbered(pending.frame)
                pending.doubt = False
        identity.window = window

    async def _send(self, call: Any, deadline: Deadline) -> None:
        """Write frames, those without a receipt first, while the window has room."""
        self._sent = 0
        while True:
            wait_s: float | None = None
            if self._sent < min(len(self._unanswered), self._identity.window):
                pending = self._unanswered[self._sent]
                self._sent += 1
                if self._sent == 1:
                    deadline.start()
                if not await write(call, pb.PublishRequest(frame=pending.frame.to_bytes())):
                    return
                continue
            if self._sent < self._identity.window:
                ready = self._producer.outbox.take(self.lane)
                if isinstance(ready, OpenBatch):
                    self._append(ready)
                    continue
                wait_s = ready
            if self._closing and wait_s is None and not self._unanswered:
                deadline.start()
                await call.done_writing()
                return
            await wait_event(self._event, wait_s)

    async def _receive(self, call: Any, deadline: Deadline, backoff: Backoff) -> None:
        """Match receipts with frames, in order. Returns when closed and done."""
        while True:
            response = await next_response(call, self._doing, end=self._is_done)
            if response is None:
                return
            receipt = response.receipt
            pending = self._match(receipt)
            if receipt.HasField("failure"):
                raise _Refused(error_of(receipt.failure))
            self._unanswered.popleft()
            self._sent -= 1
            if self._sent:
                deadline.start()
            else:
                deadline.stop()
            backoff.progress()
            self._answer(
                pending.batch,
                Delivery(
                    self._partition,
                    receipt.base_offset,
                    receipt.count,
                    duplicate=receipt.duplicate,
                ),
            )
            self._event.set()

    def _is_done(self) -> bool:
        return self._closing and not self._unanswered

    def _match(self, receipt: pb.Receipt) -> _Pending:
        if self._sent:
            header = self._unanswered[0].frame.header
            refused = receipt.HasField("failure")
            # A frame whose header the broker cannot read is refused without its sequence.
            unread = refused and not receipt.count
            whole = refused or receipt.count == header.count
            if unread or (whole and receipt.first_sequence == header.first_sequence):
                return self._unanswered[0]
        raise DeadlineExceeded(
            f"{self._doing}: the broker's receipt for sequence {receipt.first_sequence} belongs to "
            "no frame in flight"
        )

    # --- frames ---------------------------------------------------------------------------------

    def _append(self, batch: OpenBatch) -> None:
        """Make a frame of a batch and put it behind the others."""
        try:
            records = batch.take_records(self._producer.name, time.time_ns() // 1000)
            frame = self._encode(records)
        except DanubeError as error:
            self.left_over(batch, error)
            return
        self._unanswered.append(_Pending(batch, frame))

    def _encode(self, records: pa.RecordBatch) -> Frame:
        identity = self._identity
        frame = encode_frame(
            records,
            topic_id=bytes.fromhex(self._topic.topic_id),
            partition=self._partition,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            first_sequence=identity.next_sequence,
            codec=self._producer.codec,
        )
        identity.next_sequence += records.num_rows
        return frame

    def _numbered(self, frame: Frame) -> Frame:
        """The same body under the present identity and its next sequences."""
        identity = self._identity
        header = replace(
            frame.header,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            first_sequence=identity.next_sequence,
        )
        identity.next_sequence += header.count
        return Frame(header, header.to_bytes(), frame.body)

    # --- outcomes -------------------------------------------------------------------------------

    def _doubt_sent(self) -> None:
        """The stream broke: nobody knows which of its frames arrived."""
        for at in range(self._sent):
            self._unanswered[at].doubt = True
        self._sent = 0

    async def _recover(self, error: DanubeError, backoff: Backoff) -> None:
        """Decide what a failure means for the frames, and pause. Raises what is final."""
        self._sent = 0
        self._router.distrust()
        if isinstance(error, SequenceGap):
            self._start_fresh_epoch(error)
        elif isinstance(error, InvalidRequest) and self._unanswered:
            # Sequences of a frame that can never be appended are missing to those after it.
            pending = self._unanswered.popleft()
            self._answer(pending.batch, self._refusal(pending, error))
            self._start_fresh_epoch(error)
        elif not is_transient(error):
            raise error
        pause_s = backoff.pause_s()
        if pause_s is None:
            self._give_up(error)
        elif self._unanswered:
            await asyncio.sleep(pause_s)

    def _give_up(self, error: DanubeError) -> None:
        """No progress for too long: report all there is, and start anew with what comes."""
        log.warning("gave up publishing", topic=self._topic.name, partition=self._partition)
        self.abandon(error)
        self._identity.epoch = 0
        while isinstance(batch := self._producer.outbox.take(self.lane), OpenBatch):
            self.left_over(batch, error)

    def _start_fresh_epoch(self, error: DanubeError) -> None:
        """Keep what is known to be refused, to be numbered anew; report what is in doubt."""
        self._identity.epoch = 0
        kept: deque[_Pending] = deque()
        for pending in self._unanswered:
            if pending.doubt and not self._settings.resend_in_doubt:
                self._answer(pending.batch, self._outcome(pending, error))
            else:
                kept.append(pending)
        self._unanswered = kept

    def _refusal(self, pending: _Pending, error: DanubeError) -> Delivery:
        return Delivery(self._partition, None, pending.frame.header.count, error)

    def _outcome(self, pending: _Pending, error: DanubeError) -> Delivery:
        if not pending.doubt:
            return self._refusal(pending, error)
        unknown = OutcomeUnknown(
            f"{pending.frame.header.count} messages for partition {self._partition} of "
            f"{self._topic.name} were sent before the connection broke; whether they were stored "
            f"is not known and cannot be asked any more ({error}). Read the topic's end to find "
            "out, or set resend_in_doubt to send such messages again"
        )
        unknown.__cause__ = error
        return self._refusal(pending, unknown)

    def _answer(self, batch: OpenBatch, delivery: Delivery) -> None:
        self._answered += delivery.count
        self._producer.outbox.release(batch.size)
        self._producer.delivered(batch, delivery)
        still = []
        for accepted, future in self._waiters:
            if self._answered < accepted:
                still.append((accepted, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = still
