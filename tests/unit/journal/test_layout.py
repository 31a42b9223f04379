from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from danube.core.checksum import crc32c
from danube.core.errors import InvalidRequest, UnsupportedFormat
from danube.core.frames import HEADER_BYTES, parse_header
from danube.journal.envelope import (
    ENVELOPE_BYTES,
    Entry,
    EntryKind,
    Position,
    body_is_whole,
    check_entry,
    entry_bytes,
    envelope_at,
    stored_entry,
)
from danube.journal.flush import build_flush
from danube.journal.layout import (
    BLOCK_BYTES,
    END_MARK_BYTES,
    FLUSH_EMPTY,
    FLUSH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FlushHeader,
    Identity,
    SegmentHeader,
    flush_is_whole,
    parse_flush_header,
    parse_segment_header,
    segment_name,
    use_id_of,
)
from tests.unit.journal.journals import TOPIC, messages, staged, state

GOLDEN = Path(__file__).parent / "golden"
HEADER = SegmentHeader(
    use_id=7,
    previous=5,
    first_flush=41,
    segment_bytes=1 << 20,
    checkpoint=Position(4, 8192, 120),
    created_us=1_700_000_000_000_000,
    identity=Identity("broker-a", "0123456789abcdef0123456789abcdef"),
    flags=1,
)


def plain(kind: EntryKind, body: bytes, **fields: Any) -> Entry:
    """An entry whose bytes do not depend on how Arrow writes a record batch."""
    header = bytearray(range(HEADER_BYTES))
    header[-14:-10] = crc32c(body).to_bytes(4, "little")
    return Entry(kind, body, header=bytes(header), topic_id=TOPIC, epoch=1, **fields)


def golden_flush() -> bytes:
    entries = [
        plain(EntryKind.MESSAGES, b"a body", partition=3, base_offset=17, append_time_us=5_017),
        plain(EntryKind.STAGED, b"another body", extra=b'{"set":"5e7"}'),
        state("cursor"),
    ]
    buffers, _ = build_flush(
        entries,
        use_id=7,
        number=41,
        at=BLOCK_BYTES,
        flags=0,
        size=sum(map(entry_bytes, entries)),
        time_us=1_700_000_000_000_001,
    )
    return b"".join(buffers)


@pytest.mark.parametrize(
    ("name", "made"), [("header.bin", HEADER.to_block()), ("flush.bin", golden_flush())]
)
def test_the_bytes_on_the_disk_are_those_of_version_1(name: str, made: bytes) -> None:
    assert made == (GOLDEN / name).read_bytes()
    assert len(made) % BLOCK_BYTES == 0


def test_the_golden_header_reads_back() -> None:
    block = (GOLDEN / "header.bin").read_bytes()
    assert parse_segment_header(block, Path("x")) == HEADER
    assert (SEGMENT_HEADER_BYTES, FLUSH_HEADER_BYTES, ENVELOPE_BYTES, END_MARK_BYTES) == (
        (176, 48, 88, 24)
    )


def test_the_golden_flush_reads_back() -> None:
    data = memoryview((GOLDEN / "flush.bin").read_bytes())
    header = parse_flush_header(data, 0, BLOCK_BYTES, 7)
    assert header is not None
    assert (header.number, header.entries, header.next_at) == (41, 3, 2 * BLOCK_BYTES)
    assert flush_is_whole(data[: header.bytes], header)
    envelope = envelope_at(data, FLUSH_HEADER_BYTES, 7, 41)
    assert envelope is not None
    entry = stored_entry(data, FLUSH_HEADER_BYTES, envelope)
    assert (entry.kind, entry.topic_id, entry.partition) == (EntryKind.MESSAGES, TOPIC, 3)
    assert (entry.epoch, entry.base_offset, entry.append_time_us) == (1, 17, 5_017)
    assert body_is_whole(data, FLUSH_HEADER_BYTES, envelope)


def test_a_frames_body_starts_aligned_whatever_its_label() -> None:
    for label in (b"", b"x", b"1234567", b"12345678"):
        entry = staged("text", "ab")
        entry.extra = label
        buffers, (position,) = build_flush(
            [entry], use_id=1, number=1, at=0, flags=0, size=entry_bytes(entry), time_us=0
        )
        data = memoryview(b"".join(buffers))
        envelope = envelope_at(data, position.offset, 1, 1)
        assert envelope is not None
        assert (position.offset + envelope.body_at) % 8 == 0
        assert stored_entry(data, position.offset, envelope).extra == label


