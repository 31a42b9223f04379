"""What all kinds of subscription share: cursor, window, redelivery, credit.

One object per subscription and partition. Events are methods; each returns the decisions that
follow. The owner carries them out and feeds the outcome back as further events. A kind says who
may join and who is next; everything else is here.

Every offset from the cursor on is in one of four places, and moves from left to right:

    not yet delivered (at or above ``position``) → in flight → acknowledged (in the cursor)
                                                      ↓ ↑
                                                     waiting to be delivered again

Two lanes of chunks feed it: *fresh* ones in offset order from ``position`` on, and those *again*
for what waits. A lane is filled by one fetch and only for consumers that have credit, so memory is
bounded by the size of a fetch; a full window stops the fresh lane and never the other.

Costs grow with ranges, chunks and consumers, never with messages.

Where later kinds are added: failover and key-shared override ``_admit`` and ``_choose`` (a fresh
piece whose consumer cannot take it becomes a waiting one with count 0); back-off and dead letters
override ``_give_back`` (a span goes to a place of its own, and from there by a tick); an ack
time-out is a tick that gives back what is too long in flight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from danube.core.errors import InvalidRequest
from danube.core.offsets import OffsetRange
from danube.dispatch.consumers import Consumer, Consumers
from danube.dispatch.cursor import Cursor
from danube.dispatch.decisions import Chunk, CursorMoved, Decision, Deliver, Disconnect, Fetch
from danube.dispatch.spans import Span, SpanMap

SAME_FETCH_MESSAGES: Final = 1_000
"""Waiting spans with no more messages than this between them are fetched together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one subscription on one partition.

    ``max_unacked_messages`` may be delivered and not acknowledged, over all consumers; the share of
    each is that divided by their number. With ``max_acked_ranges`` separate ranges acknowledged
    above the cursor only the gaps between them are delivered, until they are filled.
    """

    max_unacked_messages: int = 100_000
    max_acked_ranges: int = 10_000
    fetch_bytes: int = 2 * 1024 * 1024
    max_credit_bytes: int = 64 * 1024 * 1024


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
        self.consumers = Consumers(limits.max_unacked_messages)
        self.position = cursor.offset
        self._durable = durable_offset
        self._in_flight: SpanMap[tuple[int, int]] = SpanMap()  # (consumer id, redelivery count)
        self._waiting: SpanMap[int] = SpanMap()  # redelivery count
        self._fresh: deque[Chunk] = deque()
        self._again: deque[Chunk] = deque()
        self._fetch: Fetch | None = None
        self._fetch_is_again = False
        self._fetches = 0

    # -- what a kind decides ---------------------------------------------------------------

    @abstractmethod
    def _admit(self, name: str) -> None:
        """Raise SubscriptionBusy if another consumer may not join now."""

    @abstractmethod
    def _choose(self) -> Consumer | None:
        """Who gets the next piece, of those with credit and room; None when nobody has both."""

    def _give_back(self, span: Span[tuple[int, int]]) -> None:
        """A span comes back from a consumer that did not acknowledge it."""
        self._waiting.add(span.start, span.end, span.value[1] + 1)
        if self._again and span.start < self._again[0].start:
            # Lower offsets are delivered first; what was fetched is fetched again.
            self._again.clear()

    # -- facts -----------------------------------------------------------------------------

    @property
    def unacked_messages(self) -> int:
        """Messages delivered and not acknowledged, also those that wait to be delivered again."""
        return self._in_flight.total + self._waiting.total

    @property
    def has_buffered(self) -> bool:
        """Whether fetched chunks wait for credit or window."""
        return bool(self._fresh or self._again)

    # -- events of consumers ---------------------------------------------------------------

    def joined(self, consumer_id: int, name: str) -> list[Decision]:
        """A consumer has connected.

        Raises:
            SubscriptionBusy: the kind does not allow one more.
            InvalidRequest: the id is in use.
        """
        if consumer_id in self.consumers:
            raise InvalidRequest(f"consumer id {consumer_id} is connected already")
        self._admit(name)
        self.consumers.add(Consumer(consumer_id, name))
        return self._decide()

    def left(self, consumer_id: int) -> list[Decision]:
        """A consumer is gone: what it has not acknowledged is delivered again, in order."""
        if self.consumers.remove(consumer_id) is not None:
            for span in self._in_flight.cut_values(lambda value: value[0] == consumer_id):
                self._give_back(span)
        if not self.consumers:
            # Nobody may come for a long time; what was fetched is fetched again.
            self._fresh.clear()
            self._again.clear()
        return self._decide()

    def credit(self, consumer_id: int, size: int) -> list[Decision]:
        """A consumer can take ``size`` more bytes."""
        consumer = self.consumers.get(consumer_id)
        if consumer is not None:
            total = consumer.credit_bytes + size
            consumer.credit_bytes = min(total, self.limits.max_credit_bytes)
        return self._decide()

    def acked(self, ranges: Iterable[OffsetRange]) -> list[Decision]:
        """Messages are done with, whoever had them.

        What was not delivered, or is acknowledged already, is ignored: an acknowledgement must
        never skip a message that nobody has seen.
        """
        moved = False
        for item in ranges:
            for start, end in self._take_back(item.start, item.end):
                moved |= self.cursor.ack(start, end)
        return ([CursorMoved()] if moved else []) + self._decide()

    def nacked(self, consumer_id: int, ranges: Iterable[OffsetRange]) -> list[Decision]:
        """A consumer gives messages back that it has, to be delivered again to anyone."""
        consumer = self.consumers.get(consumer_id)
        for item in ranges if consumer is not None else ():
            for span in list(self._in_flight.within(item.start, item.end)):
                if consumer is not None and span.value[0] == consumer_id:
                    self._in_flight.cut(span.start, span.end)
                    consumer.unacked -= len(span)
                    self._give_back(span)
        return self._decide()

    # -- events of the log -----------------------------------------------------------------

    def appended(self, durable_offset: int) -> list[Decision]:
        """Messages below ``durable_offset`` may be delivered now."""
        self._durable = max(self._durable, durable_offset)
        return self._decide()

    def fetched(
        self, fetch_id: int, chunks: Sequence[Chunk], next_offset: int, lost: Iterable[OffsetRange]
    ) -> list[Decision]:
        """What a fetch brought, up to ``next_offset``; lost ranges count as acknowledged."""
        fetch = self._fetch
        if fetch is None or fetch.fetch_id != fetch_id:
            return []
        self._fetch = None
        moved = self._skip(lost)
        if self.consumers:
            lane = self._again if self._fetch_is_again else self._fresh
            lane.extend(self._usable(fetch.start, chunks))
        return moved + self._decide()

    def fetch_failed(self, fetch_id: int) -> None:
        """A fetch brought nothing; the next event asks again."""
        if self._fetch is not None and self._fetch.fetch_id == fetch_id:
            self._fetch = None

    def trimmed(self, log_start: int) -> list[Decision]:
        """Retention removed everything below ``log_start``."""
        moved = self._skip([OffsetRange(0, max(0, log_start))])
        return moved + self._decide()

    def retry(self) -> list[Decision]:
        """Look again; after a failed fetch."""
        return self._decide()

    # -- events of the operator ------------------------------------------------------------

    def reset(self, offset: int) -> list[Decision]:
        """Stand elsewhere, as a new generation; what is under way is forgotten.

        Consumers are disconnected and come back with a new stream: an acknowledgement of what they
        hold could not be told from one of the same message delivered again.
        """
        self.cursor.reset(offset)
        self.position = offset
        self._in_flight.clear()
        self._waiting.clear()
        self._fresh.clear()
        self._again.clear()
        self._fetch = None
        gone = [consumer.consumer_id for consumer in self.consumers]
        for consumer_id in gone:
            self.consumers.remove(consumer_id)
        return [CursorMoved(), *(Disconnect(item, "the cursor was reset") for item in gone)]

    # -- delivering ------------------------------------------------------------------------

    def _decide(self) -> list[Decision]:
        """Deliver what can be, then fetch what could be."""
        decisions: list[Decision] = [*self._deliver_again(), *self._deliver_fresh()]
        if self._fetch is None:
            self._fetch = self._next_fetch()
            if self._fetch is not None:
                decisions.append(self._fetch)
        return decisions

    def _deliver_again(self) -> Iterator[Decision]:
        while self._again:
            chunk = self._again[0]
            pieces = list(self._waiting.within(chunk.start, chunk.end))
            if not pieces:
                self._again.popleft()
                continue
            consumer = self._choose()
            if consumer is None:
                return
            count = pieces[0].value
            alike = [OffsetRange(p.start, p.end) for p in pieces if p.value == count]
            spans = _first(alike, self.consumers.room(consumer))
            for span in spans:
                self._waiting.cut(span.start, span.end)
            yield self._deliver(consumer, chunk, spans, count)

    def _deliver_fresh(self) -> Iterator[Decision]:
        while self._fresh:
            chunk = self._fresh[0]
            start, end = max(self.position, chunk.start), min(chunk.end, self._fresh_end())
            pieces = self.cursor.unacked(start, end)
            if not pieces and end < chunk.end:
                return
            if not pieces:
                self.position = max(self.position, chunk.end)
                self._fresh.popleft()
                continue
            window = self._window_room()
            consumer = self._choose() if window else None
            if consumer is None:
                return
            spans = _first(pieces, min(window, self.consumers.room(consumer)))
            self.position = spans[-1].end
            yield self._deliver(consumer, chunk, spans, 0)

    def _deliver(
        self, consumer: Consumer, chunk: Chunk, spans: list[OffsetRange], count: int
    ) -> Deliver:
        for span in spans:
            self._in_flight.add(span.start, span.end, (consumer.consumer_id, count))
            consumer.unacked += len(span)
        consumer.credit_bytes -= chunk.bytes
        self.consumers.served(consumer)
        return Deliver(consumer.consumer_id, chunk, tuple(spans), count)

    def _window_room(self) -> int:
        """Messages that may be delivered for the first time now."""
        window = self.limits.max_unacked_messages
        return max(0, window - self.consumers.held() - self._waiting.total)

    def _fresh_end(self) -> int:
        """Where first deliveries end for now.

        With too many ranges acknowledged only the gaps between them may be delivered: those are
        what fills them, and after a restart they are not in flight any more.
        """
        if len(self.cursor.acked) < self.limits.max_acked_ranges:
            return self._durable
        return min(self._durable, self.cursor.acked.end)

    # -- fetching --------------------------------------------------------------------------

    def _next_fetch(self) -> Fetch | None:
        size = min(self.limits.fetch_bytes, self.consumers.credit_bytes())
        if size <= 0:
            return None
        if self._waiting and not self._again:
            self._fetch_is_again = True
            return self._numbered(*self._next_waiting(), size)
        if self._fresh or not self._window_room():
            return None
        end = self._fresh_end()
        missing = next(self.cursor.acked.gaps(max(self.position, self.cursor.offset), end), None)
        if missing is None:
            return None
        self._fetch_is_again = False
        return self._numbered(missing.start, end, size)

    def _numbered(self, start: int, end: int, size: int) -> Fetch:
        self._fetches += 1
        return Fetch(self._fetches, start, end, size)

    def _next_waiting(self) -> tuple[int, int]:
        """The first waiting spans that lie close together."""
        spans = iter(self._waiting)
        first = next(spans)
        end = first.end
        for span in spans:
            if span.start - end > SAME_FETCH_MESSAGES:
                break
            end = span.end
        return first.start, end

    def _usable(self, start: int, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Chunks up to the first gap that no lost range explains, and below the durable offset.

        Behind such a gap nothing may be delivered: it would be skipped in silence.
        """
        usable: list[Chunk] = []
        for chunk in chunks:
            end = min(chunk.end, self._durable)
            if end <= start:
                continue
            if self.cursor.unacked(start, chunk.start):
                break
            usable.append(chunk if end == chunk.end else replace(chunk, end=end))
            start = end
        return usable

    # -- bookkeeping -----------------------------------------------------------------------

    def _take_back(self, start: int, end: int) -> list[tuple[int, int]]:
        """The offsets of [start, end) that were delivered; they are accounted for now."""
        taken = [(span.start, span.end) for span in self._waiting.cut(start, end)]
        for span in self._in_flight.cut(start, end):
            holder = self.consumers.get(span.value[0])
            if holder is not None:
                holder.unacked -= len(span)
            taken.append((span.start, span.end))
        return taken

    def _skip(self, ranges: Iterable[OffsetRange]) -> list[Decision]:
        """Count ranges as acknowledged that nobody can be given any more."""
        moved = False
        for item in ranges:
            self._take_back(item.start, item.end)
            moved |= self.cursor.ack(item.start, item.end)
        self.position = max(self.position, self.cursor.offset)
        return [CursorMoved()] if moved else []


def _first(spans: Sequence[OffsetRange], room: int) -> list[OffsetRange]:
    """The first ``room`` offsets of ``spans``."""
    found: list[OffsetRange] = []
    for span in spans:
        if room <= 0:
            break
        found.append(OffsetRange(span.start, min(span.end, span.start + room)))
        room -= len(found[-1])
    return found
