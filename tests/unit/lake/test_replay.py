"""Reading a table's log: Delta checkpoints, torn objects, missing ones, other topics'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from danube.core.errors import Corruption, ForeignCommit, UnsupportedFormat
from danube.core.names import TopicId
from danube.core.stores import ObjectNotFound
from danube.lake.layout import checkpoint_key, commit_key, last_checkpoint_key
from danube.lake.replay import TableLog
from danube.lake.table import TopicTable
from danube.objects.local import LocalObjects
from tests.unit.lake.lake_samples import NAME, TOPIC, HandClock, newest, open_table, part


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects")


@pytest.fixture
def table(store: LocalObjects) -> TopicTable:
    """Versions 0 to 8, with Delta checkpoints at 3 and 6."""
    table = open_table(store)
    table.fence({0: 1})
    for at in range(0, 70, 10):
        table.roll([part(at, at + 10)])
        if table.snapshot.version in (3, 6):
            table.checkpoint()
    return table


def test_a_checkpoint_and_what_follows_is_the_same_state(
    store: LocalObjects, table: TopicTable
) -> None:
    found = newest(store)
    assert found.version == table.snapshot.version == 8
    assert (found.files, found.txn) == (table.snapshot.files, table.snapshot.txn)


def test_the_hint_saves_reading_the_older_log(store: LocalObjects, table: TopicTable) -> None:
    for version in range(6):
        store.put(commit_key(table.log.table, version), b"not read")
    assert newest(store).files == table.snapshot.files


@pytest.mark.parametrize("left", [0, 1, 100])
def test_a_torn_checkpoint_falls_back_to_the_one_before(
    store: LocalObjects, table: TopicTable, left: int
) -> None:
    key = checkpoint_key(table.log.table, 6)
    store.put(key, store.get(key)[:left])
    for version in range(4):
        store.delete([commit_key(table.log.table, version)])
    loaded = TableLog(store, TOPIC, NAME, HandClock()).load()
    assert (loaded.checkpoint, loaded.torn) == (3, [6])
    assert loaded.snapshot.files == table.snapshot.files


def test_without_any_checkpoint_the_whole_log_is_read(
    store: LocalObjects, table: TopicTable
) -> None:
    store.delete([checkpoint_key(table.log.table, version) for version in (3, 6)])
    assert newest(store).files == table.snapshot.files


@pytest.mark.parametrize("hint", [b"", b"{", b"[]", b'{"version": 99}', b'{"version": "x"}'])
def test_a_torn_hint_is_no_hint(store: LocalObjects, table: TopicTable, hint: bytes) -> None:
    store.put(last_checkpoint_key(table.log.table), hint)
    assert newest(store).files == table.snapshot.files


def test_a_new_checkpoint_replaces_torn_ones_for_other_readers_too(
    store: LocalObjects, table: TopicTable
) -> None:
    from deltalake import DeltaTable

    store.put(checkpoint_key(table.log.table, 6), b"")
    table.checkpoint()
    assert checkpoint_key(table.log.table, 6) not in [o.key for o in store.list("tables/")]
    assert DeltaTable(table.uri).version() == 8


@pytest.mark.parametrize("data", [b"", b"\n", b'{"commitInfo":{}}\n{"add":{"path', b"\x00" * 400])
def test_a_torn_commit_is_an_error_that_names_the_file(
    store: LocalObjects, table: TopicTable, data: bytes
) -> None:
    store.put(commit_key(table.log.table, 8), data)
    with pytest.raises(Corruption, match=r"00000000000000000008\.json.*restore"):
        newest(store)


def test_a_torn_commit_stops_an_open_table_too(store: LocalObjects, table: TopicTable) -> None:
    store.put(commit_key(table.log.table, 9), b"")
    with pytest.raises(Corruption, match=r"00000000000000000009\.json"):
        table.roll([part(70, 80)])


def test_a_missing_commit_is_an_error_that_names_the_version(
    store: LocalObjects, table: TopicTable
) -> None:
    store.delete([commit_key(table.log.table, 7)])
    with pytest.raises(Corruption, match="Delta commit 7 is missing"):
        newest(store)


def test_a_lost_checkpoint_whose_commits_are_gone_is_an_error(
    store: LocalObjects, table: TopicTable
) -> None:
    store.delete([checkpoint_key(table.log.table, version) for version in (3, 6)])
    store.delete([commit_key(table.log.table, 2)])
    with pytest.raises(Corruption, match=r"cannot be read.*backup"):
        newest(store)


def test_there_is_no_table_where_there_is_no_log(store: LocalObjects) -> None:
    with pytest.raises(ObjectNotFound, match="no table"):
        newest(store)


def test_creating_a_table_that_is_there_leaves_it(store: LocalObjects, table: TopicTable) -> None:
    other = open_table(store, seed=5)
    assert other.exists()
    assert other.snapshot.version == 8


def test_the_table_of_another_topic_is_refused(store: LocalObjects, table: TopicTable) -> None:
    other = TopicId(b"x" * 16)
    for info in list(store.list(f"{table.log.table}/")):
        store.put(info.key.replace(str(TOPIC), str(other)), store.get(info.key))
    with pytest.raises(Corruption, match="belongs to topic"):
        newest(store, other)


def rewritten(store: LocalObjects, table: TopicTable, change: str, value: object) -> None:
    key = commit_key(table.log.table, 0)
    lines = [json.loads(line) for line in store.get(key).splitlines()]
    lines[1]["protocol"].update({change: value} if change.startswith("min") else {})
    if change == "danube.formatVersion":
        lines[2]["metaData"]["configuration"][change] = value
    store.put(key, "\n".join(map(json.dumps, lines)).encode())
    store.delete([checkpoint_key(table.log.table, version) for version in (3, 6)])


def test_a_table_of_a_newer_format_is_refused(store: LocalObjects, table: TopicTable) -> None:
    rewritten(store, table, "danube.formatVersion", "2")
    with pytest.raises(UnsupportedFormat, match="newer version"):
        newest(store)


def test_an_upgraded_protocol_is_refused(store: LocalObjects, table: TopicTable) -> None:
    rewritten(store, table, "minWriterVersion", 7)
    with pytest.raises(ForeignCommit, match="protocol"):
        newest(store)


def test_a_writer_sees_what_others_committed_since(store: LocalObjects, table: TopicTable) -> None:
    other = open_table(store, seed=3)
    table.roll([part(70, 80)])
    assert other.snapshot.off(0) == 70
    assert other.refresh().off(0) == 80


def test_names_that_are_not_delta_s_are_no_part_of_the_log(
    store: LocalObjects, table: TopicTable
) -> None:
    lead = f"{table.log.table}/_delta_log/"
    for name in ("00000000000000000009.json.tmp", "x.json", "_commits/1.json", "9.json"):
        store.put(lead + name, b"junk")
    assert newest(store).version == 8
