"""A small, distrustful reader of the Arrow IPC record-batch message (a flatbuffer).

pyarrow reads a record batch against a wrong schema without complaint, and decompresses whatever a
buffer's prefix promises. So before pyarrow sees a byte, this module reads the message's metadata
itself, with every index checked, and compares it with what the schema needs. Format: Arrow
columnar format 1.x, "Encapsulated message format" and Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from danube.core.errors import InvalidFrame
from danube.core.limits import MAX_FRAME_METADATA_BYTES

_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = struct.Struct("<Ii")
_METADATA_V5: Final = 4
_RECORD_BATCH: Final = 3
_COMPRESSED_PREFIX: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """The metadata of one record-batch message.

    Attributes:
        rows: messages in the batch.
        nodes: (length, null count) per column, depth first.
        buffers: (length once decompressed) per buffer.
        codec: None, 0 (LZ4 frame) or 1 (zstd).
    """

    rows: int
    nodes: tuple[tuple[int, int], ...]
    buffers: tuple[int, ...]
    codec: int | None


class _Table:
    """A flatbuffer table: fields by number, every position checked against the buffer."""

    __slots__ = ("_data", "_fields", "_position", "_vtable")

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - _read(data, "<i", position)
        self._fields = (_read(data, "<H", self._vtable) - 4) // 2

    def _at(self, field: int) -> int | None:
        if field >= self._fields:
            return None
        offset = _read(self._data, "<H", self._vtable + 4 + 2 * field)
        return self._position + offset if offset else None

    def scalar(self, field: int, format_: str, default: int) -> int:
        at = self._at(field)
        return default if at is None else _read(self._data, format_, at)

    def table(self, field: int) -> _Table | None:
        at = self._at(field)
        return None if at is None else _Table(self._data, at + _read(self._data, "<I", at))

    def pairs(self, field: int, most: int) -> tuple[tuple[int, int], ...]:
        """A vector of structs of two int64."""
        at = self._at(field)
        if at is None:
            return ()
        start = at + _read(self._data, "<I", at)
        count = _read(self._data, "<I", start)
        if count > most:
            raise InvalidFrame(f"the frame's metadata lists {count} entries; {most} are expected")
        if start + 4 + 16 * count > len(self._data):
            raise InvalidFrame("the frame's metadata ends within a list")
        return tuple(struct.Struct("<qq").iter_unpack(self._data[start + 4 :][: 16 * count]))

    def vector_length(self, field: int) -> int:
        at = self._at(field)
        if at is None:
            return 0
        return _read(self._data, "<I", at + _read(self._data, "<I", at))


def _read(data: memoryview, format_: str, position: int) -> int:
    if position < 0:  # unpack_from would count it from the end
        raise InvalidFrame("the frame's metadata points outside of itself")
    try:
        value: int = struct.unpack_from(format_, data, position)[0]
    except struct.error:
        raise InvalidFrame("the frame's metadata points outside of itself") from None
    return value


def read_message(body: memoryview, *, max_nodes: int, max_buffers: int) -> IpcMessage:
    """Read the metadata of the one message that ``body`` must be, without decompressing.

    Raises:
        InvalidFrame: not a record batch of format V5, lengths that do not add up, or buffers that
            are negative, overlap, lie outside of the body or hold no valid prefix.
    """
    if len(body) < _PREFIX.size:
        raise InvalidFrame("the frame's body is too short to be an Arrow message")
    continuation, metadata_bytes = _PREFIX.unpack_from(body)
    if continuation != _CONTINUATION:
        raise InvalidFrame("the frame's body does not start as an Arrow message does")
    if not 0 < metadata_bytes <= min(MAX_FRAME_METADATA_BYTES, len(body) - _PREFIX.size):
        raise InvalidFrame(f"the frame claims {metadata_bytes} bytes of Arrow metadata")
    data_start = _PREFIX.size + metadata_bytes
    metadata = body[_PREFIX.size : data_start]
    message = _Table(metadata, _read(metadata, "<I", 0))
    kind = message.scalar(1, "<B", 0)
    if message.scalar(0, "<h", 0) != _METADATA_V5 or kind != _RECORD_BATCH:
        raise InvalidFrame(f"the frame's body is Arrow message kind {kind}, not a V5 record batch")
    if message.scalar(3, "<q", 0) != len(body) - data_start:
        raise InvalidFrame("the frame's Arrow message is longer or shorter than its body")
    batch = message.table(2)
    if batch is None:
        raise InvalidFrame("the frame's Arrow message has no record batch")
    if batch.vector_length(4):
        raise InvalidFrame("the frame's columns are views; encode them as plain binary")
    codec = _codec(batch.table(3))
    places = batch.pairs(2, max_buffers)
    return IpcMessage(
        rows=batch.scalar(0, "<q", 0),
        nodes=batch.pairs(1, max_nodes),
        buffers=tuple(_sizes(places, body[data_start:], codec is not None)),
        codec=codec,
    )


def _codec(compression: _Table | None) -> int | None:
    if compression is None:
        return None
    codec = compression.scalar(0, "<b", 0)
    if codec not in (0, 1) or compression.scalar(1, "<b", 0) != 0:
        raise InvalidFrame(f"the frame's body uses an unknown Arrow compression ({codec})")
    return codec


def _sizes(
    places: tuple[tuple[int, int], ...], data: memoryview, compressed: bool
) -> Iterator[int]:
    """Length of each buffer once decompressed. Buffers must lie one after the other."""
    position = 0
    for start, length in places:
        if start < position or length < 0 or start % 8 or start + length > len(data):
            raise InvalidFrame(
                f"the frame's buffer at {start}, {length} bytes, lies outside of the body or over "
                "another one"
            )
        position = start + length
        if not compressed or length == 0:
            yield length
            continue
        if length < _COMPRESSED_PREFIX.size:
            raise InvalidFrame("a compressed buffer of the frame has no length in front")
        (expanded,) = _COMPRESSED_PREFIX.unpack_from(data, start)
        if expanded < -1:
            raise InvalidFrame(f"a compressed buffer of the frame claims {expanded} bytes")
        # -1: stored as it is, because compressing made it longer.
        yield length - _COMPRESSED_PREFIX.size if expanded == -1 else expanded


class Layout:
    """How many nodes and buffers a schema takes, and how long each buffer must at least be.

    Knows the types a message schema is made of: fixed width, text and binary, map and struct.
    """

    __slots__ = ("_schema", "buffers", "nodes")

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.nodes, self.buffers = (
            sum(counts) for counts in zip(*(_counts(field.type) for field in schema), strict=True)
        )

    def check(self, message: IpcMessage) -> None:
        """Compare a message's nodes and buffers with the schema.

        Raises:
            InvalidFrame: another number of columns, lengths that differ from the row count, null
                counts that cannot be, buffers too short for what they should hold.
        """
        if len(message.nodes) != self.nodes or len(message.buffers) != self.buffers:
            raise InvalidFrame(
                f"the frame has {len(message.nodes)} columns in {len(message.buffers)} buffers; "
                f"{self.nodes} in {self.buffers} make up the columns "
                f"{', '.join(self._schema.names)}"
            )
        walk = _Walk(iter(message.nodes), iter(message.buffers))
        for field in self._schema:
            walk.column(field, message.rows)


def _counts(type_: pa.DataType) -> tuple[int, int]:
    children = [type_.field(i).type for i in range(type_.num_fields)]
    nodes, buffers = 1, _own_buffers(type_)
    for child in children:
        more_nodes, more_buffers = _counts(child)
        nodes, buffers = nodes + more_nodes, buffers + more_buffers
    return nodes, buffers


def _own_buffers(type_: pa.DataType) -> int:
    if pa.types.is_struct(type_):
        return 1
    if pa.types.is_binary(type_) or pa.types.is_string(type_):
        return 3
    if pa.types.is_map(type_) or _width_bits(type_):
        return 2
    raise TypeError(f"no layout for {type_}")


def _width_bits(type_: Any) -> int:
    try:
        width: int = type_.bit_width
    except ValueError:
        return 0
    return width


class _Walk:
    """Goes through columns depth first, as Arrow flattens them."""

    __slots__ = ("_buffers", "_nodes")

    def __init__(self, nodes: Iterator[tuple[int, int]], buffers: Iterator[int]) -> None:
        self._nodes = nodes
        self._buffers = buffers

    def column(self, field: pa.Field[Any], rows: int | None) -> None:
        length, nulls = next(self._nodes)
        if length < 0 or (rows is not None and length != rows):
            raise InvalidFrame(f"the frame's column {field.name!r} has {length} rows, not {rows}")
        if not 0 <= nulls <= length or (nulls and not field.nullable):
            raise InvalidFrame(f"the frame's column {field.name!r} claims {nulls} nulls")
        validity = next(self._buffers)
        if (nulls or validity) and validity < (length + 7) // 8:
            raise InvalidFrame(f"the frame's column {field.name!r} has too few null flags")
        self._contents(field, length)

    def _contents(self, field: pa.Field[Any], length: int) -> None:
        type_ = field.type
        if pa.types.is_struct(type_):
            for i in range(type_.num_fields):
                self.column(type_.field(i), length)
        elif pa.types.is_map(type_):
            self._offsets(field.name, length)
            self.column(type_.field(0), None)
        elif pa.types.is_binary(type_) or pa.types.is_string(type_):
            self._offsets(field.name, length)
            next(self._buffers)
        elif next(self._buffers) * 8 < length * _width_bits(type_):
            raise InvalidFrame(f"the frame's column {field.name!r} is shorter than its rows")

    def _offsets(self, name: str, length: int) -> None:
        held = next(self._buffers)
        if length and held < 4 * (length + 1):
            raise InvalidFrame(f"the frame's column {name!r} has fewer offsets than rows")
