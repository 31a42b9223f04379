"""The frame codec: what a producer sends, the journal keeps and Parquet is made from.

A frame is a fixed header and an Arrow IPC record-batch message without its schema. Version 1,
little endian, packed, 104 bytes:

    magic "DNBF" | u8 version | u16 header bytes | u8 kind | u8 flags | u8 codec | 16s topic id |
    u32 partition | u64 producer id | u32 producer epoch | u64 first sequence | u32 count |
    i64 min timestamp us | i64 max timestamp us | u64 uncompressed bytes | u64 schema fingerprint |
    u32 body bytes | u32 body crc32c | 6 zero bytes | u32 header crc32c over all before it

The zero bytes make the body start at a multiple of eight, which Arrow wants of its buffers.
Sequences count messages: a producer's next frame starts at ``first_sequence + count``.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from danube.core.batch import MESSAGE_SCHEMA, message_bytes
from danube.core.checksum import crc32c
from danube.core.errors import Corruption, InvalidFrame, MessageTooLarge, UnsupportedFormat
from danube.core.ipc import IpcMessage, Layout, read_message
from danube.core.limits import (
    DEFAULT_MAX_FRAME_BYTES,
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    MAX_TIMESTAMP_US,
    MIN_TIMESTAMP_US,
)
from danube.core.stores import Buffer

MAGIC: Final = b"DNBF"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<4sBHBBB16sIQIQIqqQQII6xI")
HEADER_BYTES: Final = _HEADER.size
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = HEADER_BYTES - _CRC.size


class FrameKind(enum.IntEnum):
    """What the body is."""

    MESSAGES = 1


class Codec(enum.IntEnum):
    """How Arrow compressed the body's buffers."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_ARROW_CODEC: Final = {Codec.NONE: None, Codec.LZ4: 0, Codec.ZSTD: 1}
_KINDS: Final = frozenset(FrameKind)
_END_OF_STREAM_BYTES: Final = 8


def schema_fingerprint(schema: pa.Schema) -> int:
    """Unsigned 64-bit name of a schema: its columns, types and nullability, in order."""
    text = ";".join(f"{field.name}:{field.type}{'' if field.nullable else '!'}" for field in schema)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


MESSAGE_FINGERPRINT: Final = schema_fingerprint(MESSAGE_SCHEMA)
_LAYOUT: Final = Layout(MESSAGE_SCHEMA)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame's header, checked against its crc.

    Attributes:
        kind: what the body is.
        flags: 0 in version 1.
        codec: compression of the body.
        topic_id: 16 bytes.
        partition: number of the partition.
        producer_id: derived from topic id and producer name.
        producer_epoch: raised whenever the producer starts its sequences again.
        first_sequence: sequence of the first message; the next frame's is this + ``count``.
        count: messages in the body, at least 1.
        min_timestamp_us: smallest publish time, microseconds since 1970 UTC.
        max_timestamp_us: largest one.
        uncompressed_bytes: sum of the body's buffers once decompressed.
        schema_fingerprint: see :func:`schema_fingerprint`.
        body_bytes: length of the body as it travels.
        body_crc: crc32c of the body as it travels.
    """

    kind: FrameKind
    flags: int
    codec: Codec
    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    count: int
    min_timestamp_us: int
    max_timestamp_us: int
    uncompressed_bytes: int
    schema_fingerprint: int
    body_bytes: int
    body_crc: int

    def to_bytes(self) -> bytes:
        """The header's :data:`HEADER_BYTES` bytes, with their crc."""
        packed = _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            self.kind,
            self.flags,
            self.codec,
            self.topic_id,
            self.partition,
            self.producer_id,
            self.producer_epoch,
            self.first_sequence,
            self.count,
            self.min_timestamp_us,
            self.max_timestamp_us,
            self.uncompressed_bytes,
            self.schema_fingerprint,
            self.body_bytes,
            self.body_crc,
            0,
        )[:_CRC_AT]
        return packed + _CRC.pack(crc32c(packed))


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: its header, the header's bytes, and a view of its body."""

    header: FrameHeader
    header_bytes: bytes
    body: Buffer

    @property
    def total_bytes(self) -> int:
        """Header and body together."""
        return len(self.header_bytes) + self.header.body_bytes

    def to_bytes(self) -> bytes:
        """Header and body in one piece (one copy)."""
        return b"".join((self.header_bytes, self.body))


