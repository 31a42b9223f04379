"""The producer: batches in the background, idempotent, message by message or batch by batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, TypeAlias, cast

import pyarrow as pa

from danube.client.connection import Router, TopicView
from danube.client.messages import Delivery, MessageId, MessageRange, OnDelivery
from danube.client.outbox import MESSAGE_OVERHEAD_BYTES, OpenBatch, Outbox, call_back
from danube.client.partition_writer import PartitionWriter
from danube.client.settings import ClientSettings
from danube.client.splitting import Batchable, Keys, by_partition, by_size, to_batches
from danube.client.streams import only_error
from danube.core.batch import ATTRIBUTE_OVERHEAD_BYTES
from danube.core.errors import (
    DanubeError,
    FailedPrecondition,
    InvalidRequest,
    MemoryFull,
    MessageTooLarge,
    OutcomeUnknown,
)
from danube.core.frames import Codec
from danube.core.limits import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from danube.core.telemetry import get_logger

log = get_logger(__name__)

Outcomes: TypeAlias = "list[asyncio.Future[Delivery]]"
CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


@dataclass(slots=True)
class ProducerCounts:
    """How many messages: ``published`` = delivered + failed + still on their way.

    ``in_doubt`` are those of the failed ones that may be in the topic all the same.
    """

    published: int = 0
    delivered: int = 0
    failed: int = 0
    in_doubt: int = 0


class Producer:
    """Publishes to one topic. Made by ``client.producer(topic)``; an async context manager.

    Within a partition messages keep their order, over retries and reconnects too.
    """

    def __init__(
        self,
        router: Router,
        settings: ClientSettings,
        *,
        name: str,
        codec: str,
        on_delivery: OnDelivery | None,
        on_closed: Callable[[Producer], object],
    ) -> None:
        if codec not in CODECS:
            raise InvalidRequest(f"there is no codec {codec!r}; use one of {', '.join(CODECS)}")
        self.name = name
        self.codec = CODECS[codec]
        self.settings = settings
        self._counts = ProducerCounts()
        self._router = router
        self._topic = router.topic
        self._on_delivery = on_delivery
        self._on_closed = on_closed
        self._unreported: DanubeError | None = None
        self._name_bytes = len(name.encode())
        batch_bytes = min(settings.batch_bytes, self._topic.max_frame_bytes * 3 // 4)
        self.outbox = Outbox(
            batch_bytes=batch_bytes,
            linger_s=settings.linger_ms / 1000,
            buffer_bytes=settings.buffer_bytes,
        )
        self._batch_bytes = batch_bytes
        count = len(self._topic.partitions)
        self._writers = [PartitionWriter(self, router, number) for number in range(count)]
        self._task = asyncio.create_task(self._run(), name=f"producer {name}")

    @property
    def counts(self) -> ProducerCounts:
        """How many messages were published, and what became of them so far."""
        return replace(self._counts, published=self.outbox.accepted())

    @property
    def topic(self) -> TopicView:
        """The topic as it was when the producer was made."""
        return self._topic

    # --- message by message ---------------------------------------------------------------------

    def publish(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        timestamp_us: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Buffer one message; it is sent within ``linger_ms``.

        Its outcome is told to ``on_delivery``, or to the producer's own one (once per batch), or
        counted in ``counts``; a failure that nobody was told is raised by ``flush`` and ``close``.

        Args:
            value: bytes, or text (UTF-8).
            key: messages of one key keep their order; those without one are spread.
            attributes: text to text.
            timestamp_us: publish time, microseconds since 1970 UTC; default: now.
            partition: instead of the key's.
            on_delivery: called with this message's :class:`Delivery`.

        Raises:
            InvalidRequest: another type, or no such partition.
            MessageTooLarge: above the topic's limit.
            MemoryFull: ``buffer_bytes`` wait for receipts; ``await flush()`` or go slower.
            FailedPrecondition: the producer is closed.
        """
        self.put(value, key, attributes, timestamp_us, partition, on_delivery)

    async def send(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Publish one message and wait until it is durable; arguments as of :meth:`publish`.

        Raises:
            OutcomeUnknown: the connection broke and whether it was stored cannot be asked.
            DanubeError: it was not stored.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Delivery] = loop.create_future()
        delivered = _resolver(future)
        while True:
            try:
                self.put(value, key, attributes, timestamp_us, partition, delivered, urgent=True)
                break
            except MemoryFull:
                await self.outbox.room(len(value) + self._name_bytes + MESSAGE_OVERHEAD_BYTES)
        delivery = await future
        if delivery.offset is None:
            raise cast(DanubeError, delivery.error)
        return MessageId(delivery.partition, delivery.offset)

    def put(
        self,
        value: bytes | str,
        key: bytes | str | None,
        attributes: Mapping[str, str] | None,
        timestamp_us: int | None,
        partition: int | None,
        callback: OnDelivery | None,
        *,
        urgent: bool = False,
    ) -> None:
        """Check and buffer a message; ``publish`` and ``send`` of both twins. From any thread."""
        if type(value) is not bytes:
            value = _as_bytes(value, "value")
        size = len(value) + self._name_bytes
        if key is not None:
            if type(key) is not bytes:
                key = _as_bytes(key, "key")
            size += len(key)
        if attributes is not None:
            size += _attributes_bytes(attributes)
        if timestamp_us is not None and not MIN_TIMESTAMP_US <= timestamp_us <= MAX_TIMESTAMP_US:
            raise InvalidRequest(f"the time {timestamp_us} µs lies outside of the years 1 to 9999")
        if size > self._topic.max_message_bytes:
            raise MessageTooLarge(
                f"the message has {size} bytes; {self._topic.name} takes at most "
                f"{self._topic.max_message_bytes}: split it, or raise the topic's limit"
            )
        self._check_partition(partition)
        self.outbox.put(
            value,
            key,
            attributes,
            timestamp_us,
            callback,
            size + MESSAGE_OVERHEAD_BYTES,
            partition,
            urgent=urgent,
        )

    # --- batch by batch -------------------------------------------------------------------------

    async def send_batch(
        self, records: Batchable, *, keys: Keys | None = None, partition: int | None = None
    ) -> list[MessageRange]:
        """Publish many messages and wait until all are durable.

        Args:
            records: an Arrow record batch or table with a column ``value`` and any of ``key``,
                ``timestamp``, ``producer``, ``attributes``; or values: a list, an Arrow array, any
                iterable (also an endless one's finite part; it is consumed as room allows).
            keys: one per value, or None; not for Arrow records, which have a column.
            partition: send everything there.

        Returns:
            Where they are, in order of offsets per partition; adjacent ranges are merged.

        Raises:
            DanubeError: the first failure, once every frame has its outcome; its notes name the
                ranges that were stored all the same.
        """
        self._check_partition(partition)
        outcomes: Outcomes = []
        try:
            for batch in self.to_batches(records, keys):
                await self.enqueue(batch, partition, outcomes)
        except BaseException as error:
            await self.ranges_of(outcomes, error)
        return await self.ranges_of(outcomes)

    def to_batches(self, records: Batchable, keys: Keys | None) -> Iterator[pa.RecordBatch]:
        """What was given to :meth:`send_batch` as record batches, one after the other."""
        now_us = time.time_ns() // 1000
        return to_batches(records, keys, producer=self.name, now_us=now_us)

    async def enqueue(
        self, batch: pa.RecordBatch, partition: int | None, outcomes: Outcomes
    ) -> None:
        """Hand a batch to the partitions' streams, waiting for room; add what will come of it."""
        self._check_partition(partition)
        for number, mine in self._routed(batch, partition):
            for part, size in by_size(
                mine,
                batch_bytes=self._batch_bytes,
                max_message_bytes=self._topic.max_message_bytes,
            ):
                future: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
                # Without keys every frame goes to the next partition.
                to = self.outbox.next_partition() if number is None else number
                while not self.outbox.put_records(part, size, to, _resolver(future)):
                    await self.outbox.room(size)
                outcomes.append(future)

    async def ranges_of(
        self, outcomes: Outcomes, error: BaseException | None = None
    ) -> list[MessageRange]:
        """Wait for outcomes. Raises ``error``, or the first failure, noting what was stored."""
        return merge_ranges(await asyncio.gather(*outcomes), error)

    def _check_partition(self, partition: int | None) -> None:
        if partition is not None:
            self._topic.partition(partition)

    def _routed(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> Iterable[tuple[int | None, pa.RecordBatch]]:
        if partition is not None:
            return [(partition, batch)]
        keys = batch.column("key")
        if len(self._writers) == 1 or keys.null_count == len(keys):
            return [(None, batch)]
        return by_partition(batch, self.outbox.partitions_of)

    # --- outcomes -------------------------------------------------------------------------------

    def delivered(self, batch: OpenBatch, delivery: Delivery) -> None:
        """Count a batch's outcome and tell whoever wants to know. Called by our writers."""
        if delivery.error is None:
            self._counts.delivered += delivery.count
        else:
            self._counts.failed += delivery.count
            if isinstance(delivery.error, OutcomeUnknown):
                self._counts.in_doubt += delivery.count
            told = self._on_delivery is not None or batch.told_all
            self._unreported = self._unreported or (None if told else delivery.error)
        batch.report(delivery)
        if self._on_delivery is not None:
            call_back(self._on_delivery, delivery)

    async def flush(self) -> None:
        """Send what is buffered now and wait until all of it has its outcome.

        Raises:
            DanubeError: the first failure that no callback was told, since the last flush.
        """
        accepted = self.outbox.hurry()
        for writer, count in zip(self._writers, accepted, strict=True):
            await writer.answered(count)
        self._raise_unreported()

    def _raise_unreported(self) -> None:
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    # --- life -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: DanubeError = _closed(self.name)
        try:
            async with asyncio.TaskGroup() as tasks:
                for writer in self._writers:
                    tasks.create_task(writer.run(), name=f"writer of producer {self.name}")
        except BaseExceptionGroup as group:
            cause = only_error(group)
            if isinstance(cause, DanubeError):
                error = cause
            else:
                log.error("a producer failed unexpectedly", exc_info=group)
                error = DanubeError(f"the producer failed unexpectedly: {cause!r}")
        finally:
            self._end(error)

    def _end(self, error: DanubeError) -> None:
        left = self.outbox.fail(error)
        for writer in self._writers:
            writer.abandon(error)
        for number, batch in left:
            self._writers[number].left_over(batch, error)

    async def close(self) -> None:
        """Flush, then end the streams. A second call does nothing.

        Raises:
            DanubeError: as :meth:`flush`.
        """
        try:
            if not self._task.done():
                self.outbox.hurry()
                for writer in self._writers:
                    writer.close()
                await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            self._on_closed(self)
        self._raise_unreported()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _closed(name: str) -> DanubeError:
    return FailedPrecondition(f"the producer {name} is closed; make another one")


def _as_bytes(given: object, what: str) -> bytes:
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the {what} is not valid text: {error}") from None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidRequest(f"a {what} is bytes or text, not {type(given).__name__}")


def _attributes_bytes(attributes: Mapping[str, str]) -> int:
    try:
        return sum(
            len(name.encode()) + len(text.encode()) + ATTRIBUTE_OVERHEAD_BYTES
            for name, text in attributes.items()
        )
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"attributes map text to text: {error}") from None


def _resolver(future: asyncio.Future[Delivery]) -> OnDelivery:
    def resolve(delivery: Delivery) -> None:
        if not future.done():
            future.set_result(delivery)

    return resolve


def merge_ranges(
    deliveries: Iterable[Delivery], failure: BaseException | None
) -> list[MessageRange]:
    """Merge adjacent ranges; raise the first failure with the ranges that were stored."""
    found: dict[int, list[MessageRange]] = {}
    for delivery in deliveries:
        if delivery.offset is None:
            failure = failure or delivery.error
            continue
        ranges = found.setdefault(delivery.partition, [])
        start, end = delivery.offset, delivery.offset + delivery.count
        if ranges and ranges[-1].end == start:
            ranges[-1] = MessageRange(delivery.partition, ranges[-1].start, end)
        else:
            ranges.append(MessageRange(delivery.partition, start, end))
    stored = [each for partition in sorted(found) for each in found[partition]]
    if failure is not None:
        if stored:
            failure.add_note(f"stored all the same: {', '.join(map(str, stored))}")
        raise failure
    return stored
