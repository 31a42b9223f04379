"""What a producer holds: open batches, sealed ones, and the bound on all of them.

Thread-safe and cheap per message, because the blocking twin's ``publish`` runs in the
application's thread while the batches are taken in the loop's: one lock, a few list appends, and
one wake-up per batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from danube.client.messages import Delivery, OnDelivery
from danube.core.batch import message_records
from danube.core.errors import DanubeError, MemoryFull
from danube.core.names import partition_of
from danube.core.telemetry import get_logger

log = get_logger(__name__)

MESSAGE_OVERHEAD_BYTES: Final = 44
"""What Arrow needs per message beside its bytes: offsets, times, null flags, empty columns."""

KEY_CACHE_ENTRIES: Final = 65_536


class OpenBatch:
    """Messages of one partition that wait to become a frame."""

    __slots__ = (
        "_taken", "_whole", "attributes", "callbacks", "due_s", "keys", "records", "size", "times",
        "values",
    )  # fmt: skip

    def __init__(self, due_s: float) -> None:
        self.values: list[bytes] = []
        # These stay None until the first message that needs them; then they are filled up.
        self.keys: list[bytes | None] | None = None
        self.attributes: list[Mapping[str, str] | None] | None = None
        self.times: list[int | None] | None = None
        self.callbacks: list[tuple[int, OnDelivery]] = []
        self.records: pa.RecordBatch | None = None
        self.size = 0
        self.due_s = due_s
        self._taken = 0
        self._whole = False

    @classmethod
    def of_records(cls, records: pa.RecordBatch, size: int, callback: OnDelivery) -> OpenBatch:
        """Messages that came as Arrow; the callback is told about all of them at once."""
        batch = cls(0.0)
        batch.records, batch.size = records, size
        batch._taken = records.num_rows
        batch._whole = True
        batch.callbacks.append((0, callback))
        return batch

    @property
    def count(self) -> int:
        """How many messages."""
        return self._taken or len(self.values)

    @property
    def told_all(self) -> bool:
        """Whether each message has a callback that learns its outcome."""
        return len(self.callbacks) == self.count or self._whole

    def take_records(self, producer: str, now_us: int) -> pa.RecordBatch:
        """The messages as Arrow, once: what they were made of is let go."""
        records, self.records = self.records, None
        if records is None:
            count = self._taken = len(self.values)
            records = message_records(
                self.values,
                keys=_padded(self.keys, count),
                attributes=_padded(self.attributes, count),
                timestamps_us=_padded(self.times, count),
                now_us=now_us,
                producer=producer,
            )
        self.values = []
        self.keys = self.attributes = self.times = None
        return records

    def report(self, delivery: Delivery) -> None:
        """Tell those who asked: about single messages, or about a batch that came as Arrow."""
        for index, callback in self.callbacks:
            call_back(callback, delivery if self._whole else _single(delivery, index))


def _single(delivery: Delivery, index: int) -> Delivery:
    offset = None if delivery.offset is None else delivery.offset + index
    return Delivery(delivery.partition, offset, 1, delivery.error, delivery.duplicate)


def call_back(callback: OnDelivery, delivery: Delivery) -> None:
    """Call an application's function; what it raises is logged and stops nothing."""
    try:
        callback(delivery)
    except Exception as error:
        log.error("an on_delivery callback failed", exc_info=error)


def _padded(column: list[Any] | None, count: int) -> list[Any] | None:
    if column is not None:
        column.extend([None] * (count - len(column)))
    return column


