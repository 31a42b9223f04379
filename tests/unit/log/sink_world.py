"""Scripted owners of partitions, a metadata store, and gates at every step between them.

``World.gate`` is awaited before and after everything that a coordinator does to the outside. A
test decides there what happens next: nothing, a crash, a lost reply, an owner that moves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from danube.core.errors import FailedPrecondition, TopicNotFound, Unavailable
from danube.core.names import PartitionId, TopicName
from danube.core.stores import Compare, Delete, KeyValue, Put, TransactionResult
from danube.log.decisions import CommitRequest, SetRef, SinkCoordinator, SinkLabel
from danube.metadata import keys
from danube.metadata.catalog import Catalog, Claim, LostPart, SinkRecord, TopicRecord
from danube.metadata.memory import MemoryMetadata
from tests.clocks import CountedIds, ManualClock

Gate = Callable[[str], Awaitable[None]]
TOPIC = "/ns/out"
TIMEOUT_S = 5.0


@dataclass
class Partition:
    """What one partition's journal holds; as ``danube/log/sinks`` keeps it."""

    claim: Claim
    staged: set[str] = field(default_factory=set)
    pins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    labels: dict[str, SinkLabel] = field(default_factory=dict)
    visible: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    up: bool = True
    disks_lost: int = 0

    @property
    def finished(self) -> set[str]:
        """Commit ids that have their offsets."""
        return {commit_id for commit_id, _ in self.visible}


