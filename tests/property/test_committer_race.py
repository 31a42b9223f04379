"""Two self-styled owners race on one table, in real threads, over a store that loses replies.

Epochs come from one counter, as they do from the metadata store, which now and then has been
restored from a backup and gives a number out twice. Whatever happens: every offset is in the table
exactly once or recorded as lost, no epoch and no ``off`` ever goes back, each epoch is fenced once,
and what an owner was told it had added is there.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from danube.core.errors import Unavailable
from danube.core.stores import ObjectStore
from danube.lake.replay import TableLog
from danube.lake.settings import LakeSettings
from danube.lake.table import LostRange, PlanVoid, StaleEpoch, TopicTable
from danube.objects.faulty import Fault, FaultyObjects
from danube.objects.local import LocalObjects
from danube.objects.memory import MemoryObjects
from danube.upkeep.verify import verify_table
from tests.unit.lake.lake_samples import (
    NAME,
    TOPIC,
    HandClock,
    newest,
    offsets_in,
    open_table,
    part,
)

FAULTS = (Fault.LOST_REPLY, Fault.TIMEOUT, Fault.LATE, Fault.LATE, Fault.LATE)
SMALL = LakeSettings(store_attempts=2, conflict_attempts=1000)


class Epochs:
    """The counter that the metadata store keeps per partition."""

    def __init__(self) -> None:
        self.last = 0
        self._lock = threading.Lock()

    def claim(self, above: int = 0, *, restored: bool = False) -> int:
        with self._lock:
            self.last = max(self.last - restored, above) + 1
            return self.last


class Owner(threading.Thread):
    """Claims partition 0 now and then, and rolls it until told that it is somebody else's.

    It also retires what it has rolled, on plans that may be stale by then, and sleeps at random
    places, so that it often wakes as a zombie.
    """

    def __init__(self, number: int, store: ObjectStore, epochs: Epochs, steps: int) -> None:
        super().__init__(name=f"owner-{number}")
        self.random = random.Random(number)
        self.store = FaultyObjects(store, self._plan)
        self.epochs = epochs
        self.steps = steps
        self.table: TopicTable | None = None
        self.epoch = 0
        self.added: list[str] = []
        self.fenced: list[int] = []
        self.failure: BaseException | None = None

    def _plan(self, operation: str, key: str) -> Fault | None:
        if "/_delta_log/" not in key or operation != "create":
            return None
        # Give way just before the commit: this is where zombies are made.
        threading.Event().wait(self.random.random() * 0.002)
        if self.random.random() < 0.3:
            self.store.deliver_late()
        return self.random.choice(FAULTS) if self.random.random() < 0.3 else None

    def run(self) -> None:
        try:
            for _ in range(self.steps):
                self._step()
        except BaseException as error:
            self.failure = error

    def _step(self) -> None:
        try:
            if self.table is None:
                self._take()
            elif self.random.random() < 0.1:
                self._retire(self.table)
            elif self.random.random() < 0.05:
                # Ends without a word, its late calls still under way.
                self.table = None
            else:
                self._roll(self.table)
        except (StaleEpoch, PlanVoid):
            self.table = None
        except Unavailable:
            pass  # in doubt; the next step finds out
        if self.random.random() < 0.3:
            self.store.deliver_late()

    def _take(self) -> None:
        table = open_table(self.store, seed=self.random.getrandbits(60), settings=SMALL)
        self.epoch = self.epochs.claim(restored=self.random.random() < 0.3)
        off, lost = table.snapshot.off(0), []
        if self.random.random() < 0.3:
            # What it thinks nobody can prove; its predecessor may be rolling just that.
            lost = [LostRange(off, off + self.random.randint(1, 30), "unproved")]
        while True:
            try:
                target = {0: lost[0].end} if lost else {}
                table.fence({0: self.epoch}, {0: lost}, target)
                break
            except StaleEpoch as stale:
                self.epoch = self.epochs.claim(stale.found)
        self.fenced.append(self.epoch)
        self.table = table

    def _roll(self, table: TopicTable) -> None:
        off = table.snapshot.off(0)
        end = off + self.random.randint(1, 20)
        result = table.roll([part(off, end, epoch=self.epoch, step=7)])
        self.added += [file.path for file in result.files]
        if 0 in result.dropped:
            self.table = None

    def _retire(self, table: TopicTable) -> None:
        snapshot = table.snapshot
        files = snapshot.partition_files(0)
        if len(files) > 30:
            threading.Event().wait(self.random.random() * 0.003)
            going = files[:2]
            table.remove(0, self.epoch, going, going[-1].end, maint=snapshot.maint(0))


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("seed", range(3))
def test_two_self_styled_owners_lose_and_double_nothing(
    tmp_path: Path, kind: str, seed: int, long_run: bool
) -> None:
    store: ObjectStore = MemoryObjects() if kind == "memory" else LocalObjects(tmp_path)
    open_table(store)
    epochs = Epochs()
    steps = 400 if long_run else 60
    owners = [Owner(10 * seed + number, store, epochs, steps) for number in range(2)]
    for owner in owners:
        owner.start()
    for owner in owners:
        owner.join()
    for owner in owners:
        assert owner.failure is None, owner.failure
        owner.store.deliver_late()
    check_table(store)
    check_history(store, owners)


def check_table(store: ObjectStore) -> None:
    snapshot = newest(store)
    lost = snapshot.lost_set(0)
    due = [x for x in range(snapshot.start(0), snapshot.off(0)) if x not in lost]
    assert offsets_in(store, snapshot) == due
    assert len(due) > 20
    report = verify_table(TableLog(store, TOPIC, NAME, HandClock()))
    assert report.ok, report.problems


def check_history(store: ObjectStore, owners: list[Owner]) -> None:
    """Read every Delta commit that there ever was."""
    log = TableLog(store, TOPIC, NAME, HandClock())
    commits = [log.read(version) for version in range(newest(store).version + 1)]
    added = [add["path"] for commit in commits for add in commit.adds]
    assert len(added) == len(set(added))
    for name in ("epoch/0", "off/0", "start/0"):
        values = [commit.txns[name] for commit in commits if name in commit.txns]
        assert values == sorted(values), name
    fenced = [epoch for owner in owners for epoch in owner.fenced]
    assert len(fenced) == len(set(fenced)) > 3
    for owner in owners:
        assert set(owner.added) <= set(added)
