"""Clean-up plans: what is deleted, and above all what is not."""

from __future__ import annotations

from danube.core.names import TopicId
from danube.core.stores import ObjectInfo
from danube.lake.layout import data_path
from danube.objects.memory import MemoryObjects
from danube.upkeep.cleaning import (
    HOUR_US,
    LogEntry,
    plan_log_cleanup,
    plan_object_removal,
    remove_deleted_table,
)
from tests.unit.lake.lake_samples import NOW_US, HandClock, open_table, part

NOW_HOURS = 1000


def log(commits: range, checkpoints: tuple[int, ...]) -> list[LogEntry]:
    """Version v was written in hour v."""
    found = [LogEntry(f"{v}.json", v, "json", v * HOUR_US) for v in commits]
    return found + [LogEntry(f"{v}.cp", v, "checkpoint.parquet", v * HOUR_US) for v in checkpoints]


def cleaned(entries: list[LogEntry], readable: list[int], cutoff_hours: int) -> list[str]:
    return plan_log_cleanup(
        entries,
        readable,
        commit_cutoff_us=cutoff_hours * HOUR_US,
        checkpoint_cutoff_us=NOW_HOURS * HOUR_US,
    )


def test_old_commits_go_up_to_the_second_newest_checkpoint() -> None:
    entries = log(range(30), (10, 20))
    assert cleaned(entries, [10, 20], 29) == [f"{v}.json" for v in range(10)]


def test_commits_go_by_age_and_never_by_count() -> None:
    entries = log(range(100), (10, 20, 30, 80, 90))
    going = cleaned(entries, [80, 90], 25)
    # Versions from 20 on stand on checkpoint 20, because 25 is still young.
    assert going == [
        *(f"{v}.json" for v in range(10)),
        "10.cp",
        *(f"{v}.json" for v in range(10, 20)),
        "30.cp",
    ]


def test_nothing_goes_while_everything_is_young() -> None:
    assert cleaned(log(range(30), (10, 20)), [10, 20], 0) == []


def test_nothing_goes_with_less_than_two_readable_checkpoints() -> None:
    entries = log(range(100), (10, 90))
    assert cleaned(entries, [90], 99) == []
    assert cleaned(entries, [], 99) == []


def test_a_torn_checkpoint_is_not_counted_on() -> None:
    entries = log(range(100), (10, 50, 90))
    # 90 is torn: 10 and 50 are what is left to stand on.
    assert cleaned(entries, [10, 50], 99) == [*(f"{v}.json" for v in range(10)), "90.cp"]


def data(path: str, age_hours: int) -> ObjectInfo:
    return ObjectInfo(f"t/{path}", 1, (NOW_HOURS - age_hours) * HOUR_US, "")


def removal(objects: list[ObjectInfo], live: set[str], removed: dict[str, int]) -> list[str]:
    return plan_object_removal(
        objects,
        "t",
        live,
        {path: (NOW_HOURS - hours) * HOUR_US // 1000 for path, hours in removed.items()},
        now_us=NOW_HOURS * HOUR_US,
        removal_delay_hours=24,
        orphan_age_hours=48,
    )


PATH = data_path(0, 0, 1, b"x" * 16)


def test_a_removed_files_object_stays_for_its_delay_however_old_it_is() -> None:
    assert removal([data(PATH, 900)], set(), {PATH: 23}) == []
    assert removal([data(PATH, 900)], set(), {PATH: 25}) == [f"t/{PATH}"]


def test_an_orphan_stays_until_no_writer_can_still_commit_it() -> None:
    assert removal([data(PATH, 47)], set(), {}) == []
    assert removal([data(PATH, 49)], set(), {}) == [f"t/{PATH}"]


def test_live_files_and_what_is_not_ours_stay() -> None:
    objects = [data(PATH, 900), data("partition=0/part-0.parquet", 900), data("notes.txt", 900)]
    assert removal(objects, {PATH}, {}) == []


def test_a_deleted_topics_table_goes_after_its_delay() -> None:
    clock = HandClock()
    store = MemoryObjects(clock)
    kept = open_table(store, topic_id=TopicId(b"k" * 16))
    gone = open_table(store, topic_id=TopicId(b"g" * 16))
    gone.fence({0: 1})
    gone.roll([part(0, 10)])

    def remove(now_us: int) -> bool:
        return remove_deleted_table(store, gone.topic_id, NOW_US, now_us=now_us, delay_hours=24)

    assert not remove(NOW_US + 23 * HOUR_US)
    assert gone.exists()
    assert remove(NOW_US + 24 * HOUR_US)
    assert list(store.list(gone.log.table)) == []
    assert kept.exists()
    assert remove(NOW_US + 25 * HOUR_US)
