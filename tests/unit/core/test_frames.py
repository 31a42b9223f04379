"""The frame's bytes are pinned, and damage of any kind is noticed."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from danube.core.batch import MESSAGE_SCHEMA
from danube.core.errors import (
    Corruption,
    DanubeError,
    InvalidFrame,
    MessageTooLarge,
    UnsupportedFormat,
)
from danube.core.frames import (
    HEADER_BYTES,
    MESSAGE_FINGERPRINT,
    Codec,
    FrameKind,
    decode_frame,
    encode_frame,
    parse_frame,
    parse_header,
    read_stored,
    validate_frame,
)
from tests.unit.core.frame_samples import GOLDEN, PLACE, SAMPLES, TOPIC_ID, sample_frame


def test_the_header_is_104_bytes_and_the_fingerprint_never_changes() -> None:
    assert HEADER_BYTES == 104
    assert MESSAGE_FINGERPRINT == 0x957F9318D0D8B9FF


@pytest.mark.parametrize("name", SAMPLES)
def test_a_golden_file_reads_back_as_what_was_written(name: str) -> None:
    frame = parse_frame((GOLDEN / f"{name}.bin").read_bytes())
    records, codec = SAMPLES[name]
    assert validate_frame(frame).equals(records)
    header = frame.header
    assert (header.kind, header.flags, header.codec) == (FrameKind.MESSAGES, 0, codec)
    assert (header.topic_id, header.partition) == (TOPIC_ID, 3)
    assert (header.producer_id, header.producer_epoch) == (0xFEDC_BA98_7654_3210, 7)
    assert (header.first_sequence, header.count) == (1000, records.num_rows)


@pytest.mark.parametrize("name", SAMPLES)
def test_encoding_still_makes_the_golden_bytes(name: str) -> None:
    assert sample_frame(name).to_bytes() == (GOLDEN / f"{name}.bin").read_bytes()


def test_the_header_layout_is_the_documented_one() -> None:
    data = (GOLDEN / "rich.bin").read_bytes()
    magic, version, length, kind, flags, codec = struct.unpack_from("<4sBHBBB", data)
    assert (magic, version, length, kind, flags, codec) == (b"DNBF", 1, 104, 1, 0, 0)
    assert struct.unpack_from("<qq", data, 54) == (-1, 4_102_444_800_000_000)
    assert struct.unpack_from("<I", data, 86) == (len(data) - 104,)
    assert data[94:100] == bytes(6)


@pytest.mark.parametrize("name", ["plain", "rich"])
def test_every_truncation_is_noticed(name: str) -> None:
    data = sample_frame(name).to_bytes()
    for length in range(len(data)):
        with pytest.raises(InvalidFrame):
            parse_frame(data[:length])
    with pytest.raises(InvalidFrame):
        parse_frame(data + b"\0")


def test_every_flipped_bit_is_noticed() -> None:
    data = bytearray(sample_frame("plain").to_bytes())
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises((InvalidFrame, UnsupportedFormat)):
                parse_frame(data)
            data[at] ^= 1 << bit
    assert parse_frame(data).header.count == 3


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_frames_are_read_from_any_buffer(kind: type[bytes]) -> None:
    data = sample_frame("rich").to_bytes()
    frame = parse_frame(kind(data))
    assert frame.to_bytes() == data
    assert frame.total_bytes == len(data)
    assert validate_frame(frame).equals(SAMPLES["rich"][0])


def test_the_body_of_a_received_frame_is_not_copied() -> None:
    data = sample_frame("rich").to_bytes()
    values = decode_frame(parse_frame(data)).column("value").buffers()[2]
    assert values is not None
    whole = memoryview(data)
    start = pa.py_buffer(whole).address
    assert start <= values.address < start + len(data)


def test_a_newer_version_is_told_apart_from_damage() -> None:
    data = bytearray(sample_frame("plain").to_bytes())
    data[4] = 2
    with pytest.raises(UnsupportedFormat, match="version 2"):
        parse_header(data)


def test_an_empty_batch_or_other_columns_make_no_frame() -> None:
    records = SAMPLES["plain"][0]
    with pytest.raises(InvalidFrame):
        encode_frame(records.slice(0, 0), **PLACE)
    with pytest.raises(InvalidFrame):
        encode_frame(records.select(["value"]), **PLACE)


def test_a_slice_of_a_batch_carries_only_its_own_bytes() -> None:
    records = SAMPLES["lz4"][0]
    one = encode_frame(records.slice(5, 1), **PLACE)
    assert one.header.uncompressed_bytes < 1000
    assert validate_frame(one).equals(records.slice(5, 1))


def test_limits_are_for_messages_frames_and_expansions() -> None:
    frame = sample_frame("zstd")
    with pytest.raises(MessageTooLarge, match="a message has 513 bytes"):
        validate_frame(frame, max_message_bytes=512)
    with pytest.raises(MessageTooLarge, match="the frame has"):
        validate_frame(frame, max_frame_bytes=frame.total_bytes - 1)
    with pytest.raises(MessageTooLarge, match="expands"):
        validate_frame(frame, max_uncompressed_bytes=frame.header.uncompressed_bytes - 1)
    validate_frame(
        frame,
        max_message_bytes=513,
        max_frame_bytes=frame.total_bytes,
        max_uncompressed_bytes=frame.header.uncompressed_bytes,
    )


def test_a_stored_frame_is_put_together_again_and_checked_for_its_length() -> None:
    frame = sample_frame("rich")
    stored = read_stored(frame.header_bytes, bytes(frame.body))
    assert decode_frame(stored).schema.equals(MESSAGE_SCHEMA)
    with pytest.raises(Corruption):
        read_stored(frame.header_bytes, bytes(frame.body)[:-1])
    with pytest.raises(Corruption):
        read_stored(b"\0" * HEADER_BYTES, frame.body)


def test_every_codec_decodes_to_the_same_records() -> None:
    records = SAMPLES["lz4"][0]
    for codec in Codec:
        frame = encode_frame(records, codec=codec, **PLACE)
        assert validate_frame(parse_frame(frame.to_bytes())).equals(records)


def test_errors_of_the_codec_are_all_ours() -> None:
    for data in (b"", b"DNBF", b"x" * 500, bytes(200)):
        with pytest.raises(DanubeError):
            parse_frame(data)
