"""What applications hold: ids, received batches and single messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, cast

import pyarrow as pa

from danube.core.batch import MessageBatch
from danube.core.errors import DanubeError
from danube.wire.translate import from_timestamp_us


class MessageId(NamedTuple):
    """Where a message is, for ever: its partition and its offset there."""

    partition: int
    offset: int


class MessageRange(NamedTuple):
    """Messages of one partition at offsets ``start`` (inclusive) to ``end`` (exclusive)."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of published messages.

    Attributes:
        partition: where they went.
        offset: of the first of them; None when ``error`` is set.
        count: how many.
        error: why they are not (``OutcomeUnknown``: perhaps not) in the topic; None: they are.
        duplicate: an earlier attempt had already stored them; the offset is that one's.
    """

    partition: int
    offset: int | None
    count: int
    error: DanubeError | None = None
    duplicate: bool = False


OnDelivery = Callable[[Delivery], object]
"""Called in the client's event loop (of the blocking twin: in its background thread)."""


class MessagesView:
    """A run of messages of one partition: as a list of values, as Arrow, or one by one.

    Nothing is copied or made until it is asked for.
    """

    def __init__(self, topic: str, partition: int, batch: MessageBatch, append_us: int) -> None:
        self.topic = topic
        self.partition = partition
        self._batch = batch
        self._append_us = append_us

    @property
    def start(self) -> int:
        """Offset of the first message."""
        return self._batch.base_offset

    @property
    def end(self) -> int:
        """One above the offset of the last message."""
        return self._batch.end_offset

    @property
    def records(self) -> pa.RecordBatch:
        """The messages as Arrow columns (:data:`danube.core.batch.MESSAGE_SCHEMA`), not copied."""
        return self._batch.records

    @cached_property
    def values(self) -> list[bytes]:
        """The values as a list."""
        return cast("list[bytes]", self.column("value"))

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The keys as a list, None where a message has none."""
        return cast("list[bytes | None]", self.column("key"))

    @property
    def range(self) -> MessageRange:
        """Partition and offsets."""
        return MessageRange(self.partition, self.start, self.end)

    @property
    def append_time(self) -> datetime:
        """When the broker appended them."""
        return from_timestamp_us(self._append_us)

    def column(self, name: str) -> list[Any]:
        """One Arrow column as a list, made once."""
        cache: dict[str, list[Any]] = self.__dict__.setdefault("_columns", {})
        if name not in cache:
            column: Any = self._batch.records.column(name)
            if name == "timestamp":
                column = column.view(pa.int64())
            cache[name] = column.to_pylist()
        return cache[name]

    def __len__(self) -> int:
        return self._batch.count

    def __iter__(self) -> Iterator[Message]:
        return map(Message, repeat(self), range(self._batch.count), self.values)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} {self.partition} [{self.start}, {self.end})>"


class Message:
    """One message. Everything but its value is read from its batch when asked for."""

    __slots__ = ("_batch", "_index", "value")

    def __init__(self, batch: MessagesView, index: int, value: bytes) -> None:
        self._batch = batch
        self._index = index
        self.value = value

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return self._batch.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self._batch.partition

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        return self._batch.start + self._index

    @property
    def message_id(self) -> MessageId:
        """Partition and offset."""
        return MessageId(self._batch.partition, self.offset)

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        return self._batch.keys[self._index]

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.value.decode()

    @property
    def timestamp_us(self) -> int:
        """Publish time as the producer told it, microseconds since 1970 UTC."""
        return cast(int, self._batch.column("timestamp")[self._index])

    @property
    def timestamp(self) -> datetime:
        """Publish time as the producer told it."""
        return from_timestamp_us(self.timestamp_us)

    @property
    def append_time(self) -> datetime:
        """When the broker appended it."""
        return self._batch.append_time

    @property
    def producer(self) -> str:
        """Name of the producer."""
        return cast(str, self._batch.column("producer")[self._index])

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes; empty if there are none."""
        return dict(self._batch.column("attributes")[self._index] or ())

    @property
    def redelivery_count(self) -> int:
        """How often it was delivered before; 0 for what a reader read."""
        return cast(int, getattr(self._batch, "redelivery_count", 0))

    def __repr__(self) -> str:
        value = self.value if len(self.value) <= 40 else self.value[:40] + b"..."
        return f"<Message {self.topic} {self.partition}:{self.offset} {value!r}>"
