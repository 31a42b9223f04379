"""Fences in the table: an owner with an older epoch changes nothing any more."""

from __future__ import annotations

import pytest

from danube.core.errors import Unavailable
from danube.lake.table import StaleEpoch, TopicTable
from danube.objects.faulty import Fault
from danube.objects.memory import MemoryObjects
from tests.unit.lake.lake_samples import faulty, newest, offsets_in, open_table, owner, part


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
