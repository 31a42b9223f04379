"""The sink's coordinator under any interleaving of drivers, crashes, moves and lost disks.

Every step of every coordinator stops at a gate; a seed chooses which one goes on, whether its
coordinator dies there or its request is carried out and only the reply lost, and what happens to
the owners meanwhile. The world (``tests/unit/log/sink_world.py``) checks at every decision that
all its pins are there, and at every sink commit that it was decided.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from danube.core.errors import DanubeError, StaleSink
from danube.log.decisions import CommitOutcome, CommitRequest
from tests.unit.log.sink_world import World

PARTITIONS = 3
STEPS = 250


@dataclass
class Scheduler:
    """Lets one waiting step at a time go on, in an order that the seed decides."""

    chance: random.Random
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def gate(self, name: str) -> None:
        """Wait for one's turn."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            await future
        finally:
            if future in self.waiting:
                self.waiting.remove(future)

    async def settle(self) -> None:
        """Let everything run until it waits at a gate."""
        for _ in range(12):
            await asyncio.sleep(0)

    def next(self) -> None:
        """Let one go on."""
        if self.waiting:
            future = self.waiting.pop(self.chance.randrange(len(self.waiting)))
            if not future.done():
                future.set_result(None)


@dataclass
class Drivers:
    """Drivers of one query: each commits batch after batch, and some come from the past."""

    world: World
    chance: random.Random
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    requests: list[CommitRequest] = field(default_factory=list)
    answered: list[tuple[CommitRequest, CommitOutcome]] = field(default_factory=list)
    runs: int = 0

    def start(self) -> None:
        """A driver starts on the checkpoint and commits what is not committed."""
        self.runs += 1
        self.tasks.append(asyncio.create_task(self._drive(f"run{self.runs}")))

    async def _drive(self, run_id: str) -> None:
        last = max((r.last_batch_id for r in self.world.decided.values()), default=-1)
        # A restarted query runs its last batch again.
        batch_id = max(0, last)
        with suppress(DanubeError):
            while True:
                await self._commit(self._stage(batch_id, run_id))
                batch_id += self.chance.choice((1, 1, 1, 3))

    def _stage(self, batch_id: int, run_id: str) -> CommitRequest:
        numbers = [self.chance.randrange(PARTITIONS) for _ in range(self.chance.randrange(4))]
        self.requests.append(self.world.stage(batch_id, *numbers, run_id=run_id))
        return self.requests[-1]

    async def _commit(self, request: CommitRequest) -> None:
        try:
            outcome = await self.world.coordinator().commit(request)
        except StaleSink:
            raise
        except DanubeError:
            if not await self.world.coordinator().abort(request):
                raise
        else:
            self.answered.append((request, outcome))

    def ask_again(self) -> None:
        """A request is sent a second time, or aborted, by whoever still has it."""
        if not self.requests:
            return
        request = self.chance.choice(self.requests[-4:])
        abort = self.chance.random() < 0.3

        async def run() -> None:
            with suppress(DanubeError):
                if abort:
                    await self.world.coordinator().abort(request)
                else:
                    await self._commit(request)

        self.tasks.append(asyncio.create_task(run()))

    def resolve(self, number: int) -> None:
        """An owner looks its pins up."""

        async def run() -> None:
            with suppress(DanubeError):
                await self.world.resolve(number, give_up=self.chance.random() < 0.3)

        self.tasks.append(asyncio.create_task(run()))

    def crash(self) -> None:
        """A driver and its coordinator die, wherever they are."""
        alive = [task for task in self.tasks if not task.done()]
        if alive:
            self.chance.choice(alive).cancel()

    async def stop(self) -> None:
        """All die; what went wrong in the world is raised."""
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, asyncio.CancelledError
            ):
                raise outcome


async def something_happens(world: World, drivers: Drivers, *, disks: bool) -> None:
    """One event in the life of the cluster."""
    chance = drivers.chance
    number = chance.randrange(PARTITIONS)
    partition = world.partitions[number]
    match chance.choice(("start", "again", "crash", "move", "away", "back", "resolve", "disk")):
        case "start":
            drivers.start()
        case "again":
            drivers.ask_again()
        case "crash":
            drivers.crash()
        case "move":
            await world.move(number)
        case "away":
            partition.up = False
        case "back":
            partition.up = True
        case "resolve" if partition.up:
            drivers.resolve(number)
        case "disk" if disks:
            await world.lose_disk(number)


async def live(seed: int, *, disks: bool) -> None:
    """A while of drivers, faults and recoveries; then everything heals, and must be whole."""
    chance = random.Random(seed)
    scheduler = Scheduler(chance)
    world = await World.create(PARTITIONS, gate=scheduler.gate)
    drivers = Drivers(world, chance)
    drivers.start()
    for _ in range(STEPS):
        await scheduler.settle()
        if chance.random() < 0.12:
            world._gate = None
            await something_happens(world, drivers, disks=disks)
            world._gate = scheduler.gate
        scheduler.next()
    await drivers.stop()
    await heal(world)
    check(world, drivers)


async def heal(world: World) -> None:
    """All owners are back, and nobody but they goes on."""
    world._gate = None
    for partition in world.partitions:
        partition.up = True
    await world.coordinator().finish_open()
    for number in range(PARTITIONS):
        await world.resolve(number, give_up=True)


def check(world: World, drivers: Drivers) -> None:
    """Whole and once; and what a driver was told is so."""
    world.check_whole()
    for request, outcome in drivers.answered:
        record = world.decided[outcome.commit_id]
        assert record.last_batch_id == request.batch_id
        lost = {part.partition for part in outcome.lost}
        for item in record.participants:
            finished = world.partitions[item.partition.partition].finished
            assert outcome.commit_id in finished or item.partition in lost


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_every_decided_batch_is_visible_whole_and_once(seed: int) -> None:
    asyncio.run(live(seed, disks=False))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_only_what_went_with_a_disk_after_its_decision_is_lost(seed: int) -> None:
    asyncio.run(live(seed, disks=True))
