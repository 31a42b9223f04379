"""Upkeep of a real table in a directory, with a clock that a test moves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from danube.core.clock import SystemClock
from danube.core.errors import Corruption
from danube.core.stores import ObjectInfo
from danube.lake.layout import checkpoint_key, commit_key
from danube.lake.settings import LakeSettings
from danube.lake.table import TopicTable
from danube.objects.local import LocalObjects
from danube.upkeep.cleaning import clean_log
from danube.upkeep.retention import RetentionPolicy
from danube.upkeep.runner import TableUpkeep, Upkeep, UpkeepReport
from danube.upkeep.settings import UpkeepSettings
from danube.upkeep.verify import verify_table
from tests.unit.lake.lake_samples import (
    HOUR_S,
    HandClock,
    newest,
    offsets_in,
    open_table,
    part,
)

SETTINGS = LakeSettings(checkpoint_interval_count=5)


class DatedObjects(LocalObjects):
    """A directory whose objects are dated by a test's clock."""

    def __init__(self, root: Path, clock: HandClock) -> None:
        super().__init__(root)
        self.clock = clock

    def create(self, key: str, data: bytes | bytearray | memoryview) -> ObjectInfo:
        super().create(key, data)
        self.date(key)
        return self.head(key)

    def date(self, key: str) -> None:
        os.utime(self.path(key), ns=(self.clock.us * 1000, self.clock.us * 1000))


class Scene:
    """A topic with rolls, and its upkeep."""

    def __init__(self, root: Path) -> None:
        # Beginning now: deltalake drops removals from its checkpoints by the machine's clock.
        self.clock = HandClock(SystemClock().now_us())
        self.store = DatedObjects(root, self.clock)
        self.table = open_table(self.store, clock=self.clock, settings=SETTINGS)
        self.table.fence({0: 1})
        self.upkeep = Upkeep(UpkeepSettings(), self.clock)
        self.policy = RetentionPolicy()
        self.acknowledged: int | None = None

    def roll(self, count: int = 1) -> None:
        for _ in range(count):
            off = self.table.snapshot.off(0)
            self.table.roll([part(off, off + 10)])

    def run(self) -> UpkeepReport:
        report = self.upkeep.run(
            TableUpkeep(
                self.table, self.policy, lambda: {0: 1}, lambda _: self.acknowledged, lambda _: None
            )
        )
        for info in self.store.list(f"{self.table.log.table}/_delta_log/"):
            if "checkpoint" in info.key and info.modified_us > self.clock.us:
                self.store.date(info.key)
        return report

    def versions(self, kind: str) -> list[int]:
        lead = f"{self.table.log.table}/_delta_log/"
        keys = [i.key for i in self.store.list(lead) if i.key.endswith(kind)]
        return [int(key.removeprefix(lead)[:20]) for key in keys]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "objects")


def test_checkpoints_are_written_every_so_many_commits(scene: Scene) -> None:
    scene.roll(3)
    assert scene.run().checkpoint is None
    scene.roll()
    assert scene.run().checkpoint == 5
    scene.roll(4)
    assert scene.run().checkpoint is None
    scene.roll()
    assert scene.run().checkpoint == 10
    assert newest(scene.store).files == scene.table.snapshot.files


def test_a_checkpoint_and_clean_up_never_run_together(scene: Scene) -> None:
    for _ in range(4):
        scene.roll(5)
        scene.clock.forward(100 * HOUR_S)
        report = scene.run()
        assert report.checkpoint is not None
        assert (report.log_entries, report.objects) == (0, 0)
        scene.run()


def test_clean_up_keeps_a_week_and_the_commits_since_the_checkpoint_before(scene: Scene) -> None:
    for _ in range(3):
        scene.roll(5)
        scene.run()
    scene.clock.forward(100 * HOUR_S)
    scene.roll(1)
    assert scene.run().log_entries == 1  # checkpoint 6, superseded; no commit is old enough
    assert scene.versions(".json") == list(range(18))
    scene.clock.forward(100 * HOUR_S)
    assert scene.run().log_entries == 11
    assert scene.versions(".json") == list(range(11, 18))
    assert scene.versions(".checkpoint.parquet") == [11, 16]
    assert offsets_in(scene.store, newest(scene.store)) == list(range(160))


def test_a_torn_checkpoint_after_clean_up_costs_nothing(scene: Scene) -> None:
    for _ in range(3):
        scene.roll(5)
        scene.run()
    scene.clock.forward(200 * HOUR_S)
    scene.roll(2)
    assert scene.run().log_entries == 12
    scene.store.put(checkpoint_key(scene.table.log.table, 16), b"")
    assert offsets_in(scene.store, newest(scene.store)) == list(range(170))


def test_a_writer_that_slept_through_clean_up_is_told_what_the_table_is_now(scene: Scene) -> None:
    """Its next version was taken, cleaned up and is free again; linking it must not count."""
    sleeper = open_table(scene.store, seed=7, clock=scene.clock, settings=SETTINGS)
    sleeper.fence({1: 1})
    asleep = sleeper.snapshot.version
    scene.table.refresh()
    scene.table.fence({1: 2})
    scene.table.roll([part(0, 30, partition=1, epoch=2)])
    for _ in range(3):
        scene.roll(5)
        scene.run()
    scene.clock.forward(200 * HOUR_S)
    assert scene.run().log_entries > 0
    assert asleep + 1 not in scene.versions(".json")
    result = sleeper.roll([part(0, 10, partition=1)])
    assert "fenced with epoch 2" in result.dropped[1]
    assert asleep + 1 not in scene.versions(".json")
    assert offsets_in(scene.store, newest(scene.store), 1) == list(range(30))


