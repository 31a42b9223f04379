"""One simulated life of a broker: journal, log, committer and sink protocol under crashes.

The process may die in any call to the file system or the object store, the machine with its
unsynced pages at any time; stores lose replies, time out and carry calls out late; syncs fail.
Clients live on and ask again. After every start, and at the end when all faults stop and
everything comes to rest, what can be read is held against what was promised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from danube.core.errors import DanubeError, InvalidRequest, StorageFailed
from danube.core.frames import decode_frame
from danube.core.names import TopicId, TopicName
from danube.journal.journal import Journal
from danube.journal.settings import JournalSettings
from danube.lake.settings import LakeSettings
from danube.log.engine import EngineSettings, LogEngine
from danube.log.settings import LogSettings
from danube.log.topic import Owned
from danube.log.workers import InlineWorkers
from danube.metadata.catalog import Catalog, TopicRecord
from danube.metadata.memory import MemoryMetadata
from danube.objects.faulty import Crashed, Fault, FaultyObjects
from danube.objects.memory import MemoryObjects
from danube.testing.simdisk import SimDisk, SimulatedCrash
from danube.testing.simulator.journal_belief import Violation
from danube.testing.simulator.log_belief import LogBelief, Place
from danube.testing.simulator.log_clients import (
    PARTITIONS,
    Client,
    Consumer,
    Producer,
    SinkDriver,
    World,
    work_on,
)
from danube.testing.simulator.sources import SimClock, SimIds
from danube.testing.simulator.virtual_loop import VirtualLoop
from danube.upkeep.verify import layout_problems

DIRECTORY: Final = Path("journal")
JOURNAL: Final = JournalSettings(
    segment_bytes=64 * 1024,
    flush_bytes=16 * 1024,
    queue_bytes=256 * 1024,
    disk_reserve_bytes=3 * 64 * 1024,
    checkpoint_segments=1,
    checkpoint_age_s=5.0,
)
LOG: Final = LogSettings(
    tail_cache_bytes=4096,
    roll_age_s=1.0,
    ceiling_step_offsets=64,
    pin_ttl_s=5.0,
    staged_ttl_s=30.0,
)
LIVES: Final = 4
"""Processes of one run; the last one ends in peace."""

LIFE_S: Final = 4.0
REST_S: Final = 20.0
Log = Callable[[str], None]


class Dead(BaseException):
    """The simulated process has ended; nothing of it may go on."""


class LogRun:
    """Drives one broker through several processes; everything follows from the seed."""

    def __init__(self, seed: int, log: Log = lambda _: None) -> None:
        self.rng = random.Random(seed)
        self.log = log
        self.clock = SimClock()
        self.disk = SimDisk(self.rng.getrandbits(32), capacity_bytes=64 * 1024 * 1024)
        self.ids = SimIds(self.rng)
        self.metadata = MemoryMetadata(self.clock)
        self.objects = MemoryObjects(self.clock)
        self.belief = LogBelief()
        record = TopicRecord(
            name=TopicName("default", "sim"),
            topic_id=TopicId(self.ids.random_bytes(16)),
            partitions=PARTITIONS,
            partitioned=True,
            reliable=True,
            durability="disk",
            max_message_bytes=1024 * 1024,
            retention_ms=None,
            retention_bytes=None,
            retention_until_acked=False,
            created_us=self.clock.now_us(),
        )
        self.world = World(self.rng, self.belief, record)
        self.clients: list[Client] = [
            *(Producer(self.world, number, number % PARTITIONS) for number in range(3)),
            *(Consumer(self.world, number) for number in range(PARTITIONS)),
            SinkDriver(self.world),
        ]
        self._journal: Journal | None = None
        self._store_dies_in: int | None = None
        self._dead = False
        self._peace = False

    # -- lives -----------------------------------------------------------------------------

    def run(self) -> None:
        """Live, die, live again.

        Raises:
            Violation: something that must hold did not.
        """
        for life in range(LIVES):
            self._peace = life == LIVES - 1
            self._live(life)

    def _live(self, life: int) -> None:
        self._dead, self._journal = False, None
        self._plan_death()
        loop = VirtualLoop(self.clock, self._idle)
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._process(life))
        except (SimulatedCrash, Dead, Crashed, StorageFailed) as death:
            self.log(f"life {life} ends: {death}")
            if self._peace:
                raise Violation(f"died in peace: {death}") from death
        finally:
            asyncio.set_event_loop(None)
            loop.abandon()
        if self.rng.random() < 0.5:
            self.disk.kill()
        else:
            self.disk.crash()

    def _plan_death(self) -> None:
        self._store_dies_in = None
        if self._peace:
            return
        how = self.rng.random()
        if how < 0.5:
            self.disk.faults.crash_in = self.rng.randint(0, 250)
        elif how < 0.8:
            self._store_dies_in = self.rng.randint(0, 60)
        elif how < 0.9:
            self.disk.faults.fail_sync_in = self.rng.randint(0, 60)

    def _idle(self, waits: bool) -> bool:
        """Between steps: the journal's writer gets its turn, and the dead do not go on."""
        if self._dead:
            raise Dead("its disk or its object store ended it")
        if self._journal is None or not (waits or self.rng.random() < 0.1):
            return False
        try:
            return self._journal.pump() or self._dead
        except InvalidRequest:
            # Recovery is not over yet.
            return False

    # -- one process -----------------------------------------------------------------------

    async def _process(self, life: int) -> None:
        self.world.engine = await self._start()
        try:
            await self._look(complete=False)
        except DanubeError as error:
            self.log(f"life {life} cannot read: {error}")
            if self._peace:
                raise Violation(f"cannot be read in peace: {error}") from error
        await self._work()
        self.log(
            f"life {life}: {len(self.belief.acked)} acknowledged, {len(self.belief.seen)} seen"
        )
        if self._peace:
            await asyncio.sleep(REST_S)
            await self._look(complete=True)

    async def _work(self) -> None:
        tasks = [asyncio.create_task(work_on(self.world, c.step)) for c in self.clients]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=LIFE_S * 0.9, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self) -> LogEngine:
        catalog = Catalog(self.metadata, self.clock, self.ids)
        await catalog.create_topic(self.world.record, if_not_exists=True)
        journal = Journal.open(
            DIRECTORY,
            JOURNAL,
            broker_id="sim",
            files=self.disk.files(),
            clock=self.clock,
            ids=self.ids,
            threaded=False,
        )
        journal.on_failure = self._disk_failed
        self._journal = journal
        return await LogEngine.start(
            journal,
            store=FaultyObjects(self.objects, self._fault),
            metadata=self.metadata,
            broker_id="sim",
            settings=EngineSettings(LOG, LakeSettings()),
            clock=self.clock,
            ids=self.ids,
            workers=InlineWorkers(),
        )

    def _disk_failed(self, error: BaseException) -> None:
        self.log(f"the disk failed: {error}")
        self._dead = True

    def _fault(self, operation: str, key: str) -> Fault | None:
        if self._dead:
            raise Crashed("dead")
        if self._store_dies_in is not None:
            self._store_dies_in -= 1
            if self._store_dies_in < 0:
                self._dead = True
                return self.rng.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
        if self._peace or self.rng.random() > 0.03:
            return None
        if operation in ("put", "create", "replace"):
            return self.rng.choice([Fault.LOST_REPLY, Fault.TIMEOUT, Fault.REFUSED])
        return Fault.TIMEOUT

    # -- looking ---------------------------------------------------------------------------

    async def _look(self, *, complete: bool) -> None:
        """Read everything and hold it against the belief."""
        rows: dict[Place, bytes] = {}
        for number in range(PARTITIONS):
            owned = await self.world.partition(number)
            if list(owned.log.lost):
                raise Violation(f"partition {number} has lost ranges: {list(owned.log.lost)}")
            rows.update(await self._read(number, owned))
            if "consumer" in owned.log.state.cursors:
                offset = owned.log.state.cursors["consumer"].offset
                self.belief.check_cursor(number, offset)
        self.belief.check(rows, complete)
        assert self.world.engine is not None
        topic = await self.world.engine.topic(self.world.record)
        if topic.table is not None:
            for number in range(PARTITIONS):
                for problem in layout_problems(topic.table.snapshot, number):
                    raise Violation(f"table: partition {number}: {problem}")

    async def _read(self, number: int, owned: Owned) -> dict[Place, bytes]:
        assert self.world.engine is not None
        topic = await self.world.engine.topic(self.world.record)
        rows: dict[Place, bytes] = {}
        at, end = owned.log.log_start, owned.log.durable_offset
        while at < end:
            result = await topic.read(number, at, end=end, max_bytes=64 * 1024)
            for item in result.frames:
                values: list[Any] = decode_frame(item.frame).column("value").to_pylist()
                for offset in range(item.span.start, item.span.end):
                    rows[number, offset] = values[offset - item.base_offset]
            at = result.next_offset
        return rows