def encode_frame(
    records: pa.RecordBatch,
    *,
    topic_id: bytes,
    partition: int,
    producer_id: int,
    producer_epoch: int,
    first_sequence: int,
    codec: Codec = Codec.NONE,
) -> Frame:
    """Make a frame of ``records`` (at least one row, exactly :data:`MESSAGE_SCHEMA`).

    Raises:
        InvalidFrame: no rows, or other columns.
    """
    if records.num_rows == 0 or not records.schema.equals(MESSAGE_SCHEMA):
        raise InvalidFrame(
            f"{records.num_rows} rows of ({', '.join(records.schema.names)}) make no frame; use "
            "normalise_records() or message_records() on at least one message"
        )
    body = memoryview(_serialize(records, codec))
    header = FrameHeader(
        FrameKind.MESSAGES,
        0,
        codec,
        topic_id,
        partition,
        producer_id,
        producer_epoch,
        first_sequence,
        records.num_rows,
        *_timestamp_bounds(records),
        _uncompressed_bytes(_read_body(body)),
        MESSAGE_FINGERPRINT,
        len(body),
        crc32c(body),
    )
    return Frame(header, header.to_bytes(), body)


def _serialize(records: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    if codec is Codec.NONE:
        return records.serialize()
    # Only the stream writer compresses; its schema in front and end mark behind are cut off.
    options = pa.ipc.IpcWriteOptions(compression="lz4" if codec is Codec.LZ4 else "zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema, options=options) as writer:
        writer.write_batch(records)
    stream = sink.getvalue()
    schema_bytes = 8 + int.from_bytes(stream[4:8], "little")
    return stream.slice(schema_bytes, stream.size - schema_bytes - _END_OF_STREAM_BYTES)


def parse_header(data: Buffer) -> FrameHeader:
    """Read and check the header at the start of ``data``.

    Raises:
        InvalidFrame: too short, another magic, a crc that does not match, impossible fields.
        UnsupportedFormat: a version, kind, flag or codec this release does not know.
    """
    if len(data) < HEADER_BYTES:
        raise InvalidFrame(f"{len(data)} bytes are too few for a frame's header ({HEADER_BYTES})")
    fields = _HEADER.unpack_from(data)
    magic, version, header_bytes, kind, flags, codec = fields[:6]
    if magic != MAGIC:
        raise InvalidFrame("these bytes do not start with a frame's magic")
    if version != VERSION:
        raise UnsupportedFormat(
            f"the frame has format version {version}; this release reads {VERSION}: upgrade it"
        )
    # Version and magic are read before the crc, because another version may keep it elsewhere.
    if header_bytes != HEADER_BYTES or crc32c(memoryview(data)[:_CRC_AT]) != fields[-1]:
        raise InvalidFrame("the frame's header is damaged: its crc does not match")
    if kind not in _KINDS or flags or codec not in _ARROW_CODEC:
        raise UnsupportedFormat(
            f"the frame has kind {kind}, flags {flags}, codec {codec}; this release does not know "
            "them: upgrade it"
        )
    return FrameHeader(FrameKind(kind), flags, Codec(codec), *fields[6:-1])


def parse_frame(data: Buffer) -> Frame:
    """Read one whole frame: header, lengths and both checksums. Copies only the header.

    Raises:
        InvalidFrame: truncated, followed by other bytes, or damaged.
        UnsupportedFormat: made by a newer version.
    """
    header = parse_header(data)
    if len(data) != HEADER_BYTES + header.body_bytes:
        raise InvalidFrame(
            f"the frame has {len(data)} bytes; its header says {HEADER_BYTES + header.body_bytes}"
        )
    view = memoryview(data)
    body = view[HEADER_BYTES:]
    if crc32c(body) != header.body_crc:
        raise InvalidFrame("the frame's body is damaged: its crc does not match")
    return Frame(header, bytes(view[:HEADER_BYTES]), body)


def read_stored(header_bytes: Buffer, body: Buffer) -> Frame:
    """A frame from what a journal or cache kept of one that was validated before.

    Raises:
        Corruption: the header does not parse or the body has another length. The body's crc is
            checked by whoever read it from the disk.
    """
    try:
        header = parse_header(header_bytes)
    except (InvalidFrame, UnsupportedFormat) as error:
        raise Corruption(f"a stored frame's header cannot be read: {error}") from error
    if header.body_bytes != len(body):
        raise Corruption(f"a stored frame's body has {len(body)} bytes, not {header.body_bytes}")
    return Frame(header, bytes(header_bytes), body)


def decode_frame(frame: Frame) -> pa.RecordBatch:
    """The records of a frame that was validated once. Uncompressed columns are not copied.

    Raises:
        InvalidFrame: the body does not decode, so it never was validated.
    """
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(frame.body), MESSAGE_SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidFrame(f"the frame's body does not decode: {error}") from error


def validate_frame(
    frame: Frame,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> pa.RecordBatch:
    """The door: refuse a parsed frame that would poison whoever reads it later.

    Sizes are compared before anything is decompressed; then the body is decoded once and every
    offset, text, null and timestamp checked, without an object per message.

    Returns:
        The decoded records, for callers that need them at once.

    Raises:
        MessageTooLarge: the frame, its expansion or one of its messages is above the limit.
        InvalidFrame: anything else that is not as :func:`encode_frame` would have made it.
    """
    header = frame.header
    if frame.total_bytes > max_frame_bytes:
        raise MessageTooLarge(
            f"the frame has {frame.total_bytes} bytes; at most {max_frame_bytes} are allowed: send "
            "fewer messages per frame"
        )
    if header.schema_fingerprint != MESSAGE_FINGERPRINT:
        raise InvalidFrame(
            f"the frame's columns have fingerprint {header.schema_fingerprint:#x}; this topic "
            f"takes {MESSAGE_FINGERPRINT:#x} ({', '.join(MESSAGE_SCHEMA.names)})"
        )
    message = _read_body(memoryview(frame.body))
    _check_claims(header, message, max_uncompressed_bytes)
    records = decode_frame(frame)
    _check_records(header, records)
    _check_message_sizes(header, records, max_message_bytes)
    return records


def _read_body(body: memoryview) -> IpcMessage:
    return read_message(body, max_nodes=_LAYOUT.nodes, max_buffers=_LAYOUT.buffers)


def _uncompressed_bytes(message: IpcMessage) -> int:
    return sum(message.buffers)


def _check_claims(header: FrameHeader, message: IpcMessage, max_uncompressed_bytes: int) -> None:
    """What can be told from the metadata alone, before memory is spent."""
    expands_to = _uncompressed_bytes(message)
    if expands_to > max_uncompressed_bytes:
        raise MessageTooLarge(
            f"the frame expands to {expands_to} bytes; at most {max_uncompressed_bytes} are "
            "allowed: send fewer messages per frame"
        )
    if expands_to != header.uncompressed_bytes:
        raise InvalidFrame(
            f"the frame expands to {expands_to} bytes; its header says {header.uncompressed_bytes}"
        )
    if message.codec != _ARROW_CODEC[header.codec]:
        raise InvalidFrame(f"the frame's body is not compressed as {header.codec.name}")
    if header.count == 0 or message.rows != header.count:
        raise InvalidFrame(f"the frame has {message.rows} rows; its header says {header.count}")
    _LAYOUT.check(message)


def _check_records(header: FrameHeader, records: pa.RecordBatch) -> None:
    try:
        records.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidFrame(f"the frame's columns are not valid: {error}") from error
    attributes = cast("pa.MapArray[Any, Any]", records.column("attributes"))
    if attributes.items.null_count:
        raise InvalidFrame("an attribute of the frame has no text (null)")
    bounds = _timestamp_bounds(records)
    if bounds != (header.min_timestamp_us, header.max_timestamp_us):
        raise InvalidFrame(
            f"the frame's timestamps lie in {bounds}; its header says "
            f"({header.min_timestamp_us}, {header.max_timestamp_us})"
        )
    if bounds[0] < MIN_TIMESTAMP_US or bounds[1] > MAX_TIMESTAMP_US:
        raise InvalidFrame(
            f"the frame's timestamps {bounds} (microseconds since 1970) lie outside of the years "
            "1 to 9999"
        )


def _check_message_sizes(
    header: FrameHeader, records: pa.RecordBatch, max_message_bytes: int
) -> None:
    # An attribute counts 12 bytes beside its text and takes 8 beside it here: below half of the
    # limit, no single message can be above it.
    if header.uncompressed_bytes * 2 <= max_message_bytes:
        return
    largest = pc.max(message_bytes(records)).as_py()
    if largest > max_message_bytes:
        raise MessageTooLarge(
            f"a message has {largest} bytes; this topic takes at most {max_message_bytes}: split "
            "it, or raise the topic's limit"
        )


def _timestamp_bounds(records: pa.RecordBatch) -> tuple[int, int]:
    found = pc.min_max(records.column("timestamp").view(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()
