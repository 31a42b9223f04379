"""Retention takes whole files off the start of a log, by plans that are still true."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from danube.lake.intents import Retire
from danube.lake.layout import commit_key
from danube.lake.table import PlanVoid, StaleEpoch
from danube.objects.faulty import Fault
from danube.objects.memory import MemoryObjects
from tests.unit.lake.lake_samples import (
    faulty,
    filled,
    newest,
    offsets_in,
    open_table,
    owner,
    part,
)


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
