"""Topics, batches, clocks and owners for tests of tables; stores that fail as planned."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from danube.core.batch import message_records
from danube.core.names import TopicId
from danube.core.stores import ObjectStore
from danube.lake.reader import read_file
from danube.lake.replay import TableLog
from danube.lake.settings import LakeSettings
from danube.lake.snapshot import Snapshot
from danube.lake.table import LostRange, RollPart, StoredBatch, TopicTable
from danube.objects.faulty import Fault, FaultyObjects
from danube.objects.memory import MemoryObjects

TOPIC = TopicId(bytes(range(16)))
NAME = "/demo/flights"
NOW_US = 1_700_000_000_123_456
HOUR_S = 3600

Plan = Callable[[str, str], Fault | None]
"""What goes wrong with one operation on one key, if anything."""


@dataclass(slots=True)
class HandClock:
    """A clock that only a test moves. All three hands move together."""

    us: int = NOW_US

    def now_us(self) -> int:
        return self.us

    def monotonic_s(self) -> float:
        return self.us / 1_000_000

    def boottime_s(self) -> float:
        return self.us / 1_000_000

    def forward(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)


class SeededIds:
    """Reproducible ids."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def open_table(
    store: ObjectStore,
    *,
    clock: HandClock | None = None,
    seed: int = 0,
    settings: LakeSettings | None = None,
    topic_id: TopicId = TOPIC,
) -> TopicTable:
    """The table of the sample topic, made if it is not there."""
    table = TopicTable(
        store,
        topic_id,
        NAME,
        settings=settings or LakeSettings(),
        clock=clock or HandClock(),
        ids=SeededIds(seed),
    )
    table.create()
    return table


def messages(start: int, end: int) -> pa.RecordBatch:
    """Messages that say at which offset they belong."""
    offsets = range(start, end)
    return message_records(
        [f"value-{offset}" for offset in offsets],
        keys=[None if offset % 5 == 0 else f"key-{offset % 3}" for offset in offsets],
        timestamps_us=[NOW_US + offset for offset in offsets],
        now_us=NOW_US,
        producer="p",
        attributes=[{"n": str(offset)} if offset % 2 else None for offset in offsets],
    )


def batch(start: int, end: int, append_time_us: int | None = None) -> StoredBatch:
    """Messages [start, end) as the journal holds them."""
    time_us = NOW_US + 1000 * start if append_time_us is None else append_time_us
    return StoredBatch(start, time_us, messages(start, end))


def part(
    start: int,
    end: int,
    *,
    partition: int = 0,
    epoch: int = 1,
    lost: Sequence[LostRange] = (),
    step: int = 10,
) -> RollPart:
    """A roll of [start, end) in batches of ``step``, around its lost ranges."""
    batches: list[StoredBatch] = []
    at = start
    for gap in [*sorted(lost), LostRange(end, end, "")]:
        while at < min(gap.start, end):
            upto = min(at + step, gap.start, end)
            batches.append(batch(at, upto))
            at = upto
        at = max(at, gap.end)
    return RollPart(partition, epoch, start, end, batches, lost)


def offsets_in(store: ObjectStore, snapshot: Snapshot, partition: int = 0) -> list[int]:
    """Every offset of a partition as the files have them, in file order."""
    found: list[int] = []
    for file in snapshot.partition_files(partition):
        for rows in read_file(store, file, 0, 2**62, ["value", "offset"]):
            offsets: list[Any] = rows.column("offset").to_pylist()
            values = rows.column("value").to_pylist()
            assert values == [f"value-{offset}".encode() for offset in offsets]
            found.extend(offsets)
    return found


def newest(store: ObjectStore, topic_id: TopicId = TOPIC) -> Snapshot:
    """The table as a stranger reads it from the log."""
    return TableLog(store, topic_id, NAME, HandClock()).load().snapshot


def owner(store: ObjectStore, epoch: int, seed: int, clock: HandClock | None = None) -> TopicTable:
    """The sample topic's table, fenced by an owner of that epoch."""
    table = open_table(store, seed=seed, clock=clock)
    table.fence({0: epoch})
    return table


def faulty(inner: MemoryObjects) -> tuple[FaultyObjects, list[Plan]]:
    """A store that consults the last plan in a list, for Delta commits alone."""
    plans: list[Plan] = [lambda operation, key: None]

    def plan(operation: str, key: str) -> Fault | None:
        return plans[-1](operation, key) if "/_delta_log/" in key else None

    return FaultyObjects(inner, plan), plans


def once(operation: str, fault: Fault, times: int = 1) -> Plan:
    """A plan that spoils the first ``times`` such operations on Delta commits."""
    left = [times]

    def plan(called: str, key: str) -> Fault | None:
        if called == operation and key.endswith(".json") and left[0]:
            left[0] -= 1
            return fault
        return None

    return plan


def filled(store: MemoryObjects) -> TopicTable:
    """A table of four files with ten messages each."""
    table = owner(store, 1, 0)
    for at in range(0, 40, 10):
        table.roll([part(at, at + 10)])
    return table
