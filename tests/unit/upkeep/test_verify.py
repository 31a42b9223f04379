"""Verify finds what is wrong with a table, whatever it is, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danube.core.errors import Corruption
from danube.core.stores import ObjectNotFound
from danube.lake.layout import commit_key
from danube.lake.table import LostRange, TopicTable
from danube.lake.writer import StoredBatch, write_file
from danube.objects.local import LocalObjects
from danube.upkeep.verify import MAX_PROBLEMS, VerifyReport, layout_problems, verify_table
from tests.unit.lake.lake_samples import NAME, NOW_US, messages, open_table, part


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects")


@pytest.fixture
def table(store: LocalObjects) -> TopicTable:
    """Partition 0: [0, 100) with a lost range, retired up to 20; partition 1: [0, 50)."""
    table = open_table(store)
    table.fence({0: 1, 1: 1})
    table.roll([part(0, 20), part(0, 50, partition=1)])
    table.roll([part(20, 70, lost=[LostRange(30, 40, "quarantined")])])
    table.roll([part(70, 100)])
    table.remove(0, 1, table.snapshot.partition_files(0)[:1], 20, maint=0)
    return table


def problems(table: TopicTable) -> str:
    report = verify_table(table.log)
    assert report.ok == (not report.problems)
    return "\n".join(report.problems)


def test_a_sound_table_is_proved(table: TopicTable) -> None:
    seen: list[str] = []
    report = verify_table(table.log, progress=lambda file: seen.append(file.path))
    assert report.ok, report.problems
    assert report.version == table.snapshot.version
    first, second = report.partitions[0], report.partitions[1]
    assert (first.start, first.off, first.rows, first.files) == (20, 100, 70, 3)
    assert first.lost == (LostRange(30, 40, "quarantined"),)
    assert (second.start, second.off, second.rows) == (0, 50, 50)
    assert len(seen) == 4


def test_a_rolled_offset_above_the_durable_one_is_reported(table: TopicTable) -> None:
    report = verify_table(table.log, durable={0: 100, 1: 49})
    assert report.problems == ["partition 1: off 50 is above the durable offset 49"]


def test_a_missing_file_is_reported(store: LocalObjects, table: TopicTable) -> None:
    file = table.snapshot.partition_files(1)[0]
    store.delete([file.key])
    assert file.path in problems(table)


def test_a_flipped_byte_anywhere_in_a_file_is_reported(
    store: LocalObjects, table: TopicTable
) -> None:
    file = table.snapshot.partition_files(1)[0]
    data = store.get(file.key)
    for at in range(0, len(data), 97):
        torn = bytearray(data)
        torn[at] ^= 0x10
        store.put(file.key, torn)
        assert file.path in problems(table), at


def replaced(
    store: LocalObjects, table: TopicTable, change: Callable[[StoredBatch], list[StoredBatch]]
) -> str:
    """Put another file in the place of partition 1's, of the same size as the log says."""
    file = table.snapshot.partition_files(1)[0]
    records = messages(0, 50)
    run = change(StoredBatch(0, NOW_US, records))
    data = bytearray()
    write_file(run, NAME, table.settings, data.extend)
    store.put(file.key, data)
    return problems(table)


def test_a_file_with_other_rows_is_reported(store: LocalObjects, table: TopicTable) -> None:
    found = replaced(store, table, lambda whole: [whole.slice(0, 49)])
    assert "it has 49 rows, the Delta log says 50" in found
    assert "ends at 49" in found


def test_a_file_with_other_offsets_is_reported(store: LocalObjects, table: TopicTable) -> None:
    assert "offsets from 0 to 1 are missing" in replaced(
        store, table, lambda whole: [replace(whole, base_offset=1)]
    )


def test_a_file_with_other_times_is_reported(store: LocalObjects, table: TopicTable) -> None:
    assert "append times span" in replaced(
        store, table, lambda whole: [replace(whole, append_time_us=1)]
    )


def test_append_times_that_go_back_are_reported(store: LocalObjects, table: TopicTable) -> None:
    def backwards(whole: StoredBatch) -> list[StoredBatch]:
        late = whole.slice(0, 25)
        return [late, replace(whole.slice(25, 50), append_time_us=NOW_US - 1)]

    assert "append time goes back" in replaced(store, table, backwards)


def rewritten(
    store: LocalObjects, table: TopicTable, version: int, change: Callable[[dict[str, Any]], None]
) -> str:
    """Change one Delta commit, as nobody should."""
    key = commit_key(table.log.table, version)
    lines = [json.loads(line) for line in store.get(key).splitlines()]
    for line in lines:
        change(line)
    store.put(key, "\n".join(json.dumps(line) for line in lines if line).encode())
    return problems(table)


def test_a_file_that_left_without_the_log_start_is_reported(
    store: LocalObjects, table: TopicTable
) -> None:
    def forget_files(line: dict[str, Any]) -> None:
        line.pop("add", None)

    assert "offsets [70, 100) are missing" in rewritten(store, table, 4, forget_files)


def test_an_off_that_does_not_fit_the_files_is_reported(
    store: LocalObjects, table: TopicTable
) -> None:
    def move_off(line: dict[str, Any]) -> None:
        if line.get("txn", {}).get("appId") == "off/0":
            line["txn"]["version"] = 90

    assert "files reach 100, above off 90" in rewritten(store, table, 4, move_off)


def test_a_lost_range_that_is_no_longer_recorded_is_reported(
    store: LocalObjects, table: TopicTable
) -> None:
    def forget_loss(line: dict[str, Any]) -> None:
        if line.get("txn", {}).get("appId", "").startswith("lost/"):
            line.clear()

    assert "offsets [30, 40) are missing" in rewritten(store, table, 3, forget_loss)


def test_offsets_that_appear_twice_are_reported(table: TopicTable) -> None:
    snapshot = table.snapshot
    first = snapshot.partition_files(1)[0]
    twice = replace(first, path="partition=1/again", start=40, end=50, rows=10)
    doubled = replace(snapshot, files={**snapshot.files, 1: (first, twice)})
    assert any("appear twice" in problem for problem in layout_problems(doubled, 1))
    assert layout_problems(snapshot, 1) == []


def test_a_start_above_off_is_reported(table: TopicTable) -> None:
    snapshot = replace(table.snapshot, txn={**table.snapshot.txn, "start/1": 60})
    assert "start 60 is above off 50" in layout_problems(snapshot, 1)


def test_rows_that_do_not_fit_their_range_are_reported(table: TopicTable) -> None:
    snapshot = table.snapshot
    (file,) = snapshot.partition_files(1)
    short = replace(snapshot, files={**snapshot.files, 1: (replace(file, rows=49),)})
    assert any("49 rows for [0, 50)" in problem for problem in layout_problems(short, 1))


def test_problems_are_bounded() -> None:
    report = VerifyReport(1)
    for number in range(MAX_PROBLEMS * 2):
        report.note(str(number))
    assert len(report.problems) == MAX_PROBLEMS + 1
    assert report.problems[-1] == "… and more"


def test_a_table_that_cannot_be_read_at_all_is_an_error(
    store: LocalObjects, table: TopicTable
) -> None:
    store.put(commit_key(table.log.table, 2), b"")
    with pytest.raises(Corruption):
        verify_table(table.log)
    store.delete([info.key for info in store.list("tables/")])
    with pytest.raises(ObjectNotFound):
        verify_table(table.log)
