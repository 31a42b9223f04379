"""Lost ranges are recorded once, in the table; a gap without one is refused."""

from __future__ import annotations

import pytest

from danube.core.errors import Corruption
from danube.lake.table import LostRange, RollPart
from danube.objects.faulty import Fault
from danube.objects.memory import MemoryObjects
from tests.unit.lake.lake_samples import batch, faulty, newest, offsets_in, open_table, owner, part


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
