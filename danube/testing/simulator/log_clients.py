"""Clients of a simulated broker: they outlive it, and go on where they were.

They speak to the log engine as the broker's services do, one call deeper than gRPC.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from danube.core.batch import message_records
from danube.core.errors import (
    DanubeError,
    FailedPrecondition,
    ProducerFenced,
    SequenceGap,
    StaleSink,
)
from danube.core.frames import Codec, encode_frame
from danube.core.names import PartitionId
from danube.dispatch.cursor import Cursor
from danube.log.decisions import CommitRequest, SetRef
from danube.log.engine import LogEngine
from danube.log.topic import Owned
from danube.metadata.catalog import TopicRecord
from danube.testing.simulator.log_belief import BatchBelief, LogBelief

PARTITIONS = 2


class Client(Protocol):
    """Somebody who uses the broker."""

    async def step(self) -> None:
        """Do one thing; a DanubeError is what a client would retry."""


@dataclass(slots=True)
class Sending:
    """A frame whose outcome its producer does not know yet."""

    first_sequence: int
    values: list[bytes]


@dataclass(slots=True)
class World:
    """What all clients share. ``engine`` is the broker's present process."""

    rng: random.Random
    belief: LogBelief
    record: TopicRecord
    engine: LogEngine | None = None
    serial: int = 0

    def values(self, most: int) -> list[bytes]:
        """New messages, each with a value of its own."""
        count = self.rng.randint(1, most)
        self.serial += count
        return [b"v%08d" % (self.serial - count + i) for i in range(count)]

    async def partition(self, number: int) -> Owned:
        """The partition at the present broker."""
        assert self.engine is not None
        return await self.engine.partition(self.record, number)


@dataclass(slots=True)
class Producer:
    """Publishes to one partition, one frame at a time, idempotently over crashes."""

    world: World
    number: int
    partition: int
    epoch: int = 0
    sequence: int = 0
    sending: Sending | None = None

    async def step(self) -> None:
        """Send the frame that is in doubt again, or a new one."""
        log = (await self.world.partition(self.partition)).log
        name = f"producer-{self.number}"
        if self.epoch == 0:
            _, self.epoch = await log.open_producer(name, 0)
            self.sequence = 0
        if self.sending is None:
            self.sending = Sending(self.sequence, self.world.values(5))
        identity, _ = await log.open_producer(name, self.epoch)
        records = message_records(
            self.sending.values, now_us=log.context.clock.now_us(), producer=name
        )
        frame = encode_frame(
            records,
            topic_id=self.world.record.topic_id.raw,
            partition=self.partition,
            producer_id=identity,
            producer_epoch=self.epoch,
            first_sequence=self.sending.first_sequence,
            codec=Codec.NONE,
        )
        try:
            appended = await (await log.append(frame))
        except (SequenceGap, ProducerFenced):
            # The simulated journal loses nothing that was synced, epochs included.
            raise AssertionError(f"{name} was forgotten") from None
        self.world.belief.acknowledged(self.partition, appended.base_offset, self.sending.values)
        self.sequence = self.sending.first_sequence + len(self.sending.values)
        self.sending = None


@dataclass(slots=True)
class Consumer:
    """Acknowledges what it can see of one partition."""

    world: World
    partition: int

    async def step(self) -> None:
        """Acknowledge some more, durably."""
        log = (await self.world.partition(self.partition)).log
        cursor = log.state.cursors.get("consumer")
        if cursor is None:
            cursor = Cursor(0)
            log.put_cursor("consumer", cursor)
        self.world.belief.check_cursor(self.partition, cursor.offset)
        target = self.world.rng.randint(cursor.offset, log.durable_offset)
        cursor.advance(target)
        await log.save_cursor("consumer")
        self.world.belief.cursors[self.partition] = target


@dataclass(slots=True)
class SinkDriver:
    """A Spark driver: one batch after the other, run again after any failure."""

    world: World
    batch: int = 0
    run: int = 0
    request: CommitRequest | None = None
    attempt: dict[int, list[bytes]] = field(default_factory=dict)

    async def step(self) -> None:
        """Stage and commit the next batch, or ask again for the one that is in doubt."""
        if self.request is None or self.world.rng.random() < 0.2:
            await self._stage()
        assert self.request is not None
        assert self.world.engine is not None
        sinks = self.world.engine.context.sinks
        if not self.request.sets:
            self.world.belief.batches[self.batch].empty_asked = True
        if self.world.rng.random() < 0.1:
            await sinks.abort(self.request)
        try:
            outcome = await sinks.commit(self.request)
        except StaleSink:
            raise AssertionError("the only driver of a sink was called stale") from None
        except FailedPrecondition:
            # Its staged sets are gone: Spark would run the batch again.
            self.request = None
            return
        if outcome.lost:
            raise AssertionError(f"parts of batch {self.batch} were lost: {outcome.lost}")
        self.world.belief.batches[self.batch].answered = True
        self.batch += 1
        self.request = None

    async def _stage(self) -> None:
        """A new attempt: new set ids and, so that attempts can be told apart, new values."""
        self.request = None
        self.run += self.world.rng.random() < 0.3
        self.attempt = {}
        known = self.world.belief.batches.setdefault(self.batch, BatchBelief())
        known.attempts.append(self.attempt)
        refs: list[SetRef] = []
        for _ in range(self.world.rng.randint(0, 3)):
            refs.append(await self._stage_set(self.world.rng.randrange(PARTITIONS)))
        self.request = CommitRequest(
            query_id="query",
            sink_name="sink",
            batch_id=self.batch,
            run_id=f"run-{self.run}",
            sets=tuple(refs),
        )

    async def _stage_set(self, partition: int) -> SetRef:
        sinks = (await self.world.partition(partition)).sinks
        set_id = self.world.rng.randbytes(16).hex()
        label = {"query": "query", "sink": "sink", "batch": self.batch, "run": f"run-{self.run}"}
        staged = sinks.open_set(set_id, label)
        for _ in range(self.world.rng.randint(1, 3)):
            values = self.world.values(4)
            records = message_records(values, now_us=0, producer="sink")
            frame = encode_frame(
                records,
                topic_id=self.world.record.topic_id.raw,
                partition=partition,
                producer_id=1,
                producer_epoch=1,
                first_sequence=0,
            )
            await sinks.stage(staged, frame)
            self.attempt.setdefault(partition, []).extend(values)
        await sinks.complete_set(staged)
        item = PartitionId(self.world.record.topic_id, partition)
        return SetRef(set_id, str(self.world.record.name), item)


async def work_on(world: World, step: Callable[[], Awaitable[None]]) -> None:
    """Take steps until the process dies, pausing like a client after errors that pass."""
    while True:
        try:
            await step()
        except DanubeError:
            await asyncio.sleep(world.rng.random())
        await asyncio.sleep(world.rng.choice([0.0, 0.001, 0.1, 2.0]))
