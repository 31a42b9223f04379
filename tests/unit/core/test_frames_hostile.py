"""Frames made to hurt: right checksums, wrong contents. None of them gets in."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from danube.core.batch import MESSAGE_SCHEMA, TIMESTAMP_TYPE
from danube.core.errors import DanubeError, InvalidFrame, MessageTooLarge
from danube.core.frames import Codec, Frame, encode_frame, validate_frame
from danube.core.limits import MAX_TIMESTAMP_US
from tests.unit.core.frame_samples import (
    PLACE,
    SAMPLES,
    arrow_frame,
    forge,
    rich_records,
    sample_frame,
    unchecked_records,
)


def refused(frame: Frame, match: str) -> None:
    with pytest.raises(InvalidFrame, match=match):
        validate_frame(frame)


def patched(frame: Frame, old: bytes, new: bytes) -> bytes:
    """The body with one byte string replaced, which must be there."""
    body = bytes(frame.body)
    assert old in body
    assert len(old) == len(new)
    return body.replace(old, new, 1)


def claiming(frame: Frame, old_bytes: int, new_bytes: int) -> bytes:
    """The body with the uncompressed length in front of one compressed buffer replaced."""
    body = bytearray(frame.body)
    for at in range(struct.unpack_from("<i", body, 4)[0] + 8, len(body) - 8, 8):
        if struct.unpack_from("<q", body, at) == (old_bytes,):
            struct.pack_into("<q", body, at, new_bytes)
            return bytes(body)
    raise AssertionError("no such buffer")


def expanded(records: pa.RecordBatch) -> int:
    return encode_frame(records, **PLACE).header.uncompressed_bytes


@pytest.mark.parametrize(
    ("claims", "match"),
    [
        ({"count": 4}, "has 3 rows; its header says 4"),
        ({"count": 0}, "has 3 rows"),
        ({"uncompressed_bytes": 1}, "expands to"),
        ({"schema_fingerprint": 1}, "fingerprint"),
        ({"min_timestamp_us": 0}, "timestamps lie in"),
        ({"max_timestamp_us": 0}, "timestamps lie in"),
        ({"codec": Codec.ZSTD}, "not compressed as ZSTD"),
    ],
)
def test_a_header_that_lies_about_its_body_is_refused(claims: dict[str, Any], match: str) -> None:
    frame = sample_frame("rich")
    refused(forge(frame.body, frame, **claims), match)


def test_other_columns_are_refused() -> None:
    like = sample_frame("plain")
    refused(
        arrow_frame({"value": pa.array([b"a", b"b", b"c"])}, like, uncompressed_bytes=19), "1 c"
    )
    names = ["a", "b", "c", "d", "e", "f", "g"]
    other = {name: pa.array([1, 2, 3]) for name in names}
    refused(arrow_frame(other, like, uncompressed_bytes=24 * 7), "7 columns")


def test_a_schema_or_a_dictionary_in_place_of_a_batch_is_refused() -> None:
    like = sample_frame("plain")
    refused(forge(MESSAGE_SCHEMA.serialize(), like), "message kind 1")
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    dictionary = stream.slice(8 + int.from_bytes(stream[4:8], "little"))
    metadata_bytes = int.from_bytes(dictionary[4:8], "little")
    # The dictionary message alone: its metadata and as much body as that metadata names.
    at = bytes(dictionary).index(b"\xff\xff\xff\xff", 8)
    assert metadata_bytes < at
    refused(forge(dictionary.slice(0, at), like), "message kind 2")


def test_a_frame_that_claims_to_expand_to_gigabytes_costs_nothing() -> None:
    frame = sample_frame("zstd")
    records = SAMPLES["zstd"][0]
    value_bytes = sum(len(value.as_py()) for value in records.column("value"))
    body = claiming(frame, value_bytes, 4 << 30)
    before = pa.total_allocated_bytes()
    with pytest.raises(MessageTooLarge, match="expands to"):
        validate_frame(forge(body, frame, uncompressed_bytes=1))
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("name", ["lz4", "zstd"])
@pytest.mark.parametrize("claim", [8, 1 << 20])
def test_a_buffer_that_expands_to_something_else_than_it_claims_is_refused(
    name: str, claim: int
) -> None:
    frame = sample_frame(name)
    records = SAMPLES[name][0]
    value_bytes = sum(len(value.as_py()) for value in records.column("value"))
    body = claiming(frame, value_bytes, claim)
    total = frame.header.uncompressed_bytes - value_bytes + claim
    refused(forge(body, frame, uncompressed_bytes=total), "does not decode")


def test_a_real_bomb_is_refused_by_its_claim() -> None:
    bomb = pa.array([b"\0" * (3 << 20)] * 3, pa.binary())
    records = unchecked_records(value=bomb)
    frame = encode_frame(records, codec=Codec.ZSTD, **PLACE)
    assert frame.total_bytes < 10_000
    with pytest.raises(MessageTooLarge, match="expands"):
        validate_frame(frame, max_uncompressed_bytes=8 << 20)


# (length, nulls) of: key, value, timestamp, producer, attributes, its entries, their keys and
# values, schema_id, schema_version.
RICH_NODES = [(3, 1), *[(3, 0)] * 3, (3, 1), *[(2, 0)] * 3, (3, 0), (3, 0)]


@pytest.mark.parametrize(
    ("at", "node", "match"),
    [
        (0, (4, 1), "'key' has 4 rows, not 3"),
        (0, (-3, 1), "'key' has -3 rows"),
        (0, (3, -1), "'key' claims -1 nulls"),
        (0, (3, 4), "'key' claims 4 nulls"),
        (0, (3, 2), "not valid"),
        (1, (3, 1), "'value' claims 1 nulls"),
        (4, (1 << 60, 0), "rows, not 3"),
        (5, (1, 0), "rows, not 1"),
        (5, (2, 2), "claims 2 nulls"),
        (6, (2, 1), "claims 1 nulls"),
        (7, (1 << 60, 0), "rows, not 2"),
        (8, (2, 0), "'schema_id' has 2 rows"),
    ],
)
def test_counts_that_cannot_be_are_refused(at: int, node: tuple[int, int], match: str) -> None:
    frame = sample_frame("rich")
    nodes = list(RICH_NODES)
    nodes[at] = node
    old, new = (
        b"".join(struct.pack("<qq", *each) for each in all_) for all_ in (RICH_NODES, nodes)
    )
    refused(forge(patched(frame, old, new), frame), match)


def test_more_entries_than_their_buffers_hold_are_refused() -> None:
    frame = sample_frame("rich")
    nodes = list(RICH_NODES)
    nodes[5:8] = [(1 << 60, 0)] * 3
    old, new = (
        b"".join(struct.pack("<qq", *each) for each in all_) for all_ in (RICH_NODES, nodes)
    )
    refused(forge(patched(frame, old, new), frame), "fewer offsets")


@pytest.mark.parametrize("place", [(-8, 8), (0, -8), (1 << 40, 8), (0, 1 << 40), (4, 8)])
def test_buffers_outside_of_the_body_are_refused(place: tuple[int, int]) -> None:
    frame = sample_frame("rich")
    # The first buffer is the null flags of the keys: one byte at the start.
    old = struct.pack("<qq", 0, 1)
    refused(
        forge(patched(frame, old, struct.pack("<qq", *place)), frame), "outside|not say|crc|say"
    )


def test_buffers_over_each_other_are_refused() -> None:
    frame = sample_frame("plain")
    body = bytearray(frame.body)
    # Where the 24 buffers are listed: the null flags of schema_id and schema_version, the same
    # single byte, are made to lie in one place.
    listed = body.index(struct.pack("<Iqq", 24, 0, 1)) + 4
    places = [struct.unpack_from("<qq", body, listed + 16 * at) for at in range(24)]
    assert places[20][1] == places[22][1] == 1
    struct.pack_into("<q", body, listed + 16 * 22, places[20][0])
    refused(forge(bytes(body), frame), "over another one")


def test_offsets_that_run_backwards_are_refused() -> None:
    frame = sample_frame("plain")
    body = patched(frame, struct.pack("<4i", 0, 3, 3, 7), struct.pack("<4i", 0, 7, 3, 7))
    refused(forge(body, frame), "not valid")


def test_offsets_beyond_the_data_are_refused() -> None:
    frame = sample_frame("plain")
    body = patched(frame, struct.pack("<4i", 0, 3, 3, 7), struct.pack("<4i", 0, 3, 3, 7000))
    refused(forge(body, frame), "not valid")


@pytest.mark.parametrize("old", ["Erzeuger-ä".encode(), "ü".encode()])
def test_text_that_is_not_utf8_is_refused(old: bytes) -> None:
    frame = sample_frame("rich")
    body = patched(frame, old, b"\xff" * len(old))
    refused(forge(body, frame), "not valid")


@pytest.mark.parametrize("column", ["value", "timestamp", "producer"])
def test_a_null_where_none_is_allowed_is_refused(column: str) -> None:
    array = rich_records().column(column)
    records = unchecked_records(**{column: pa.array([None, *array.to_pylist()[1:]], array.type)})
    frame = forge(records.serialize(), sample_frame("rich"), uncompressed_bytes=expanded(records))
    refused(frame, f"'{column}' claims 1 nulls")


def test_an_attribute_without_text_is_refused() -> None:
    attributes = pa.array([[("a", None)], None, []], MESSAGE_SCHEMA.field("attributes").type)
    refused(encode_frame(unchecked_records(attributes=attributes), **PLACE), "attribute")


def test_a_time_that_no_calendar_has_is_refused() -> None:
    times = pa.array([0, 1, MAX_TIMESTAMP_US + 1], pa.int64()).cast(TIMESTAMP_TYPE)
    refused(encode_frame(unchecked_records(timestamp=times), **PLACE), "years")


def test_every_bit_of_the_metadata_may_be_flipped_without_harm() -> None:
    """With right checksums: either refused with our error, or equal to something valid."""
    frame = sample_frame("rich")
    metadata_bytes = struct.unpack_from("<i", frame.body, 4)[0] + 8
    body = bytearray(frame.body)
    for at in range(metadata_bytes):
        for bit in range(8):
            body[at] ^= 1 << bit
            try:
                records = validate_frame(forge(bytes(body), frame))
            except DanubeError:
                pass
            else:
                assert records.num_rows == 3
                records.validate(full=True)
            body[at] ^= 1 << bit


def test_every_bit_of_the_columns_may_be_flipped_without_harm() -> None:
    for name in ("rich", "lz4"):
        frame = sample_frame(name)
        start = struct.unpack_from("<i", frame.body, 4)[0] + 8
        body = bytearray(frame.body)
        for at in range(start, min(len(body), start + 1500)):
            body[at] ^= 1 << (at % 8)
            try:
                validate_frame(forge(bytes(body), frame)).to_pylist()
            except DanubeError:
                pass
            body[at] ^= 1 << (at % 8)