def test_a_version_linked_in_the_cleaned_part_of_the_log_does_not_count(scene: Scene) -> None:
    """The same writer falls asleep after its last look, with the link already on its way."""
    sleeper = open_table(scene.store, seed=7, clock=scene.clock, settings=SETTINGS)
    sleeper.fence({1: 1})
    asleep = sleeper.snapshot.version
    create = scene.store.create
    slept: list[int] = []

    def sleepy(key: str, data: bytes | bytearray | memoryview) -> ObjectInfo:
        if key == commit_key(sleeper.log.table, asleep + 1) and not slept:
            slept.append(1)
            scene.table.refresh()
            scene.table.fence({1: 2})
            scene.table.roll([part(0, 30, partition=1, epoch=2)])
            for _ in range(3):
                scene.roll(5)
                scene.run()
            scene.clock.forward(200 * HOUR_S)
            assert scene.run().log_entries > 0
        return create(key, data)

    # The file waits in memory as long as the link does, so only the snapshot's age can tell.
    sleeper.settings = SETTINGS.model_copy(update={"uncommitted_hours": 10_000})
    scene.store.create = sleepy  # type: ignore[method-assign]
    result = sleeper.roll([part(0, 10, partition=1)])
    assert slept == [1]
    assert result.rolled == {}
    assert "fenced with epoch 2" in result.dropped[1]
    assert offsets_in(scene.store, newest(scene.store), 1) == list(range(30))


def test_retention_moves_the_start_and_its_objects_go_a_day_later(scene: Scene) -> None:
    scene.roll(3)
    scene.policy = RetentionPolicy(until_acked=True)
    assert scene.run().starts == {}
    scene.acknowledged = 25
    gone = scene.table.snapshot.partition_files(0)[0].key
    report = scene.run()
    assert (report.starts, report.retired) == ({0: 20}, 20)
    scene.clock.forward(23 * HOUR_S)
    assert scene.run().objects == 0
    assert scene.store.head(gone).size_bytes > 0
    scene.clock.forward(2 * HOUR_S)
    assert scene.run().objects == 2
    assert offsets_in(scene.store, newest(scene.store)) == [*range(20, 30)]
    assert verify_table(scene.table.log).ok


def test_orphans_go_when_nobody_can_commit_them_any_more(scene: Scene) -> None:
    scene.roll()
    live = scene.table.snapshot.partition_files(0)[0]
    orphan = live.key.replace("-1-", "-9-")
    scene.store.create(orphan, b"left by a crash between file and Delta commit")
    scene.clock.forward(47 * HOUR_S)
    assert scene.run().objects == 0
    scene.clock.forward(2 * HOUR_S)
    assert scene.run().objects == 1
    assert [i.key for i in scene.store.list(live.key[:-60])] == [live.key]


def test_a_checkpoint_that_came_out_wrong_is_removed_again(scene: Scene) -> None:
    scene.roll(3)
    scene.run()

    def torn(table_uri: str) -> int:
        from danube.lake.checkpoints import deltalake_writer

        version = deltalake_writer(table_uri)
        key = checkpoint_key(scene.table.log.table, version)
        scene.store.put(key, scene.store.get(key)[:-100])
        return version

    table = TopicTable(
        scene.store,
        scene.table.topic_id,
        scene.table.topic_name,
        settings=SETTINGS,
        clock=scene.clock,
        ids=scene.table._ids,
        checkpoint_writer=torn,
    )
    with pytest.raises(Corruption, match="was removed; nothing is lost"):
        table.checkpoint()
    assert scene.versions(".checkpoint.parquet") == []
    assert newest(scene.store).off(0) == 30


def test_a_checkpoint_and_its_hint_are_synced_before_anyone_relies_on_them(scene: Scene) -> None:
    scene.roll(3)
    synced: list[str] = []
    sync = scene.store.sync

    def syncing(keys: Sequence[str]) -> None:
        synced.extend(key.rpartition("/")[2] for key in keys)
        sync(keys)

    scene.store.sync = syncing  # type: ignore[method-assign]
    scene.table.checkpoint()
    assert synced == ["00000000000000000004.checkpoint.parquet", "_last_checkpoint"]


def test_log_clean_up_syncs_what_remains_before_it_deletes(scene: Scene) -> None:
    for _ in range(3):
        scene.roll(5)
        scene.run()
    scene.clock.forward(200 * HOUR_S)
    steps: list[str] = []
    sync, delete = scene.store.sync, scene.store.delete

    def syncing(keys: Sequence[str]) -> None:
        steps.append("sync")
        sync(keys)

    def deleting(keys: Sequence[str]) -> None:
        steps.append("delete")
        delete(keys)

    scene.store.sync = syncing  # type: ignore[method-assign]
    scene.store.delete = deleting  # type: ignore[method-assign]
    assert clean_log(scene.table, scene.clock.us) > 0
    assert steps == ["sync", "delete"]