class Lane:
    """One partition's batches on their way out, oldest first. Guarded by the outbox's lock."""

    __slots__ = ("accepted", "open", "sealed", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.open: OpenBatch | None = None
        self.sealed: deque[OpenBatch] = deque()
        self.accepted = 0
        self.wake = wake


class Outbox:
    """All of one producer's unsent and unanswered messages, bounded by ``buffer_bytes``."""

    def __init__(self, *, batch_bytes: int, linger_s: float, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._buffer_bytes = buffer_bytes
        self._used = 0
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._lanes: list[Lane] = []
        self._sticky = 0
        self._partition_of: dict[bytes, int] = {}
        self.error: DanubeError | None = None

    def add_lane(self, wake: Callable[[], None]) -> Lane:
        """Room for one more partition; ``wake`` must be callable from any thread."""
        lane = Lane(wake)
        self._lanes.append(lane)
        return lane

    # --- in: any thread -------------------------------------------------------------------------

    def put(
        self,
        value: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        timestamp_us: int | None,
        callback: OnDelivery | None,
        size: int,
        partition: int | None,
        *,
        urgent: bool,
    ) -> None:
        """Add one message of ``size`` bytes to its partition's open batch.

        Raises:
            MemoryFull: the bound is reached.
            DanubeError: the producer has failed or is closed.
        """
        wake: Lane | None = None
        with self._lock:
            if self.error is not None:
                raise self.error.with_traceback(None)
            if self._used and self._used + size > self._buffer_bytes:
                raise MemoryFull(
                    f"{self._used} bytes of messages wait for receipts, the bound is "
                    f"{self._buffer_bytes}; await flush() or raise buffer_bytes"
                )
            if partition is None:
                partition = self._choose(key)
            lane = self._lanes[partition]
            batch = lane.open
            if batch is not None and batch.size + size > self._batch_bytes:
                self._seal(lane, batch)
                batch = None
                wake = lane
            if batch is None:
                batch = lane.open = OpenBatch(time.monotonic() + self._linger_s)
                wake = lane
            if urgent and batch.due_s:
                batch.due_s = 0.0
                wake = lane
            values = batch.values
            if key is not None:
                keys = batch.keys
                if keys is None:
                    keys = batch.keys = []
                if len(keys) < len(values):
                    keys.extend([None] * (len(values) - len(keys)))
                keys.append(key)
            if attributes is not None or timestamp_us is not None:
                _add_rare(batch, attributes, timestamp_us)
            if callback is not None:
                batch.callbacks.append((len(values), callback))
            values.append(value)
            batch.size += size
            lane.accepted += 1
            self._used += size
        if wake is not None:
            wake.wake()

    def put_records(
        self, records: pa.RecordBatch, size: int, partition: int, callback: OnDelivery
    ) -> bool:
        """Add a whole frame's worth behind what is already there; False when it has no room."""
        with self._lock:
            if self.error is not None:
                raise self.error.with_traceback(None)
            if self._used and self._used + size > self._buffer_bytes:
                return False
            lane = self._lanes[partition]
            if lane.open is not None:
                self._seal(lane, lane.open)
            batch = OpenBatch.of_records(records, size, callback)
            lane.sealed.append(batch)
            lane.accepted += batch.count
            self._used += size
        lane.wake()
        return True

    def partitions_of(self, keys: list[bytes | None]) -> list[int]:
        """The partition of each key; all that have none go to one and the same."""
        with self._lock:
            self._rotate()
            return [self._choose(key) for key in keys]

    def next_partition(self) -> int:
        """The partition for the next frame of messages without keys."""
        with self._lock:
            self._rotate()
            return self._sticky

    def _choose(self, key: bytes | None) -> int:
        lanes = len(self._lanes)
        if lanes == 1:
            return 0
        if key is None:
            return self._sticky
        found = self._partition_of.get(key)
        if found is None:
            if len(self._partition_of) >= KEY_CACHE_ENTRIES:
                self._partition_of.clear()
            found = self._partition_of[key] = partition_of(key, lanes)
        return found

    def _seal(self, lane: Lane, batch: OpenBatch) -> None:
        lane.open = None
        lane.sealed.append(batch)
        self._rotate()

    def _rotate(self) -> None:
        """Messages without a key fill one partition's batch, then the next one's."""
        self._sticky = (self._sticky + 1) % len(self._lanes)

    def accepted(self) -> int:
        """How many messages were put in so far."""
        with self._lock:
            return sum(lane.accepted for lane in self._lanes)

    @property
    def used_bytes(self) -> int:
        """What waits to be sent or for its receipt."""
        return self._used

    # --- room -----------------------------------------------------------------------------------

    def release(self, size: int) -> None:
        """``size`` bytes have their receipt."""
        with self._lock:
            self._used -= size
            self._space.notify_all()
            self._let_in()

    def wait_for_room(self, size: int, timeout_s: float) -> None:
        """Block this thread until ``size`` bytes fit. Raises MemoryFull after ``timeout_s``."""
        with self._space:
            fits = self._space.wait_for(lambda: self._fits(size), timeout_s)
        if not fits:
            raise MemoryFull(
                f"{self._used} bytes of messages waited {timeout_s:g} s for receipts; is the "
                "broker away?"
            )

    async def room(self, size: int) -> None:
        """Wait until ``size`` bytes may fit, without blocking the loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._fits(size):
                return
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, future))
        await future

    def _fits(self, size: int) -> bool:
        failed = self.error is not None
        return failed or not self._used or self._used + size <= self._buffer_bytes

    def _let_in(self) -> None:
        while self._waiting:
            loop, future = self._waiting.popleft()
            loop.call_soon_threadsafe(_resolve, future)

    # --- out: the loop's thread -----------------------------------------------------------------

    def take(self, lane: Lane) -> OpenBatch | float | None:
        """The next batch that is due, or seconds until one is, or None when there is none."""
        with self._lock:
            if lane.sealed:
                return lane.sealed.popleft()
            batch = lane.open
            if batch is None:
                return None
            wait_s = batch.due_s - time.monotonic() if batch.due_s else 0.0
            if wait_s > 0:
                return wait_s
            lane.open = None
            self._rotate()
            return batch

    def hurry(self) -> list[int]:
        """Make everything due now. Returns how many messages each lane has accepted so far."""
        with self._lock:
            for lane in self._lanes:
                if lane.open is not None:
                    lane.open.due_s = 0.0
            accepted = [lane.accepted for lane in self._lanes]
        for lane in self._lanes:
            lane.wake()
        return accepted

    def fail(self, error: DanubeError) -> list[tuple[int, OpenBatch]]:
        """Take no more. Returns what was not taken yet, by lane."""
        with self._lock:
            self.error = self.error or error
            left = [
                (number, batch)
                for number, lane in enumerate(self._lanes)
                for batch in (*lane.sealed, *filter(None, [lane.open]))
            ]
            for lane in self._lanes:
                lane.open = None
                lane.sealed.clear()
            self._space.notify_all()
            self._let_in()
        return left


def _add_rare(
    batch: OpenBatch, attributes: Mapping[str, str] | None, timestamp_us: int | None
) -> None:
    count = len(batch.values)
    if attributes is not None:
        batch.attributes = _padded(batch.attributes or [], count) or []
        batch.attributes.append(attributes)
    if timestamp_us is not None:
        batch.times = _padded(batch.times or [], count) or []
        batch.times.append(timestamp_us)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
