"""Parquet files: what is written is read back, cut to the range, with the statistics it says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from danube.core.batch import TABLE_SCHEMA, message_records
from danube.core.checksum import crc32c
from danube.core.errors import Corruption, InvalidRequest, Unsupported
from danube.core.stores import ObjectNotFound
from danube.lake import reader
from danube.lake.reader import read_file
from danube.lake.settings import LakeSettings
from danube.lake.snapshot import FileInfo, LostRange
from danube.lake.table import StoredBatch, TopicTable
from danube.lake.writer import runs, write_file
from danube.objects.local import LocalObjects
from danube.objects.memory import MemoryObjects
from tests.unit.lake.lake_samples import NAME, NOW_US, HandClock, batch, messages, open_table, part

SMALL = LakeSettings(row_group_rows=100)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects")


def rolled(store: Any, start: int = 0, end: int = 1000) -> tuple[TopicTable, FileInfo]:
    """One file of [start, end) in row groups of 100."""
    table = open_table(store, clock=HandClock(), settings=SMALL)
    table.fence({3: 1})
    if start:
        table.fence({3: 2}, {3: [LostRange(0, start, "unproved")]}, {3: start})
    epoch = table.snapshot.epoch(3)
    table.roll([part(start, end, partition=3, epoch=epoch)])
    (file,) = table.snapshot.partition_files(3)
    return table, file


def read(source: Any, file: Any, start: int, end: int, *columns: str, **more: Any) -> pa.Table:
    batches = list(read_file(source, file, start, end, columns or None, **more))
    return pa.Table.from_batches(batches) if batches else TABLE_SCHEMA.empty_table()


def test_every_column_comes_back_as_it_was(store: LocalObjects) -> None:
    _, file = rolled(store, 0, 50)
    found = read(store, file, 0, 50)
    sent = messages(0, 50)
    assert found.schema.equals(TABLE_SCHEMA)
    for name in sent.schema.names:
        assert found.column(name).to_pylist() == sent.column(name).to_pylist()
    assert found.column("offset").to_pylist() == list(range(50))
    assert set(found.column("partition").to_pylist()) == {3}
    assert set(found.column("topic").to_pylist()) == {NAME}
    times = found.column("append_time").cast(pa.int64()).to_pylist()
    assert times == [NOW_US + 1000 * (offset // 10 * 10) for offset in range(50)]


def test_what_the_log_says_of_a_file_is_true(store: LocalObjects) -> None:
    _, file = rolled(store)
    assert (file.start, file.end, file.rows) == (0, 1000, 1000)
    assert file.size_bytes == store.head(file.key).size_bytes
    assert (file.min_timestamp_us, file.max_timestamp_us) == (NOW_US, NOW_US + 999)
    assert (file.min_append_time_us, file.max_append_time_us) == (NOW_US, NOW_US + 990_000)


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1000), (0, 1), (99, 101), (100, 200), (150, 850), (999, 1000), (500, 500), (0, 2**40)],
)
def test_exactly_the_range_is_read(store: LocalObjects, start: int, end: int) -> None:
    _, file = rolled(store)
    expected = list(range(start, min(end, 1000)))
    assert read(store, file, start, end).column("offset").to_pylist() == expected
    values = read(store, file, start, end, "value")
    assert values.num_rows == len(expected)


def test_a_file_that_starts_anywhere_is_cut_by_its_own_offsets(store: LocalObjects) -> None:
    _, file = rolled(store, 5000, 5300)
    assert read(store, file, 5150, 5152).column("offset").to_pylist() == [5150, 5151]
    assert read(store, file, 0, 5000).num_rows == 0
    assert read(store, file, 5300, 9000).num_rows == 0


def test_only_the_row_groups_of_the_range_are_read(store: LocalObjects) -> None:
    _, file = rolled(store)
    footer = pq.read_metadata(store.path(file.key))
    assert footer.num_row_groups == 10
    assert reader.row_groups_between(footer, 150, 301) == [1, 2, 3]
    assert reader.row_groups_between(footer, 100, 200) == [1]


def test_columns_come_in_the_schemas_order_and_unknown_ones_are_refused(
    store: LocalObjects,
) -> None:
    _, file = rolled(store, 0, 10)
    assert read(store, file, 0, 10, "partition", "value", "key").schema.names == [
        "key",
        "value",
        "partition",
    ]
    with pytest.raises(InvalidRequest, match="no column 'payload'"):
        read(store, file, 0, 10, "payload")


def test_an_executor_reads_by_uri_alone(store: LocalObjects) -> None:
    _, file = rolled(store)
    uri = f"{store.uri}/{file.key}"
    assert read(uri, None, 10, 20).column("partition").to_pylist() == [3] * 10
    with pytest.raises(Unsupported, match="s3://"):
        read("s3://bucket/partition=0/x.parquet", None, 0, 1)


def test_a_file_in_any_object_store_is_read_by_ranges() -> None:
    store = MemoryObjects()
    _, file = rolled(store)
    assert read(store, file, 150, 250).column("offset").to_pylist() == list(range(150, 250))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_file_that_is_gone_is_named(tmp_path: Path, kind: str) -> None:
    store = LocalObjects(tmp_path) if kind == "local" else MemoryObjects()
    _, file = rolled(store)
    read(store, file, 0, 10)
    store.delete([file.key])
    with pytest.raises(ObjectNotFound, match=rf"{file.path}.*Plan the range again"):
        read(store, file, 0, 10)


def test_a_file_on_another_host_is_out_of_reach_and_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the broker has a directory")
    _, file = rolled(MemoryObjects())
    with pytest.raises(ObjectNotFound, match="another host"):
        read((tmp_path / "lake" / file.key).as_uri(), None, 0, 10)


@pytest.mark.parametrize("kept", [0, 3, 5000])
def test_a_torn_file_is_named(store: LocalObjects, kept: int) -> None:
    _, file = rolled(store)
    store.put(file.key, store.get(file.key)[:kept])
    with pytest.raises(Corruption, match=file.path):
        read(store, file, 0, 1000)


def test_a_flipped_bit_is_found_when_pages_are_verified(store: LocalObjects) -> None:
    _, file = rolled(store)
    footer = pq.read_metadata(store.path(file.key))
    column = footer.row_group(4).column(1)
    data = bytearray(store.get(file.key))
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    store.put(file.key, data)
    with pytest.raises(Corruption, match=file.path):
        read(store, file, 0, 1000, verify=True)


def test_footers_are_kept_and_bounded() -> None:
    cache = reader._Footers(2)
    footer: Any = object()
    for name in "abc":
        cache.put(name, footer)
    assert [cache.get(name) for name in "abc"] == [None, footer, footer]


def test_files_are_cut_at_gaps_and_at_their_size() -> None:
    def spans(batches: list[StoredBatch], file_bytes: int) -> list[tuple[int, int]]:
        found = list(runs(batches, file_bytes))
        return [(run[0].base_offset, run[-1].end_offset) for run in found]

    batches = [batch(0, 10), batch(10, 20), batch(30, 40)]
    size = batches[0].records.nbytes
    assert spans(batches, 10**9) == [(0, 20), (30, 40)]
    assert spans(batches, size + size // 2) == [(0, 10), (10, 20), (30, 40)]
    # One batch that is larger than a file is split by rows, and none is lost.
    pieces = spans([batch(0, 100)], batch(0, 30).records.nbytes)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == 100
    assert all(one[1] == next_[0] for one, next_ in itertools.pairwise(pieces))


def encoded(run: list[StoredBatch], settings: LakeSettings | None = None) -> bytes:
    data = bytearray()
    write_file(run, NAME, settings or LakeSettings(), data.extend)
    return bytes(data)


def test_row_groups_are_bounded_by_bytes_when_messages_are_large() -> None:
    settings = LakeSettings(row_group_bytes=64 * 1024)
    records = message_records([b"x" * 16_384] * 40, now_us=NOW_US, producer="p")
    data = encoded([StoredBatch(0, NOW_US, records)], settings)
    footer = pq.read_metadata(pa.BufferReader(data))
    assert footer.num_row_groups >= 10


def test_keys_get_a_dictionary_only_where_they_repeat() -> None:
    def encodings(keys: list[str]) -> set[str]:
        records = message_records([b"v"] * len(keys), keys=keys, now_us=NOW_US, producer="p")
        data = encoded([StoredBatch(0, NOW_US, records)])
        return set(pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0).encodings)

    assert "RLE_DICTIONARY" in encodings([f"k{n % 10}" for n in range(1000)])
    assert "RLE_DICTIONARY" not in encodings([f"k{n}" for n in range(1000)])


def test_statistics_encodings_checksums_and_index_are_as_measured() -> None:
    data = encoded([batch(0, 500)])
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    columns: dict[str, Any] = {
        group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)
    }
    for name in ("offset", "timestamp", "append_time"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
        assert columns[name].statistics.has_min_max
        assert columns[name].has_column_index
    assert not columns["value"].is_stats_set
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_many_tiny_batches_and_times_before_1970_are_kept() -> None:
    records = [
        message_records([b"v"], timestamps_us=[-(10**15) + n], now_us=NOW_US, producer="p")
        for n in range(2000)
    ]
    run = [StoredBatch(n, NOW_US + n, one) for n, one in enumerate(records)]
    data = bytearray()
    written = write_file(run, NAME, LakeSettings(), data.extend)
    assert (written.size_bytes, written.crc32c) == (len(data), crc32c(data))
    found = pq.read_table(pa.BufferReader(bytes(data)))
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [
        -(10**15) + n for n in range(2000)
    ]
    assert written.min_timestamp_us == -(10**15)
