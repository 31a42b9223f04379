"""One partition's log: assigns offsets, appends, tells when messages are durable, keeps cursors.

Everything here runs in the broker's event loop. Offsets are assigned when a frame is handed to
the journal; the journal writes in that order and answers after its sync, and only then do the
frame's messages become durable, visible and acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from danube.core import telemetry
from danube.core.errors import Corruption, DanubeError, OwnershipLost, TopicReplaced
from danube.core.frames import Frame
from danube.core.names import PartitionId, producer_id
from danube.core.offsets import OffsetRange, RangeSet
from danube.dispatch.cursor import Cursor
from danube.journal.envelope import Entry, EntryKind, Position
from danube.log.ceiling import Ceiling
from danube.log.context import LogContext
from danube.log.extents import Extent
from danube.log.producers import Sent
from danube.log.state import PartitionState, encode
from danube.log.writing import state_entry
from danube.metadata.catalog import Claim, TopicRecord

LOG = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a frame's messages lie."""

    base_offset: int
    append_time_us: int
    duplicate: bool = False


class PartitionLog:
    """The log of one partition that this broker owns."""

    def __init__(
        self,
        context: LogContext,
        record: TopicRecord,
        claim: Claim,
        state: PartitionState,
        *,
        log_start: int,
        lost: Sequence[OffsetRange],
    ) -> None:
        self.context = context
        self.record = record
        self.claim = claim
        self.state = state
        self.log_start = log_start
        self.lost = RangeSet(lost)
        self.durable_offset = state.next_offset
        self.ceiling = Ceiling(context, claim)
        self.fenced = False
        self._refusal: DanubeError | None = None
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight: dict[tuple[int, int, int], asyncio.Future[Appended]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._cursor_waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._cursor_busy = False

    # -- positions -------------------------------------------------------------------------

    @property
    def partition(self) -> PartitionId:
        """Which partition this is."""
        return self.state.partition

    @property
    def rolled_offset(self) -> int:
        """Everything below was committed to the table or recorded lost."""
        return self.state.rolled

    @property
    def next_offset(self) -> int:
        """The offset the next message gets; equals the durable offset when nothing is pending."""
        return self.state.next_offset

    @property
    def refusal(self) -> DanubeError | None:
        """Why this partition takes no appends any more, if so."""
        return self._refusal

    def unrolled_bytes(self) -> int:
        """Journal bytes of durable messages that are not in the table yet."""
        return sum(extent.bytes for extent in self.state.extents.unrolled(self.rolled_offset))

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` whenever the durable offset moved; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_durable(self, offset: int, timeout_s: float) -> bool:
        """Wait until messages up to ``offset`` (exclusive) are durable; False on time-out."""
        if self.durable_offset >= offset:
            return True
        moved = asyncio.Event()
        stop = self.on_durable(moved.set)
        try:
            async with asyncio.timeout(timeout_s):
                while self.durable_offset < offset and self._refusal is None:
                    moved.clear()
                    await moved.wait()
        except TimeoutError:
            return False
        finally:
            stop()
        return self.durable_offset >= offset

    # -- appending -------------------------------------------------------------------------

    async def open_producer(self, name: str, epoch: int) -> tuple[int, int]:
        """Open a producer by name; returns (producer id, producer epoch).

        With ``epoch`` 0 a fresh epoch is made durable and handed out, which fences older ones;
        otherwise the client goes on with the epoch it has.
        """
        self.check_serving()
        number = producer_id(self.record.topic_id, name)
        producers = self.state.producers
        if epoch:
            return number, epoch
        now = self.context.clock.now_us()
        settings = self.context.settings
        if producers.epoch(number) is None:
            producers.make_room(
                now_us=now,
                capacity=settings.max_producers_count,
                ttl_s=settings.producer_ttl_s,
            )
        fresh = producers.next_epoch(number, now)
        producers.open(number, fresh, now)
        await self.write_state(encode("producer", n=number, e=fresh, at=now))
        return number, fresh

    async def append(self, frame: Frame) -> asyncio.Future[Appended]:
        """Hand a validated frame to the journal; the future resolves once it is durable.

        Raises:
            OwnershipLost: this broker may not append (any more).
            TopicReplaced: the frame names another topic id.
            ProducerFenced, SequenceGap: see ``ProducerTable.check``.
            DiskFull, MemoryFull: later.
        """
        await self.ceiling.reserve(lambda: self.state.next_offset + frame.header.count)
        if not self.context.writer.has_room(frame.total_bytes):
            # Only now: whoever waited for the ceiling together would find the room taken.
            await self.context.writer.room(frame.total_bytes)
            await self.ceiling.reserve(lambda: self.state.next_offset + frame.header.count)
        self.check_serving()
        self._check_address(frame)
        header = frame.header
        known = self.state.producers.check(
            header.producer_id, header.producer_epoch, header.first_sequence, header.count
        )
        if known is not None:
            return self._duplicate(frame, known)
        return self._append_new(frame)

    def _append_new(self, frame: Frame) -> asyncio.Future[Appended]:
        header, state = frame.header, self.state
        self.context.writer.admit(frame.total_bytes)
        base, now = state.next_offset, self.append_time_us()
        entry = Entry(
            kind=EntryKind.MESSAGES,
            body=frame.body,
            header=frame.header_bytes,
            topic_id=self.record.topic_id.raw,
            partition=self.partition.partition,
            epoch=self.claim.epoch,
            base_offset=base,
            append_time_us=now,
            essential=False,
        )
        key = (header.producer_id, header.producer_epoch, header.first_sequence)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def done(outcome: Sequence[Position] | BaseException) -> None:
            del self._in_flight[key]
            self._settle()
            if isinstance(outcome, BaseException):
                if not future.cancelled():
                    future.set_exception(outcome)
                    future.exception()
                return
            extent = Extent(base, header.count, now, frame.total_bytes, outcome[0], frame)
            self.became_durable([extent])
            if not future.cancelled():
                future.set_result(Appended(base, now))

        self.context.writer.submit([entry], done)
        self._start()
        self._in_flight[key] = future
        state.next_offset = base + header.count
        state.last_append_us = now
        state.producers.remember(
            header.producer_id,
            header.producer_epoch,
            Sent(header.first_sequence, header.count, base),
            now,
        )
        return future

    def _duplicate(self, frame: Frame, known: Sent) -> asyncio.Future[Appended]:
        """A frame seen before: its first offset, and not before that one is durable."""
        header = frame.header
        key = (header.producer_id, header.producer_epoch, header.first_sequence)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        first = self._in_flight.get(key)
        if first is None:
            answer.set_result(Appended(known.base_offset, self.state.last_append_us, True))
            return answer

        def copy(outcome: asyncio.Future[Appended]) -> None:
            if answer.cancelled():
                return
            if outcome.cancelled() or outcome.exception() is not None:
                answer.set_exception(OwnershipLost("the first copy of this frame was not written"))
            else:
                answer.set_result(
                    Appended(known.base_offset, outcome.result().append_time_us, True)
                )

        first.add_done_callback(copy)
        return answer

    def _check_address(self, frame: Frame) -> None:
        header = frame.header
        if header.topic_id != self.record.topic_id.raw:
            raise TopicReplaced(
                f"the frame was made for topic id {header.topic_id.hex()}, but {self.record.name} "
                f"is {self.record.topic_id}; open the producer again"
            )
        if header.partition != self.partition.partition:
            raise OwnershipLost(
                f"the frame was made for partition {header.partition}, this is "
                f"{self.partition.partition}; send it to the owner of its partition"
            )

    def append_time_us(self) -> int:
        """Now, but never earlier than the newest message: append times do not decrease."""
        return max(self.context.clock.now_us(), self.state.last_append_us)

    def became_durable(self, extents: Sequence[Extent]) -> None:
        """Take extents, whose entries are synced, into the readable log."""
        for extent in extents:
            self.state.extents.add(extent)
            if extent.frame is not None:
                self.context.cache.add(extent, self.state.extents)
            self.durable_offset = extent.end
        self._tell()

    def _tell(self) -> None:
        """Tell everybody who waits; one that fails keeps neither answers nor others waiting."""
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception as error:
                LOG.error("listener failed", partition=str(self.partition), exc_info=error)

    # -- state frames ----------------------------------------------------------------------

    async def write_state(self, body: bytes) -> None:
        """Journal one state frame of this partition and wait until it is durable."""
        await self.context.writer.submit_future([self.state_entry(body)])

    def state_entry(self, body: bytes) -> Entry:
        """An entry for a state frame of this partition."""
        raw, number = self.record.topic_id.raw, self.partition.partition
        return state_entry(raw, number, self.claim.epoch, body)

    async def save_cursor(self, name: str) -> None:
        """Make subscription ``name``'s cursor, as it stands when written, durable.

        Calls while a write is under way share the next one: acks are answered in groups.
        """
        self.check_serving()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cursor_waiters.setdefault(name, []).append(waiter)
        if not self._cursor_busy:
            self._write_cursors()
        await waiter

    def _write_cursors(self) -> None:
        waiting, self._cursor_waiters = self._cursor_waiters, {}
        entries = [
            self.state_entry(encode("cursor", s=name, c=self.state.cursors[name].to_state()))
            for name in waiting
            if name in self.state.cursors
        ]
        waiters = [waiter for group in waiting.values() for waiter in group]

        def done(outcome: Sequence[Position] | BaseException) -> None:
            self._cursor_busy = False
            for waiter in waiters:
                if waiter.done():
                    continue
                if isinstance(outcome, BaseException):
                    waiter.set_exception(outcome)
                else:
                    waiter.set_result(None)
            if self._cursor_waiters:
                self._write_cursors()

        if not entries:
            done([])
            return
        self._cursor_busy = True
        try:
            self.context.writer.submit(entries, done)
        except DanubeError as error:
            done(error)

    def put_cursor(self, name: str, cursor: Cursor) -> None:
        """Register the live cursor of a subscription; ``save_cursor`` makes it durable."""
        self.state.cursors[name] = cursor

    async def delete_cursor(self, name: str) -> None:
        """Forget a subscription's cursor, durably."""
        cursor = self.state.cursors.pop(name, None)
        if cursor is not None:
            await self.write_state(encode("cursor_gone", s=name, g=cursor.generation))

    # -- serving ---------------------------------------------------------------------------

    def check_serving(self) -> None:
        """Raise why this partition takes no appends, if so."""
        if self.state.damaged:
            raise Corruption(
                f"{self.record.name} partition {self.partition.partition} is not served: "
                f"{self.state.damaged}. Run `danube journal repair` with the broker stopped"
            )
        if self._refusal is not None:
            raise self._refusal

    def refuse(self, reason: DanubeError, *, fenced: bool = False) -> None:
        """Stop appending; every later call gets ``reason``.

        Args:
            reason: what callers are told.
            fenced: nothing may be rolled any more either.
        """
        self._refusal = reason
        self.fenced = self.fenced or fenced
        self._tell()

    async def drained(self) -> None:
        """Wait until no append or sink commit is on its way to the disk."""
        await self._idle.wait()

    def _start(self) -> None:
        self._pending += 1
        self._idle.clear()

    def _settle(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._idle.set()

    # Sink commits, in their own module, count as pending appends too.
    started = _start
    settled = _settle
