"""What an executor does, against a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from danube.core.batch import TABLE_SCHEMA
from danube.core.errors import Corruption, DataLost, OwnershipLost, Unavailable
from danube.core.stores import ObjectNotFound
from spark_source.broker import Broker
from spark_source.fetch import LARGE_BATCH_BYTES, Fetcher, resized
from spark_source.schema import target_schema
from spark_source.splits import Piece
from tests.unit.spark.columns import columns
from tests.unit.spark.scripted_broker import ScriptedBroker

TARGET = target_schema(columns("offset", "value"))


class Files:
    """Stands in for danube.lake.reader: offsets by uri, or no such file."""

    def __init__(self, broken: dict[str, int] | None = None) -> None:
        self.present: dict[str, range] = {}
        self.opened: list[str] = []
        self.broken = broken or {}

    def read(self, piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
        uri = piece.uri or ""
        self.opened.append(uri)
        if uri not in self.present:
            raise ObjectNotFound(uri)
        found = [offset for offset in self.present[uri] if piece.start <= offset < piece.end]
        for sent, at in enumerate(range(0, len(found), 7)):
            if sent == self.broken.get(uri):
                raise ObjectNotFound(uri)
            some = found[at : at + 7]
            yield pa.RecordBatch.from_pydict(
                {"value": [b"from a file"] * len(some), "offset": some}, schema=FILE_SCHEMA
            )


FILE_SCHEMA = pa.schema([TABLE_SCHEMA.field("value"), TABLE_SCHEMA.field("offset")])


def fetcher(
    broker: ScriptedBroker, files: Files | None = None, *, fail_on_data_loss: bool = True
) -> Fetcher:
    found = Fetcher(Broker(broker.url, 3.0), TARGET, fail_on_data_loss)
    found.open_file = (files or Files()).read
    return found


def tail(broker: ScriptedBroker, start: int, end: int) -> Piece:
    topic_id = broker.topics["/ns/t"].topic_id.hex()
    return Piece("/ns/t", topic_id, 0, start, end, broker_url=broker.url)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    found: list[Any] = []
    for batch in batches:
        found += batch.column("offset").to_pylist()
    return found


@pytest.fixture
def filled(broker: ScriptedBroker) -> ScriptedBroker:
    broker.create("/ns/t")
    for number in range(10):
        broker.append("/ns/t", 0, [f"{number}-{at}" for at in range(10)])
    return broker


def test_a_range_may_begin_and_end_inside_frames(filled: ScriptedBroker) -> None:
    assert offsets(fetcher(filled).read((tail(filled, 13, 47),))) == list(range(13, 47))


def test_small_frames_are_joined(filled: ScriptedBroker) -> None:
    assert len(list(fetcher(filled).read((tail(filled, 0, 100),)))) == 1


def test_a_stream_that_breaks_goes_on_where_it_was(filled: ScriptedBroker) -> None:
    filled.read_frames_limit = 4
    assert offsets(fetcher(filled).read((tail(filled, 0, 100),))) == list(range(100))
    assert [request.start for request in filled.requests("Read")] == [0, 40]


def test_an_owner_that_lost_the_partition_is_looked_up_again(filled: ScriptedBroker) -> None:
    filled.fail("Read", OwnershipLost("moved"), Unavailable("moving"))
    assert offsets(fetcher(filled).read((tail(filled, 0, 100),))) == list(range(100))
    assert filled.count("Lookup") == 2


def test_a_gap_that_is_not_recorded_as_lost_is_corruption(filled: ScriptedBroker) -> None:
    del filled.topics["/ns/t"].partitions[0].frames[3]
    with pytest.raises(Corruption, match=r"left out offsets \[30, 40\)"):
        offsets(fetcher(filled).read((tail(filled, 0, 100),)))


def test_a_range_that_ends_early_is_corruption(filled: ScriptedBroker) -> None:
    del filled.topics["/ns/t"].partitions[0].frames[9]
    with pytest.raises(Corruption, match=r"left out offsets \[90, 100\)"):
        offsets(fetcher(filled).read((tail(filled, 0, 100),)))


def test_lost_ranges_are_skipped_by_the_broker_only_if_that_is_allowed(
    filled: ScriptedBroker,
) -> None:
    del filled.topics["/ns/t"].partitions[0].frames[3]
    piece = replace(tail(filled, 0, 100), lost=((30, 40),))
    found = offsets(fetcher(filled, fail_on_data_loss=False).read((piece,)))
    assert found == [*range(30), *range(40, 100)]
    assert filled.requests("Read")[0].skip_lost


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def files() -> Files:
    return Files()


def in_file(broker: ScriptedBroker, uri: str, start: int, end: int) -> Piece:
    return replace(tail(broker, start, end), uri=uri, broker_url="", file_bytes=1000)


def test_history_is_read_from_files_without_a_call_to_a_broker(
    filled: ScriptedBroker, files: Files
) -> None:
    files.present["file:///a"] = range(100)
    assert offsets(fetcher(filled, files).read((in_file(filled, "file:///a", 5, 95),))) == [
        *range(5, 95)
    ]
    assert filled.calls == []


def test_a_file_that_is_gone_is_planned_again_once(filled: ScriptedBroker, files: Files) -> None:
    files.present["file:///compacted"] = range(100)
    filled.topics["/ns/t"].partitions[0].files = [(0, 100, "file:///compacted")]
    fetch = fetcher(filled, files)
    assert offsets(fetch.read((in_file(filled, "file:///a", 0, 50),))) == list(range(50))
    assert filled.count("Plan") == 1
    assert filled.count("Read") == 0
    assert fetch.frame_fallbacks == 0


def test_a_file_that_goes_while_it_is_read_loses_and_repeats_nothing(
    filled: ScriptedBroker, files: Files
) -> None:
    files.present = {"file:///a": range(100), "file:///b": range(100)}
    files.broken = {"file:///a": 3}
    filled.topics["/ns/t"].partitions[0].files = [(0, 100, "file:///b")]
    found = offsets(fetcher(filled, files).read((in_file(filled, "file:///a", 0, 100),)))
    assert found == list(range(100))
    assert filled.requests("Plan")[0].ranges[0].start == 21


def test_a_file_on_another_host_comes_as_frames_and_is_counted(
    filled: ScriptedBroker, files: Files
) -> None:
    filled.topics["/ns/t"].partitions[0].files = [(0, 100, "file:///elsewhere")]
    fetch = fetcher(filled, files)
    found = offsets(fetch.read((in_file(filled, "file:///elsewhere", 0, 100),)))
    assert found == list(range(100))
    assert fetch.frame_fallbacks == 1
    assert files.opened == ["file:///elsewhere"]


def test_a_file_whose_range_retention_removed_obeys_fail_on_data_loss(
    filled: ScriptedBroker, files: Files
) -> None:
    filled.topics["/ns/t"].partitions[0].log_start = 20
    piece = in_file(filled, "file:///a", 0, 40)
    with pytest.raises(DataLost, match=r"\[0, 20\).*retention"):
        offsets(fetcher(filled, files).read((piece,)))
    careless = fetcher(filled, files, fail_on_data_loss=False)
    assert offsets(careless.read((piece,))) == list(range(20, 40))


def test_a_file_with_too_few_messages_is_corruption(filled: ScriptedBroker, files: Files) -> None:
    files.present["file:///a"] = range(90)
    with pytest.raises(Corruption, match="has 90 messages"):
        offsets(fetcher(filled, files).read((in_file(filled, "file:///a", 0, 100),)))


# --- sizes --------------------------------------------------------------------------------------


def test_batches_cross_to_the_jvm_in_one_to_two_mebibytes() -> None:
    sizes = [10, 300_000, 500_000, 400_000, 9_000_000, 10, 10]
    given = [pa.record_batch({"value": [b"x" * size]}) for size in sizes]
    big = pa.record_batch({"value": [b"y" * 1000] * 9000})
    out = list(resized(iter([*given, big])))
    assert sum(batch.num_rows for batch in out) == len(sizes) + 9000
    assert all(batch.nbytes <= LARGE_BATCH_BYTES or batch.num_rows == 1 for batch in out)
    assert len(out) < 16


def test_nothing_comes_out_of_nothing(tmp_path: Path) -> None:
    assert list(resized(iter([]))) == []