class ScriptedOwner:
    """The owner of one partition."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number

    def _serving(self) -> Partition:
        partition = self._world.partitions[self._number]
        if not partition.up:
            raise Unavailable(f"the owner of partition {self._number} is away")
        return partition

    async def pin(self, commit_id: str, label: SinkLabel, sets: Sequence[str]) -> Sequence[Compare]:
        await self._world.gate("pin")
        partition = self._serving()
        if commit_id not in partition.pins and commit_id not in partition.finished:
            taken = {item for held in partition.pins.values() for item in held}
            if not set(sets) <= partition.staged - taken:
                raise FailedPrecondition("a staged set is not here; run the batch again")
            partition.pins[commit_id] = tuple(sets)
            partition.labels[commit_id] = label
        self._world.pinned += 1
        compare = self._world.catalog.compare(partition.claim)
        await self._world.gate("pinned")
        return [compare]

    async def finish(self, commit_id: str) -> Sequence[LostPart]:
        await self._world.gate("finish")
        partition = self._serving()
        if commit_id in partition.finished:
            return []
        if commit_id not in partition.pins:
            return [LostPart(TOPIC, partition.claim.partition, "disk")]
        self.append(commit_id)
        await self._world.gate("finished")
        return []

    def append(self, commit_id: str) -> None:
        """The sink commit."""
        partition = self._serving()
        sets = partition.pins.pop(commit_id)
        assert set(sets) <= partition.staged, "a pinned set was dropped"
        partition.staged -= set(sets)
        partition.visible.append((commit_id, sets))
        self._world.check_decided(commit_id)

    async def unpin(self, commit_id: str) -> None:
        await self._world.gate("unpin")
        partition = self._serving()
        partition.staged -= set(partition.pins.pop(commit_id, ()))
        await self._world.gate("unpinned")

    async def drop(self, sets: Sequence[str]) -> None:
        await self._world.gate("drop")
        partition = self._serving()
        held = {item for pinned in partition.pins.values() for item in pinned}
        partition.staged -= set(sets) - held
        await self._world.gate("dropped")


class GatedMetadata(MemoryMetadata):
    """A store whose coordinators may crash before a request and before its reply."""

    world: World

    async def get(self, key: str) -> KeyValue | None:
        if key.startswith(keys.SINKS):
            await self.world.gate("read")
        return await super().get(key)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TransactionResult:
        sink = [o for o in operations if o.key.startswith(keys.SINKS)]
        if not sink:
            return await super().transact(compares, operations)
        await self.world.gate("write")
        before = self._data.get(sink[0].key)
        result = await super().transact(compares, operations)
        if result.succeeded and isinstance(sink[0], Put):
            self.world.watch_decision(before, sink[0])
        await self.world.gate("written")
        return result


class World:
    """One topic with a few partitions, and every decision that was ever made."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.clock = ManualClock()
        self.store = GatedMetadata(self.clock)
        self.store.world = self
        self.catalog = Catalog(self.store, self.clock, CountedIds())
        self.partitions: list[Partition] = []
        self.decided: dict[str, SinkRecord] = {}
        self.pinned = 0
        self.topic: TopicRecord
        self._gate = gate
        self._sets = 0

    @classmethod
    async def create(cls, partitions: int = 2, gate: Gate | None = None) -> World:
        """A world whose partitions are claimed."""
        world = cls()
        world.topic = TopicRecord(
            name=TopicName.parse(TOPIC),
            topic_id=world.catalog.new_topic_id(),
            partitions=partitions,
            partitioned=True,
            reliable=True,
            durability="disk",
            max_message_bytes=1000,
            retention_ms=None,
            retention_bytes=None,
            retention_until_acked=False,
            created_us=0,
        )
        await world.catalog.create_topic(world.topic)
        for number in range(partitions):
            world.partitions.append(Partition(await world._claim(number)))
        world._gate = gate
        return world

    async def gate(self, name: str) -> None:
        """Something is about to happen, or has just happened."""
        if self._gate is not None:
            await self._gate(name)

    def partition_id(self, number: int) -> PartitionId:
        """A partition."""
        return PartitionId(self.topic.topic_id, number)

    async def owner_of(self, partition: PartitionId) -> ScriptedOwner:
        """The owner; the topic may be deleted."""
        if await self.catalog.topic_by_id(partition.topic_id) is None:
            raise TopicNotFound("the topic was deleted")
        return ScriptedOwner(self, partition.partition)

    def coordinator(self) -> SinkCoordinator:
        """One more; they have no state, so one is as good as another."""

        async def sleep(seconds: float) -> None:
            await self.gate("sleep")
            self.clock.advance(seconds)

        return SinkCoordinator(
            self.store, self.owner_of, self.clock, commit_timeout_s=TIMEOUT_S, sleep=sleep
        )

    def stage(self, batch_id: int, *numbers: int, run_id: str = "run") -> CommitRequest:
        """What a driver commits after its tasks have staged a set in each of these partitions."""
        sets: list[SetRef] = []
        for number in numbers:
            self._sets += 1
            name = f"set{self._sets}"
            self.partitions[number].staged.add(name)
            sets.append(SetRef(name, TOPIC, self.partition_id(number)))
        return CommitRequest("query", "sink", batch_id, run_id, tuple(sets))

    # -- what owners go through ------------------------------------------------------------

    async def _claim(self, number: int) -> Claim:
        return await self.catalog.claim(self.partition_id(number), "b", "i")

    async def move(self, number: int) -> None:
        """Another broker takes the partition over, with everything in its journal."""
        self.partitions[number].claim = await self._claim(number)

    async def lose_disk(self, number: int) -> None:
        """A successor takes the partition over that has nothing of the staged sets."""
        partition = self.partitions[number]
        partition.claim = await self._claim(number)
        partition.staged.clear()
        partition.pins.clear()
        partition.disks_lost += 1

    async def resolve(self, number: int, *, give_up: bool) -> None:
        """What an owner does on its timer with pins that it hears nothing of."""
        partition = self.partitions[number]
        coordinator = self.coordinator()
        for commit_id in list(partition.pins):
            label = partition.labels[commit_id]
            names = (commit_id, label.query_id, label.sink_name, label.batch_id)
            found = await coordinator.resolve(*names)
            if found.value == "undecided" and give_up:
                found = await coordinator.abort_pin(*names)
            owner = ScriptedOwner(self, number)
            if found.value == "decided" and commit_id in partition.pins:
                owner.append(commit_id)
            elif found.value == "aborted":
                partition.staged -= set(partition.pins.pop(commit_id, ()))

    # -- what must hold --------------------------------------------------------------------

    def watch_decision(self, before: KeyValue | None, write: Put) -> None:
        """A record was written: a decision needs a pin at every participant at this moment."""
        record = SinkRecord.from_bytes(write.key, write.value, 0)
        if not record.commit_id or record.commit_id in self.decided:
            return
        last = SinkRecord.from_bytes(write.key, before.value, 0) if before else None
        if last is not None:
            assert last.last_batch_id < record.last_batch_id, "decided twice, or backwards"
            assert last.finished, "the batch before was not finished"
        for item in record.participants:
            partition = self.partitions[item.partition.partition]
            assert record.commit_id in partition.pins, "decided without a pin"
        self.decided[record.commit_id] = record

    def check_decided(self, commit_id: str) -> None:
        """A part has just become visible."""
        assert commit_id in self.decided, "an undecided part is visible"

    def check_whole(self) -> None:
        """After everything has settled: each decided batch is visible, whole and once."""
        for number, partition in enumerate(self.partitions):
            assert not partition.pins, "a pin is left hanging"
            commits = [commit_id for commit_id, _ in partition.visible]
            assert len(commits) == len(set(commits)), "a part is visible twice"
            sets = [item for _, held in partition.visible for item in held]
            assert len(sets) == len(set(sets)), "a set is visible twice"
            if not partition.disks_lost:
                expected = {
                    commit_id
                    for commit_id, record in self.decided.items()
                    if any(i.partition.partition == number for i in record.participants)
                }
                assert set(commits) == expected, "a decided part is missing"
        batches = [record.last_batch_id for record in self.decided.values()]
        assert len(batches) == len(set(batches)), "a batch was decided twice"

    def visible(self, number: int) -> list[str]:
        """Sets that readers of a partition see, in order."""
        return [item for _, held in self.partitions[number].visible for item in held]


def names(request: CommitRequest, world: World, number: int) -> list[str]:
    """A request's sets in one partition."""
    return [i.set_id for i in request.sets if i.partition == world.partition_id(number)]
