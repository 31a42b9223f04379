"""Exactly once, fenced: the conflict table, lost replies, sleeping writers, strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from danube.core.errors import Corruption, ForeignCommit, Unavailable
from danube.core.stores import ObjectStoreUnavailable
from danube.lake.actions import COMMIT_ID
from danube.lake.intents import Retire
from danube.lake.layout import commit_key, table_key
from danube.lake.replay import Loaded
from danube.lake.table import LostRange, PlanVoid, RollPart, StaleEpoch, TopicTable
from danube.objects.faulty import Crashed, Fault, FaultyObjects
from danube.objects.memory import MemoryObjects
from tests.unit.lake.lake_samples import (
    HOUR_S,
    NOW_US,
    TOPIC,
    HandClock,
    batch,
    newest,
    offsets_in,
    open_table,
    part,
)

LOG = table_key(TOPIC) + "/_delta_log/"


def owner(store: object, epoch: int, seed: int, clock: HandClock | None = None) -> TopicTable:
    table = open_table(store, seed=seed, clock=clock)  # type: ignore[arg-type]
    table.fence({0: epoch})
    return table


def faulty(inner: MemoryObjects) -> tuple[FaultyObjects, list[Callable[[str, str], Fault | None]]]:
    """A store that consults the last plan in a list, for Delta commits alone."""
    plans: list[Callable[[str, str], Fault | None]] = [lambda operation, key: None]

    def plan(operation: str, key: str) -> Fault | None:
        return plans[-1](operation, key) if "/_delta_log/" in key else None

    return FaultyObjects(inner, plan), plans


def once(operation: str, fault: Fault, times: int = 1) -> Callable[[str, str], Fault | None]:
    left = [times]

    def plan(called: str, key: str) -> Fault | None:
        if called == operation and key.endswith(".json") and left[0]:
            left[0] -= 1
            return fault
        return None

    return plan


# -- the ordinary way ------------------------------------------------------------------------


def test_rolls_continue_where_the_last_one_ended() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert table.roll([part(100, 130)]).rolled == {0: 130}
    assert offsets_in(store, newest(store)) == list(range(130))


def test_one_delta_commit_carries_all_partitions() -> None:
    store = MemoryObjects()
    table = open_table(store)
    table.fence({0: 1, 1: 1, 2: 1})
    version = table.snapshot.version
    result = table.roll([part(0, 20, partition=p) for p in range(3)])
    assert result.version == version + 1
    assert result.rolled == {0: 20, 1: 20, 2: 20}


def test_a_roll_needs_the_table_to_be_fenced_by_this_broker() -> None:
    store = MemoryObjects()
    owner(store, 1, 0)
    other = open_table(store, seed=1)
    result = other.roll([part(0, 10, epoch=1)])
    assert result.rolled == {}
    assert "not fenced by this broker" in result.dropped[0]
    assert offsets_in(store, newest(store)) == []


def test_a_roll_that_was_done_before_changes_nothing() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    table.roll([part(0, 100)])
    version = table.snapshot.version
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert table.snapshot.version == version


def test_a_roll_that_was_half_done_adds_only_the_rest() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    table.roll([part(0, 55)])
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert offsets_in(store, newest(store)) == list(range(100))


# -- fences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", [4, 5])
def test_a_fence_that_is_not_above_the_tables_epoch_is_stale(mine: int) -> None:
    store = MemoryObjects()
    owner(store, 5, 0)
    with pytest.raises(StaleEpoch) as caught:
        open_table(store, seed=1).fence({0: mine})
    assert (caught.value.partition, caught.value.found) == (0, 5)
    assert newest(store).epoch(0) == 5


def test_a_fenced_owner_rolls_nothing_any_more() -> None:
    store = MemoryObjects()
    old = owner(store, 1, 0)
    old.roll([part(0, 10)])
    new = owner(store, 2, 1)
    result = old.roll([part(10, 20)])
    assert result.rolled == {}
    assert "fenced with epoch 2" in result.dropped[0]
    new.roll([part(10, 20, epoch=2)])
    assert offsets_in(store, newest(store)) == list(range(20))


def test_a_zombie_that_wakes_between_its_check_and_its_commit_is_refused() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    old = owner(store, 1, 0)
    old.roll([part(0, 10)])
    takers: list[TopicTable] = []

    def taken_over(operation: str, key: str) -> Fault | None:
        if operation == "create" and not takers:
            takers.append(owner(inner, 2, 1))
            takers[0].roll([part(10, 30, epoch=2)])
        return None

    plans.append(taken_over)
    result = old.roll([part(10, 20)])
    assert result.rolled == {}
    assert offsets_in(inner, newest(inner)) == list(range(30))


def test_a_partition_that_was_taken_over_is_dropped_and_the_others_are_rolled() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    old = open_table(store)
    old.fence({0: 1, 1: 1})
    done: list[int] = []

    def taken_over(operation: str, key: str) -> Fault | None:
        if operation == "create" and not done:
            done.append(1)
            open_table(inner, seed=1).fence({1: 2})
        return None

    plans.append(taken_over)
    result = old.roll([part(0, 10), part(0, 10, partition=1)])
    assert result.rolled == {0: 10}
    assert "epoch 2" in result.dropped[1]
    assert offsets_in(inner, newest(inner), 1) == []


def test_what_others_do_to_their_partitions_does_not_stop_a_roll() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    mine = owner(store, 1, 0)
    theirs = open_table(inner, seed=1)
    theirs.fence({1: 1})
    count = [0]

    def busy(operation: str, key: str) -> Fault | None:
        if operation == "create" and count[0] < 5:
            at = count[0] * 10
            count[0] += 1
            theirs.roll([part(at, at + 10, partition=1)])
        return None

    plans.append(busy)
    assert mine.roll([part(0, 10)]).rolled == {0: 10}
    assert offsets_in(inner, newest(inner), 1) == list(range(50))


def test_too_many_conflicts_end_with_unavailable() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    mine = owner(store, 1, 0)
    mine.settings = mine.settings.model_copy(update={"conflict_attempts": 3})
    mine._committer._settings = mine.settings
    others = open_table(inner, seed=1)
    epoch = [0]

    def busy(operation: str, key: str) -> Fault | None:
        if operation == "create":
            epoch[0] += 1
            others.fence({9: epoch[0]})
        return None

    plans.append(busy)
    with pytest.raises(Unavailable, match="came before ours"):
        mine.roll([part(0, 10)])


# -- lost replies ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.TIMEOUT, Fault.REFUSED])
def test_a_reply_that_was_lost_neither_loses_nor_doubles_a_roll(fault: Fault) -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", fault))
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert offsets_in(inner, newest(inner)) == list(range(100))


def test_a_fence_whose_reply_was_lost_is_known_to_be_ours() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = open_table(store)
    plans.append(once("create", Fault.LOST_REPLY))
    table.fence({0: 7})
    assert newest(inner).epoch(0) == 7


def test_only_the_random_id_tells_a_lost_reply_from_somebody_elses_commit() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    mine = owner(store, 1, 0)
    done: list[int] = []

    def beaten_while_the_reply_is_lost(operation: str, key: str) -> Fault | None:
        if operation == "create" and not done:
            done.append(1)
            open_table(inner, seed=1).fence({0: 2})
            return Fault.TIMEOUT
        return None

    plans.append(beaten_while_the_reply_is_lost)
    result = mine.roll([part(0, 10)])
    assert result.rolled == {}
    assert offsets_in(inner, newest(inner)) == []


def test_a_commit_that_landed_after_we_gave_up_counts_once() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", Fault.LATE, times=3))
    with pytest.raises(ObjectStoreUnavailable, match="next snapshot"):
        table.roll([part(0, 100)])
    store.deliver_late()
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert offsets_in(inner, newest(inner)) == list(range(100))


def test_a_commit_that_lands_under_the_next_attempt_counts_once() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", Fault.LATE, times=3))
    with pytest.raises(ObjectStoreUnavailable):
        table.roll([part(0, 60)])

    def delivered(operation: str, key: str) -> Fault | None:
        if operation == "create":
            store.deliver_late()
        return None

    plans.append(delivered)
    # The first attempt wins the version; ours sees it, drops out, and says how far it went.
    assert table.roll([part(0, 100)]).rolled == {0: 60}
    assert table.roll([part(60, 100)]).rolled == {0: 100}
    assert offsets_in(inner, newest(inner)) == list(range(100))


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_crash_around_the_commit_is_resolved_by_the_next_owner(fault: Fault) -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", fault))
    with pytest.raises(Crashed):
        table.roll([part(0, 10)])
    successor = owner(inner, 2, 1)
    off = successor.snapshot.off(0)
    assert off == (10 if fault is Fault.CRASH_AFTER else 0)
    successor.roll([part(off, 20, epoch=2)])
    assert offsets_in(inner, newest(inner)) == list(range(20))


# -- lost ranges -----------------------------------------------------------------------------


def test_a_fence_records_lost_ranges_and_moves_off_over_them() -> None:
    store = MemoryObjects()
    table = open_table(store)
    table.fence({0: 1}, {0: [LostRange(0, 40, "unproved")]}, {0: 40})
    assert table.snapshot.lost(0) == (LostRange(0, 40, "unproved"),)
    assert table.snapshot.off(0) == 40
    table.roll([part(40, 50)])
    assert offsets_in(store, newest(store)) == list(range(40, 50))
    assert newest(store).txn["lost/0"] == 1
    assert newest(store).txn["lost/0/0/to"] == 40


def test_a_lost_range_is_recorded_once_however_often_it_is_told() -> None:
    store = MemoryObjects()
    table = open_table(store)
    lost = [LostRange(10, 20, "quarantined")]
    table.fence({0: 1}, {0: lost})
    table.fence({0: 2}, {0: [*lost, LostRange(15, 30, "unproved")]})
    table.roll([part(0, 50, epoch=2, lost=[LostRange(10, 30, "unproved")])])
    assert newest(store).lost(0) == (
        LostRange(10, 20, "quarantined"),
        LostRange(20, 30, "unproved"),
    )
    expected = [*range(10), *range(30, 50)]
    assert offsets_in(store, newest(store)) == expected


def test_files_end_where_a_lost_range_begins() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    table.roll([part(0, 60, lost=[LostRange(25, 40, "quarantined")])])
    files = newest(store).partition_files(0)
    assert [(file.start, file.end, file.rows) for file in files] == [(0, 25, 25), (40, 60, 20)]


def test_a_roll_may_end_with_a_lost_range_and_leaves_later_ones() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    lost = [LostRange(10, 20, "unproved"), LostRange(30, 40, "unproved")]
    table.roll([RollPart(0, 1, 0, 20, [batch(0, 10)], lost)])
    assert newest(store).lost(0) == (LostRange(10, 20, "unproved"),)
    assert newest(store).off(0) == 20


def test_a_gap_without_a_lost_range_is_refused() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    with pytest.raises(Corruption, match=r"\[10, 20\).*silence"):
        table.roll([RollPart(0, 1, 0, 30, [batch(0, 10), batch(20, 30)], [])])
    with pytest.raises(Corruption, match=r"\[0, 50\)"):
        table.fence({0: 2}, {}, {0: 50})
    assert newest(store).off(0) == 0


def test_batches_that_overlap_are_refused() -> None:
    table = owner(MemoryObjects(), 1, 0)
    with pytest.raises(Corruption, match="overlaps"):
        table.roll([RollPart(0, 1, 0, 30, [batch(0, 20), batch(10, 30)], [])])


def test_what_a_predecessor_rolled_before_the_fence_is_not_lost() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    old = owner(inner, 1, 0)
    taker = open_table(store, seed=1)
    done: list[int] = []

    def rolled_meanwhile(operation: str, key: str) -> Fault | None:
        if operation == "create" and not done:
            done.append(1)
            old.roll([part(0, 30)])
        return None

    plans.append(rolled_meanwhile)
    taker.fence({0: 2}, {0: [LostRange(0, 100, "unproved")]}, {0: 100})
    assert newest(inner).lost(0) == (LostRange(30, 100, "unproved"),)
    assert offsets_in(inner, newest(inner)) == list(range(30))


# -- retention -------------------------------------------------------------------------------


def filled(store: MemoryObjects) -> TopicTable:
    table = owner(store, 1, 0)
    for at in range(0, 40, 10):
        table.roll([part(at, at + 10)])
    return table


def test_retention_removes_whole_files_and_moves_the_log_start_in_one_commit() -> None:
    store = MemoryObjects()
    table = filled(store)
    version = table.snapshot.version
    table.remove(0, 1, table.snapshot.partition_files(0)[:2], 20, maint=0)
    found = newest(store)
    assert found.version == version + 1
    assert (found.start(0), found.maint(0), found.off(0)) == (20, 1, 40)
    assert offsets_in(store, found) == list(range(20, 40))
    data = store.get(commit_key(table.log.table, found.version)).decode().splitlines()
    removes = [json.loads(line)["remove"] for line in data if "remove" in json.loads(line)]
    assert [remove["dataChange"] for remove in removes] == [True, True]


def test_two_retentions_planned_on_one_snapshot_do_not_both_count() -> None:
    store = MemoryObjects()
    table = filled(store)
    files = table.snapshot.partition_files(0)[:1]
    table.remove(0, 1, files, 10, maint=0)
    with pytest.raises(PlanVoid, match="plan again"):
        table.remove(0, 1, files, 10, maint=0)


def test_a_retention_is_void_once_maintenance_came_first_even_if_its_files_are_live() -> None:
    store = MemoryObjects()
    table = filled(store)
    files = table.snapshot.partition_files(0)
    stale = Retire("t", 0, 1, table.snapshot.maint(0), files[:2], 20)
    table.remove(0, 1, files[:1], 10, maint=0)
    with pytest.raises(PlanVoid, match="came first"):
        stale.check(table.snapshot)


def test_retention_by_an_owner_that_was_fenced_is_stale() -> None:
    store = MemoryObjects()
    table = filled(store)
    files = table.snapshot.partition_files(0)[:1]
    owner(store, 2, 1)
    with pytest.raises(StaleEpoch):
        table.remove(0, 1, files, 10, maint=0)
    assert newest(store).start(0) == 0


def test_retention_does_not_stop_a_roll_nor_a_roll_retention() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = filled(inner)
    other = open_table(store, seed=1)
    other._fenced[0] = 1  # the same owner, twice, to get both at once
    done: list[int] = []

    def retired_meanwhile(operation: str, key: str) -> Fault | None:
        if operation == "create" and not done:
            done.append(1)
            table.remove(0, 1, table.snapshot.partition_files(0)[:1], 10, maint=0)
        return None

    plans.append(retired_meanwhile)
    assert other.roll([part(40, 50)]).rolled == {0: 50}
    assert offsets_in(inner, newest(inner)) == list(range(10, 50))


def test_a_retention_of_a_file_that_is_no_longer_live_is_void() -> None:
    table = filled(MemoryObjects())
    files = table.snapshot.partition_files(0)
    gone = replace(files[1], path=files[1].path.replace("-1-", "-2-"))
    with pytest.raises(PlanVoid, match="live files below 20"):
        table.remove(0, 1, [files[0], gone], 20, maint=0)


@pytest.mark.parametrize(("count", "new_start"), [(2, 25), (1, 20), (2, 10), (4, 60)])
def test_a_plan_that_does_not_fit_its_new_start_is_void(count: int, new_start: int) -> None:
    table = filled(MemoryObjects())
    files = table.snapshot.partition_files(0)[:count]
    with pytest.raises(PlanVoid):
        table.remove(0, 1, files, new_start, maint=0)


# -- sleeping writers ------------------------------------------------------------------------


def test_a_writer_that_slept_past_log_clean_up_does_not_trust_a_free_version() -> None:
    """Its next version was taken, cleaned up, and is free again: linking it must not count."""
    inner = MemoryObjects()
    clock = HandClock()
    sleeper = owner(inner, 1, 0, clock)
    sleeper.roll([part(0, 10)])
    asleep = sleeper.snapshot.version
    taker = owner(inner, 2, 1, clock)
    taker.roll([part(10, 30, epoch=2)])
    clock.forward(100 * HOUR_S)
    # As log clean-up would: a Delta checkpoint stands for what is deleted. Here the log is long
    # enough for the sleeper's own eyes, so its next version simply vanishes.
    inner.delete([commit_key(sleeper.log.table, asleep + 1)])
    with pytest.raises(Corruption, match="missing"):
        sleeper.roll([part(10, 20)])


def test_a_commit_made_on_a_snapshot_that_grew_old_in_between_is_checked_again() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    clock = HandClock()
    table = owner(store, 1, 0, clock)
    slept: list[int] = []

    def sleep_before_creating(operation: str, key: str) -> Fault | None:
        if operation == "create" and not slept:
            slept.append(1)
            clock.forward(100 * HOUR_S)
        return None

    plans.append(sleep_before_creating)
    loads: list[int] = []
    load = table.log.load

    def counted() -> Loaded:
        loads.append(1)
        return load()

    table.log.load = counted  # type: ignore[method-assign]
    table.fence({0: 2})
    assert loads == [1]
    assert newest(inner).epoch(0) == 2


def test_files_that_waited_too_long_for_their_commit_are_not_committed() -> None:
    inner = MemoryObjects()
    clock = HandClock()
    slept: list[int] = []

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "create" and key.endswith(".parquet") and not slept:
            slept.append(1)
            clock.forward(13 * HOUR_S)
        return None

    table = owner(FaultyObjects(inner, plan), 1, 0, clock)
    with pytest.raises(Unavailable, match="roll again"):
        table.roll([part(0, 10)])
    assert table.roll([part(0, 10)]).rolled == {0: 10}


# -- strangers -------------------------------------------------------------------------------


def stranger(store: MemoryObjects, version: int, *actions: dict[str, object]) -> None:
    info = {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "Other/1.0"}}
    lines = "\n".join(json.dumps(action) for action in (info, *actions))
    store.create(f"{LOG}{version:020}.json", lines.encode())


FOREIGN_ADD = {
    "add": {
        "path": "partition=0/part-1.parquet",
        "partitionValues": {"partition": "0"},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
    }
}


@pytest.mark.parametrize(
    ("action", "held"),
    [
        (FOREIGN_ADD, "added files"),
        ({"remove": {"path": "partition=0/x", "dataChange": False}}, "removed files"),
        ({"metaData": {"id": "x"}}, "metadata"),
        ({"protocol": {"minReaderVersion": 3}}, "protocol"),
        ({"domainMetadata": {"domain": "x"}}, "domainMetadata"),
        ({"txn": {"appId": "off/0", "version": 5}}, "state"),
    ],
)
def test_a_foreign_commit_stops_the_topic_and_names_the_version(
    action: dict[str, object], held: str
) -> None:
    store = MemoryObjects()
    table = filled(store)
    version = table.snapshot.version + 1
    stranger(store, version, action)
    with pytest.raises(ForeignCommit, match=rf"version {version}.*Other/1.0.*{held}.*To go on"):
        table.roll([part(40, 50)])
    with pytest.raises(ForeignCommit):
        newest(store)


def test_a_foreign_commit_that_changes_nothing_of_ours_is_stepped_over() -> None:
    store = MemoryObjects()
    table = filled(store)
    stranger(store, table.snapshot.version + 1, {"txn": {"appId": "etl", "version": 5}})
    assert table.roll([part(40, 50)]).rolled == {0: 50}
    assert newest(store).txn["etl"] == 5


def test_every_commit_of_ours_has_its_own_random_id() -> None:
    store = MemoryObjects()
    filled(store)
    found = [store.get(info.key) for info in store.list(LOG)]
    infos = [json.loads(data.splitlines()[0])["commitInfo"] for data in found]
    assert len({info[COMMIT_ID] for info in infos}) == len(infos) == 6
    assert all(info["timestamp"] == NOW_US // 1000 for info in infos)


def test_transactions_carry_no_time_that_would_let_them_expire() -> None:
    store = MemoryObjects()
    filled(store)
    text = b"".join(store.get(info.key) for info in store.list(LOG))
    assert b"lastUpdated" not in text
    assert b"setTransactionRetentionDuration" not in text
