"""Frames that tests share: fixed records, their golden files, and a forger of bad ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from danube.core.batch import MESSAGE_SCHEMA, message_records
from danube.core.checksum import crc32c
from danube.core.frames import Codec, Frame, encode_frame, parse_frame
from danube.core.stores import Buffer

GOLDEN: Final = Path(__file__).parent / "golden"
TOPIC_ID: Final = bytes(range(16))

PLACE: Final[dict[str, Any]] = {
    "topic_id": TOPIC_ID,
    "partition": 3,
    "producer_id": 0xFEDC_BA98_7654_3210,
    "producer_epoch": 7,
    "first_sequence": 1000,
}


def plain_records() -> pa.RecordBatch:
    """Values only."""
    return message_records([b"one", b"", "drei"], now_us=1_700_000_000_000_000, producer="p")


def rich_records() -> pa.RecordBatch:
    """Every column filled, with nulls where they are allowed."""
    return message_records(
        [b"\x00\xff", b"v" * 300, b"last"],
        keys=["key", None, b"\xff\xfe"],
        timestamps_us=[-1, None, 4_102_444_800_000_000],
        now_us=1_700_000_000_000_000,
        producer="Erzeuger-ä",
        attributes=[{"a": "1", "b": "ü"}, None, {}],
        schema_id=5,
        schema_version=2,
    )


def compressible_records() -> pa.RecordBatch:
    """Enough repetition that a codec has something to do."""
    return message_records([b"abcdefgh" * 64] * 40, now_us=1, producer="p")


SAMPLES: Final[dict[str, tuple[pa.RecordBatch, Codec]]] = {
    "plain": (plain_records(), Codec.NONE),
    "rich": (rich_records(), Codec.NONE),
    "lz4": (compressible_records(), Codec.LZ4),
    "zstd": (compressible_records(), Codec.ZSTD),
}


def sample_frame(name: str) -> Frame:
    """The sample of that name, encoded now."""
    records, codec = SAMPLES[name]
    return encode_frame(records, codec=codec, **PLACE)


def forge(body: Buffer | pa.Buffer, like: Frame, **claims: Any) -> Frame:
    """A frame with this body, whose checksums are right and whose claims need not be."""
    body = bytes(body)
    header = replace(like.header, body_bytes=len(body), body_crc=crc32c(body), **claims)
    return parse_frame(header.to_bytes() + body)


def arrow_frame(columns: dict[str, Any], like: Frame, **claims: Any) -> Frame:
    """A frame around any Arrow columns, claimed to be messages."""
    return forge(pa.record_batch(columns).serialize(), like, **claims)


def unchecked_records(**columns: pa.Array[Any]) -> pa.RecordBatch:
    """Messages with some columns replaced, whatever they hold."""
    arrays = [columns.get(name, rich_records().column(name)) for name in MESSAGE_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
