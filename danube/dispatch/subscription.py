"""What all kinds of subscription share: cursor, window, redelivery, credit.

One object per subscription and partition. Events are methods; each returns the decisions that
follow. The owner carries them out and feeds the outcome back as further events. A kind says who
may join and who gets the next chunk; everything else is here.

Costs grow with ranges and chunks, never with messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from danube.core.errors import InvalidRequest
from danube.core.offsets import OffsetRange, RangeSet
from danube.dispatch.cursor import Cursor
from danube.dispatch.decisions import Chunk, CursorMoved, Decision, Deliver, Fetch
from danube.dispatch.redelivery import RedeliveryCounts


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one subscription on one partition."""

    max_unacked_messages: int = 100_000
    max_acked_ranges: int = 10_000
    fetch_bytes: int = 2 * 1024 * 1024
    max_credit_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class Consumer:
    """A connected consumer: its credit, and what it has and has not acknowledged."""

    consumer_id: int
    name: str
    credit_bytes: int = 0
    unacked: RangeSet = field(default_factory=RangeSet)


class Subscription(ABC):
    """Base of the kinds.

    Args:
        cursor: where the subscription stands; changed in place.
        durable_offset: messages below it may be delivered.
        limits: bounds.
    """

    def __init__(self, cursor: Cursor, durable_offset: int, limits: Limits) -> None:
        self.cursor = cursor
        self.limits = limits
        self.consumers: dict[int, Consumer] = {}
        self.position = cursor.offset
        self._durable = durable_offset
        self._again = RangeSet()
        self._unacked = RangeSet()
        self._counts = RedeliveryCounts()
        self._chunks: deque[Chunk] = deque()
        self._fetch: Fetch | None = None
        self._fetches = 0

    # -- what a kind decides ---------------------------------------------------------------

    @abstractmethod
    def _admit(self, name: str) -> None:
        """Raise SubscriptionBusy if another consumer may not join now."""

    @abstractmethod
    def _choose(self, chunk: Chunk) -> Consumer | None:
        """Who gets the next chunk; None when nobody can take it now."""

    # -- facts -----------------------------------------------------------------------------

    @property
    def unacked_messages(self) -> int:
        """Messages delivered and not acknowledged."""
        return self._unacked.total()

    @property
    def has_buffered(self) -> bool:
        """Whether fetched chunks wait for credit or window."""
        return bool(self._chunks)

    # -- events ----------------------------------------------------------------------------

    def appended(self, durable_offset: int) -> list[Decision]:
        """Messages below ``durable_offset`` may be delivered now."""
        self._durable = max(self._durable, durable_offset)
        return self._decide()

    def joined(self, consumer_id: int, name: str) -> list[Decision]:
        """A consumer has connected.

        Raises:
            SubscriptionBusy: the kind does not allow one more.
            InvalidRequest: the id is in use.
        """
        if consumer_id in self.consumers:
            raise InvalidRequest(f"consumer id {consumer_id} is connected already")
        self._admit(name)
        self.consumers[consumer_id] = Consumer(consumer_id, name)
        return self._decide()

    def left(self, consumer_id: int) -> list[Decision]:
        """A consumer is gone: what it has not acknowledged is delivered again, in order."""
        consumer = self.consumers.pop(consumer_id, None)
        if consumer is not None:
            self._put_back(consumer, list(consumer.unacked))
        return self._decide()

    def credit(self, consumer_id: int, size: int) -> list[Decision]:
        """A consumer can take ``size`` more bytes."""
        consumer = self.consumers.get(consumer_id)
        if consumer is not None:
            total = consumer.credit_bytes + size
            consumer.credit_bytes = min(total, self.limits.max_credit_bytes)
        return self._decide()

    def fetched(
        self, fetch_id: int, chunks: Sequence[Chunk], next_offset: int, lost: Iterable[OffsetRange]
    ) -> list[Decision]:
        """What a fetch brought, up to ``next_offset``; lost ranges count as acknowledged."""
        fetch, decisions = self._fetch, list[Decision]()
        if fetch is None or fetch.fetch_id != fetch_id:
            return decisions
        self._fetch = None
        self._chunks.extend(chunks)
        if fetch.start >= self.position:
            self.position = max(self.position, next_offset)
        for item in lost:
            self._again.remove(item.start, item.end)
            if self.cursor.ack(item.start, item.end):
                decisions.append(CursorMoved())
        return decisions + self._decide()

    def fetch_failed(self, fetch_id: int) -> None:
        """A fetch brought nothing; the next event asks again."""
        if self._fetch is not None and self._fetch.fetch_id == fetch_id:
            self._fetch = None

    def acked(self, ranges: Iterable[OffsetRange]) -> list[Decision]:
        """Messages are done with, whoever had them. Never delivered ones cannot be."""
        moved = False
        for item in ranges:
            end = min(item.end, self.position)
            moved |= self.cursor.ack(item.start, end)
            self._take_back(item.start, end)
            self._again.remove(item.start, end)
            self._counts.forget(item.start, end)
        return ([CursorMoved()] if moved else []) + self._decide()

    def nacked(self, consumer_id: int, ranges: Iterable[OffsetRange]) -> list[Decision]:
        """A consumer gives messages back, to be delivered again to anyone."""
        consumer = self.consumers.get(consumer_id)
        if consumer is not None:
            self._put_back(consumer, list(ranges))
        return self._decide()

    def reset(self, offset: int) -> list[Decision]:
        """Stand elsewhere, as a new generation; what is under way is forgotten."""
        self.cursor.reset(offset)
        self._restart()
        return [CursorMoved(), *self._decide()]

    def trimmed(self, log_start: int) -> list[Decision]:
        """Retention removed everything below ``log_start``."""
        if not self.cursor.advance(log_start):
            return self._decide()
        self._again.remove(0, log_start)
        self._take_back(0, log_start)
        if self.position < log_start:
            self.position = log_start
            self._chunks.clear()
            self._fetch = None
        return [CursorMoved(), *self._decide()]

    def retry(self) -> list[Decision]:
        """Look again; after a failed fetch."""
        return self._decide()

    # -- decisions -------------------------------------------------------------------------

    def _decide(self) -> list[Decision]:
        decisions: list[Decision] = []
        while self._chunks and not self._window_full():
            delivered = self._deliver(self._chunks[0])
            if delivered is None:
                break
            decisions += delivered
        if not self._chunks and self._fetch is None and self._hungry() and not self._window_full():
            self._fetch = self._next_fetch()
            if self._fetch is not None:
                decisions.append(self._fetch)
        return decisions

    def _deliver(self, chunk: Chunk) -> list[Decision] | None:
        """Hand out the first chunk, or the part of it that the window allows; None: not now."""
        room = self.limits.max_unacked_messages - self._unacked.total()
        spans = _first(self._wanted(chunk), room)
        if not spans:
            self._chunks.popleft()
            return []
        consumer = self._choose(chunk)
        if consumer is None:
            return None
        consumer.credit_bytes -= chunk.bytes
        for span in spans:
            consumer.unacked.add(span.start, span.end)
            self._unacked.add(span.start, span.end)
            self._again.remove(span.start, span.end)
        if not self._wanted(chunk):
            self._chunks.popleft()
        return self._by_count(consumer, chunk, spans)

    def _by_count(
        self, consumer: Consumer, chunk: Chunk, spans: list[OffsetRange]
    ) -> list[Decision]:
        groups: dict[int, list[OffsetRange]] = {}
        for span in spans:
            for count, part in self._counts.split(span):
                groups.setdefault(count, []).append(part)
        return [
            Deliver(consumer.consumer_id, chunk, tuple(parts), count)
            for count, parts in sorted(groups.items(), key=lambda item: item[1][0])
        ]

    def _wanted(self, chunk: Chunk) -> list[OffsetRange]:
        """What of a chunk is neither acknowledged nor with a consumer."""
        free = self.cursor.unacked(chunk.start, chunk.end)
        return [gap for item in free for gap in self._unacked.gaps(item.start, item.end)]

    def _next_fetch(self) -> Fetch | None:
        again = next(iter(self._again), None)
        if again is not None:
            start, end = again.start, again.end
        elif len(self.cursor.acked) >= self.limits.max_acked_ranges:
            # Too fragmented to remember more: old messages must be acknowledged first.
            return None
        else:
            self.position = self._skip_acked(self.position)
            start, end = self.position, self._durable
        if start >= end:
            return None
        self._fetches += 1
        return Fetch(self._fetches, start, end, self.limits.fetch_bytes)

    def _skip_acked(self, offset: int) -> int:
        gap = next(self.cursor.acked.gaps(max(offset, self.cursor.offset), self._durable), None)
        return gap.start if gap is not None else max(offset, self._durable)

    def _hungry(self) -> bool:
        return any(consumer.credit_bytes > 0 for consumer in self.consumers.values())

    def _window_full(self) -> bool:
        return self._unacked.total() >= self.limits.max_unacked_messages

    # -- bookkeeping -----------------------------------------------------------------------

    def _put_back(self, consumer: Consumer, ranges: list[OffsetRange]) -> None:
        for item in ranges:
            for held in list(consumer.unacked.within(item.start, item.end)):
                consumer.unacked.remove(held.start, held.end)
                self._unacked.remove(held.start, held.end)
                self._again.add(held.start, held.end)
                self._counts.put_back(held.start, held.end)

    def _take_back(self, start: int, end: int) -> None:
        self._unacked.remove(start, end)
        for consumer in self.consumers.values():
            consumer.unacked.remove(start, end)

    def _restart(self) -> None:
        self.position = self.cursor.offset
        self._again, self._unacked = RangeSet(), RangeSet()
        self._counts = RedeliveryCounts()
        self._chunks.clear()
        self._fetch = None
        for consumer in self.consumers.values():
            consumer.unacked = RangeSet()


def _first(spans: list[OffsetRange], room: int) -> list[OffsetRange]:
    """The first ``room`` offsets of ``spans``."""
    found: list[OffsetRange] = []
    for span in spans:
        if room <= 0:
            break
        found.append(OffsetRange(span.start, min(span.end, span.start + room)))
        room -= len(found[-1])
    return found
