"""Messages from Python lists and from anybody's Arrow data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from danube.core.batch import (
    MESSAGE_SCHEMA,
    TABLE_SCHEMA,
    MessageBatch,
    message_bytes,
    message_records,
    normalise_records,
)
from danube.core.errors import InvalidRequest

NOW = 1_700_000_000_000_000


def records(*values: bytes | str, **more: Any) -> pa.RecordBatch:
    return message_records(list(values), now_us=NOW, producer="p", **more)


def normalised(columns: dict[str, Any]) -> pa.RecordBatch:
    return normalise_records(pa.record_batch(columns), producer="p", now_us=NOW)


def test_the_schemas_are_those_of_the_design() -> None:
    assert MESSAGE_SCHEMA.names == [
        "key", "value", "timestamp", "producer", "attributes", "schema_id", "schema_version",
    ]  # fmt: skip
    assert TABLE_SCHEMA.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "append_time", "producer",
        "attributes", "schema_id", "schema_version",
    ]  # fmt: skip
    assert all(field.nullable for field in TABLE_SCHEMA)
    for field in MESSAGE_SCHEMA:
        assert TABLE_SCHEMA.field(field.name).type == field.type


def test_text_and_bytes_become_the_same_bytes() -> None:
    made = records("grüß", "grüß".encode(), keys=["a", None])
    assert made.column("value").to_pylist() == ["grüß".encode()] * 2
    assert made.column("key").to_pylist() == [b"a", None]


def test_absent_columns_are_filled() -> None:
    row = records(b"v").to_pylist()[0]
    assert row == {
        "key": None,
        "value": b"v",
        "timestamp": datetime.fromtimestamp(NOW / 1e6, UTC),
        "producer": "p",
        "attributes": None,
        "schema_id": None,
        "schema_version": None,
    }


def test_one_mapping_is_for_all_and_a_list_is_one_each() -> None:
    same = records(b"1", b"2", attributes={"a": "b"})
    assert same.column("attributes").to_pylist() == [[("a", "b")]] * 2
    each = records(b"1", b"2", attributes=[{"a": "b"}, None])
    assert each.column("attributes").to_pylist() == [[("a", "b")], None]


def test_a_missing_time_is_now_and_integers_are_microseconds() -> None:
    made = records(b"1", b"2", timestamps_us=[5, None])
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [5, NOW]
    arrow = records(b"1", b"2", timestamps_us=pa.array([5, 6], pa.int64()))
    assert arrow.column("timestamp").cast(pa.int64()).to_pylist() == [5, 6]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"keys": ["a"]}, "1 key entries for 2 values"),
        ({"keys": [1, 2]}, "a key is not bytes or text"),
        ({"timestamps_us": [1, "x"]}, "a timestamp is not"),
        ({"attributes": [{"a": 1}, None]}, "a attributes is not|attributes is not"),
    ],
)
def test_columns_that_do_not_fit_are_named(more: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        records(b"1", b"2", **more)


def test_a_null_value_is_named_by_its_place() -> None:
    with pytest.raises(InvalidRequest, match="message 1 has no value"):
        message_records([b"1", None], now_us=NOW, producer="p")  # type: ignore[list-item]


@pytest.mark.parametrize(
    "type_",
    [
        pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(),
        pa.string_view(), pa.binary(2), pa.dictionary(pa.int32(), pa.string()),
    ],
)  # fmt: skip
def test_any_binary_or_text_type_becomes_binary(type_: pa.DataType) -> None:
    made = normalised({"value": pa.array([b"ab", b"cd"], pa.binary()).cast(pa.string()).cast(type_)
                       if not pa.types.is_fixed_size_binary(type_)
                       else pa.array([b"ab", b"cd"], type_)})  # fmt: skip
    assert made.schema.equals(MESSAGE_SCHEMA)
    assert made.column("value").to_pylist() == [b"ab", b"cd"]


def test_times_of_any_unit_and_zone_become_utc_microseconds() -> None:
    values = pa.array([b"v"])
    for type_ in (pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Etc/UTC")):
        times = pa.array([datetime(2024, 5, 1, tzinfo=UTC)]).cast(pa.timestamp("us", "UTC"))
        given = times.cast(pa.int64()).cast(pa.timestamp("us")).cast(type_)
        made = normalised({"value": values, "timestamp": given})
        assert made.column("timestamp").equals(times)


def test_a_batch_that_fits_is_taken_as_it_is() -> None:
    given = records(b"1", b"2", keys=["a", "b"])
    taken = normalise_records(given, producer="other", now_us=1)
    assert taken.equals(given)
    before, after = given.column("value").buffers()[2], taken.column("value").buffers()[2]
    assert before is not None
    assert after is not None
    assert before.address == after.address


def test_null_producers_and_times_are_filled_in_arrow_too() -> None:
    made = normalised(
        {
            "value": pa.array([b"1", b"2"]),
            "producer": pa.array(["me", None]),
            "timestamp": pa.array([1, None], pa.timestamp("us", "UTC")),
        }
    )
    assert made.column("producer").to_pylist() == ["me", "p"]
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [1, NOW]


def test_a_table_of_many_chunks_becomes_one_batch() -> None:
    table = pa.table({"value": pa.chunked_array([[b"1"], [b"2", b"3"]])})
    made = normalise_records(table, producer="p", now_us=NOW)
    assert made.column("value").to_pylist() == [b"1", b"2", b"3"]
    empty = normalise_records(table.slice(0, 0), producer="p", now_us=NOW)
    assert empty.num_rows == 0


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"key": pa.array([b"a"])}, "give 'value'"),
        ({"value": pa.array([b"a"]), "colour": pa.array(["red"])}, "colour"),
        ({"value": pa.array([1])}, "'value' has type int64"),
        ({"value": pa.array([b"a"]), "timestamp": pa.array([1.5])}, "'timestamp' has type double"),
        ({"value": pa.array([b"a"]), "producer": pa.array([b"p"])}, "'producer' has type binary"),
        ({"value": pa.array([b"a"]), "attributes": pa.array([["x"]])}, "'attributes' has type"),
        ({"value": pa.array([None], pa.binary())}, "message 0 has no value"),
    ],
)
def test_other_arrow_data_is_refused_with_a_sentence(columns: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        normalised(columns)


def test_sizes_count_key_value_producer_and_attributes() -> None:
    made = records(
        b"12345", b"", b"1",
        keys=["ab", None, None],
        attributes=[{"k": "vv", "kk": ""}, None, {}],
    )  # fmt: skip
    assert message_bytes(made).to_pylist() == [5 + 2 + 1 + (3 + 12) + (2 + 12), 1, 1 + 1]
    assert message_bytes(made.slice(1)).to_pylist() == [1, 2]
    assert message_bytes(made.slice(0, 1)).to_pylist() == [37]


def test_a_batch_is_sliced_by_offsets() -> None:
    batch = MessageBatch(100, records(b"0", b"1", b"2", b"3"))
    assert (batch.count, batch.end_offset) == (4, 104)
    middle = batch.slice(101, 103)
    assert (middle.base_offset, middle.records.column("value").to_pylist()) == (101, [b"1", b"2"])
    assert batch.slice(0, 1000).count == 4
    assert batch.slice(200, 300).count == 0
    assert batch.slice(103, 101).count == 0