def test_the_crc_of_a_frames_body_is_taken_from_its_header() -> None:
    entry = messages("hello", 0)
    buffers, (position,) = build_flush(
        [entry], use_id=1, number=1, at=0, flags=0, size=entry_bytes(entry), time_us=0
    )
    envelope = envelope_at(memoryview(b"".join(buffers)), position.offset, 1, 1)
    assert envelope is not None
    assert envelope.body_crc == parse_header(entry.header).body_crc == crc32c(entry.body)
    assert len(entry.header) == HEADER_BYTES


def test_every_flipped_bit_of_a_flush_is_noticed() -> None:
    good = golden_flush()
    header = parse_flush_header(good, 0, BLOCK_BYTES, 7)
    assert header is not None
    for bit in range(0, header.bytes * 8, 5):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        found = parse_flush_header(bad, 0, BLOCK_BYTES, 7)
        if found is not None:
            assert not flush_is_whole(memoryview(bad)[: header.bytes], found), bit


def test_every_flipped_bit_of_a_header_block_is_noticed() -> None:
    good = HEADER.to_block()
    for bit in range(SEGMENT_HEADER_BYTES * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            assert parse_segment_header(bytes(bad), Path("x")) is None
        except UnsupportedFormat:
            assert bit // 8 in (8, 9)


@pytest.mark.parametrize(("use_id", "number"), [(8, 41), (6, 41), (7, 42), (7, 40)])
def test_bytes_of_another_use_or_flush_are_not_valid(use_id: int, number: int) -> None:
    data = memoryview(golden_flush())
    assert envelope_at(data, FLUSH_HEADER_BYTES, use_id, number) is None
    if use_id != 7:
        assert parse_flush_header(data, 0, BLOCK_BYTES, use_id) is None


def test_a_flush_without_entries_is_marked_as_empty() -> None:
    buffers, positions = build_flush(
        [], use_id=1, number=9, at=BLOCK_BYTES, flags=0, size=0, time_us=3
    )
    data = memoryview(b"".join(buffers))
    header = parse_flush_header(data, 0, BLOCK_BYTES, 1)
    assert header == FlushHeader(BLOCK_BYTES, FLUSH_EMPTY, 0, 1, 9, 72, 3)
    assert positions == []
    assert len(data) == BLOCK_BYTES


def test_large_bodies_are_written_from_where_they_are() -> None:
    entry = Entry(EntryKind.STATE, bytes(100_000))
    buffers, _ = build_flush(
        [state("a"), entry, state("b")],
        use_id=1,
        number=1,
        at=0,
        flags=0,
        size=entry_bytes(entry) + 2 * entry_bytes(state("a")),
        time_us=0,
    )
    assert any(buffer is entry.body for buffer in buffers)
    assert len(buffers) == 4


def test_a_newer_version_is_told_from_damage() -> None:
    block = bytearray(HEADER.to_block())
    block[8] = 2
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        parse_segment_header(bytes(block), Path("x"))


@pytest.mark.parametrize(
    "entry",
    [
        Entry(EntryKind.MESSAGES, b"body"),
        Entry(EntryKind.STATE, b"{}", header=bytes(HEADER_BYTES)),
        Entry(EntryKind.STATE, b"{}", topic_id=b"short"),
    ],
)
def test_an_entry_that_could_not_be_read_back_is_refused(entry: Entry) -> None:
    with pytest.raises(InvalidRequest):
        check_entry(entry)


def test_file_names_carry_the_use_id() -> None:
    assert segment_name(42) == "00000000000000000042.segment"
    assert use_id_of(segment_name(42)) == 42
    for other in ("lock", "42.segment", "quarantine", "0000000000000000004x.segment"):
        assert use_id_of(other) is None


def test_names_that_do_not_fit_the_header_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="64 bytes"):
        SegmentHeader(1, 0, 1, 4096, None, 0, Identity("x" * 65, "y")).to_block()


def test_the_golden_files_are_not_changed_by_accident() -> None:
    # Changing the format means a new version and golden files beside these.
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in GOLDEN.iterdir()}
    assert digests == {"header.bin": "6ec892abf6c4e666", "flush.bin": "972ce06c9d438ad3"}
