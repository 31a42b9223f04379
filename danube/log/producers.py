"""The producer table: which frames of which producer a partition already holds.

Idempotence after Kafka's idempotent producer (KIP-98): sequences count messages, the last five
frames are remembered, the client keeps at most five in flight.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from danube.core.errors import ProducerFenced, ResourceExhausted, SequenceGap

REMEMBERED_FRAMES = 5
"""Frames remembered per producer, and the most a client may have in flight per partition."""

PROTECTED_S = 15 * 60
"""A producer that wrote within this time is never evicted, whatever the table's size."""

EVICTED_AT_ONCE = 16
"""One in so many entries goes when there is no room, so that not every new producer has to look."""

FLOOR = "floor"
"""In the JSON form: the highest epoch that went with an entry."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One remembered frame."""

    first_sequence: int
    count: int
    base_offset: int


@dataclass(slots=True)
class Producer:
    """What is remembered of one producer."""

    epoch: int
    next_sequence: int = 0
    last_active_us: int = 0
    frames: deque[Sent] = field(default_factory=lambda: deque(maxlen=REMEMBERED_FRAMES))

    def remember(self, sent: Sent) -> None:
        """Note a frame that was appended."""
        self.frames.append(sent)
        self.next_sequence = sent.first_sequence + sent.count

    def to_state(self) -> list[Any]:
        """JSON form for journal checkpoints."""
        sent = [[s.first_sequence, s.count, s.base_offset] for s in self.frames]
        return [self.epoch, self.next_sequence, self.last_active_us, sent]

    @classmethod
    def from_state(cls, state: list[Any]) -> Producer:
        """The inverse of ``to_state``."""
        frames = deque((Sent(*item) for item in state[3]), maxlen=REMEMBERED_FRAMES)
        return cls(state[0], state[1], state[2], frames)


class ProducerTable:
    """Producers of one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._floor = 0

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, producer_id: int, epoch: int, first_sequence: int, count: int) -> Sent | None:
        """Whether a frame is new (None) or was appended before (where).

        Every epoch is written down before it is handed out, so an epoch that is not known here
        was forgotten, and with it whether its frames were appended: it is refused even at
        sequence 0.

        Raises:
            ProducerFenced: a newer epoch of the producer exists.
            SequenceGap: the producer or its epoch is unknown, or it skips sequences.
        """
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {producer_id:016x} epoch {epoch} was replaced by epoch "
                f"{producer.epoch}; another client uses its name: choose another name"
            )
        if producer is None or epoch > producer.epoch:
            raise SequenceGap(
                f"epoch {epoch} of producer {producer_id:016x} is not known (any more); open the "
                "producer again with a fresh epoch"
            )
        if first_sequence == producer.next_sequence:
            return None
        for sent in producer.frames:
            if sent.first_sequence == first_sequence and sent.count == count:
                return sent
        raise SequenceGap(
            f"producer {producer_id:016x} sent sequence {first_sequence}, expected "
            f"{producer.next_sequence}; open the producer again with a fresh epoch"
        )

    def remember(self, producer_id: int, epoch: int, sent: Sent, now_us: int) -> None:
        """Note an appended frame; of an older epoch than the one known it is ignored."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch < epoch:
            producer = self._producers[producer_id] = Producer(epoch)
        if producer.epoch > epoch or sent.first_sequence < producer.next_sequence:
            return
        producer.remember(sent)
        producer.last_active_us = now_us

    def next_epoch(self, producer_id: int, now_us: int) -> int:
        """A fresh epoch: above the known one, and above those of an evicted entry.

        The wall clock's seconds make epochs of forgotten entries grow as well; uniqueness does
        not rest on them but on the journal, where every epoch handed out is written first.
        """
        producer = self._producers.get(producer_id)
        known = producer.epoch if producer else self._floor
        return max(known + 1, now_us // 1_000_000)

    def open(self, producer_id: int, epoch: int, now_us: int) -> None:
        """Note an epoch that was handed out."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch < epoch:
            self._producers[producer_id] = Producer(epoch, last_active_us=now_us)

    def epoch(self, producer_id: int) -> int | None:
        """The newest epoch known of a producer."""
        producer = self._producers.get(producer_id)
        return producer.epoch if producer else None

    def make_room(self, *, now_us: int, capacity: int, ttl_s: float) -> None:
        """Evict idle entries before a new one is added.

        Those that were opened and never wrote go first, however young they are: there is nothing
        to recognise of them, and :meth:`next_epoch` stays above their epochs.

        Raises:
            ResourceExhausted: the table is full of producers that wrote in the last 15 minutes.
        """
        if len(self._producers) < capacity:
            return
        wanted = capacity - max(capacity // EVICTED_AT_ONCE, 1)
        dead = now_us - int(ttl_s * 1e6)
        protected = now_us - PROTECTED_S * 1_000_000
        by_use = sorted(
            self._producers.items(), key=lambda item: (bool(item[1].frames), item[1].last_active_us)
        )
        for producer_id, producer in by_use:
            idle = not producer.frames or producer.last_active_us < protected
            room = len(self._producers) <= wanted
            if producer.last_active_us < dead or (idle and not room):
                self._floor = max(self._floor, producer.epoch)
                del self._producers[producer_id]
        if len(self._producers) >= capacity:
            raise ResourceExhausted(
                f"{capacity} producers wrote to this partition in the last 15 minutes; "
                "use fewer producer names or raise log.max_producers_count"
            )

    def expire(self, *, now_us: int, ttl_s: float) -> None:
        """Forget producers that were idle for longer than ``ttl_s`` seconds."""
        oldest = now_us - int(ttl_s * 1e6)
        for producer_id, item in list(self._producers.items()):
            if item.last_active_us < oldest:
                self._floor = max(self._floor, item.epoch)
                del self._producers[producer_id]

    def to_state(self) -> dict[str, list[Any]]:
        """JSON form for journal checkpoints."""
        state = {str(key): producer.to_state() for key, producer in self._producers.items()}
        return {**state, FLOOR: [self._floor]} if self._floor else state

    def merge_state(self, state: dict[str, list[Any]]) -> None:
        """Take over entries of a journal checkpoint, unless newer ones are known."""
        for key, item in state.items():
            if key == FLOOR:
                self._floor = max(self._floor, item[0])
                continue
            found = self._producers.get(int(key))
            new = Producer.from_state(item)
            if found is None or (found.epoch, found.next_sequence) < (
                new.epoch,
                new.next_sequence,
            ):
                self._producers[int(key)] = new
