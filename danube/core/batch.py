"""The message batch: one partition's contiguous run of messages as an Arrow record batch.

Columns are architecture.md's ("The message batch and its frame"). Records are made here from
Python lists or from somebody else's Arrow data, always vectorised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from danube.core.errors import InvalidRequest

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
ATTRIBUTES_TYPE: Final = pa.map_(pa.string(), pa.string())

_MESSAGE_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary(), nullable=False),
    pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
    pa.field("producer", pa.string(), nullable=False),
    pa.field("attributes", ATTRIBUTES_TYPE),
    pa.field("schema_id", pa.int64()),
    pa.field("schema_version", pa.int32()),
]
MESSAGE_SCHEMA: Final = pa.schema(_MESSAGE_FIELDS)
"""What a frame holds."""

_TABLE_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP_TYPE),
    pa.field("append_time", TIMESTAMP_TYPE),
    pa.field("producer", pa.string()),
    pa.field("attributes", ATTRIBUTES_TYPE),
    pa.field("schema_id", pa.int64()),
    pa.field("schema_version", pa.int32()),
]
TABLE_SCHEMA: Final = pa.schema(_TABLE_FIELDS)
"""What the table, the Spark source and ``read_topic()`` show. Spark's columns are all nullable."""

ATTRIBUTE_OVERHEAD_BYTES: Final = 12
"""What an attribute costs beside its text in a delivered message (tags and lengths)."""

Attributes: TypeAlias = Mapping[str, str]
ArrowArray: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
Values: TypeAlias = "Sequence[bytes | str] | ArrowArray"
Keys: TypeAlias = "Sequence[bytes | str | None] | ArrowArray"


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one partition at offsets ``base_offset``, ``base_offset`` + 1, …

    ``records`` has the columns of :data:`MESSAGE_SCHEMA`.
    """

    base_offset: int
    records: pa.RecordBatch

    @property
    def count(self) -> int:
        """How many messages."""
        return self.records.num_rows

    @property
    def end_offset(self) -> int:
        """One above the last message's offset."""
        return self.base_offset + self.records.num_rows

    def slice(self, start: int, end: int) -> MessageBatch:
        """The messages at offsets [start, end), cut to what the batch has. Copies nothing."""
        start = min(max(start, self.base_offset), self.end_offset)
        end = max(start, min(end, self.end_offset))
        return MessageBatch(start, self.records.slice(start - self.base_offset, end - start))


def message_records(
    values: Values,
    *,
    keys: Keys | None = None,
    timestamps_us: Sequence[int | None] | ArrowArray | None = None,
    now_us: int,
    producer: str,
    attributes: Attributes | Sequence[Attributes | None] | None = None,
    schema_id: int | None = None,
    schema_version: int | None = None,
) -> pa.RecordBatch:
    """Messages from columns.

    Args:
        values: bytes or text (stored as UTF-8), one per message.
        keys: as many, or None for no keys; None entries are messages without a key.
        timestamps_us: microseconds since 1970 UTC; absent ones are ``now_us``.
        now_us: the publish time.
        producer: the producer's name, the same for all.
        attributes: one mapping for all messages, or one (or None) per message.
        schema_id: registry reference, the same for all.
        schema_version: registry reference, the same for all.

    Raises:
        InvalidRequest: lengths differ, a value is missing, or an entry has another type.
    """
    columns: dict[str, Any] = {"value": _to_array(values, "value", pa.binary())}
    count = len(columns["value"])
    if keys is not None:
        columns["key"] = _to_array(keys, "key", pa.binary())
    if timestamps_us is not None:
        columns["timestamp"] = _to_array(timestamps_us, "timestamp", TIMESTAMP_TYPE)
    if attributes is not None:
        each = [attributes] * count if isinstance(attributes, Mapping) else attributes
        columns["attributes"] = _to_array(each, "attributes", ATTRIBUTES_TYPE)
    if schema_id is not None:
        columns["schema_id"] = pa.repeat(pa.scalar(schema_id, pa.int64()), count)
    if schema_version is not None:
        columns["schema_version"] = pa.repeat(pa.scalar(schema_version, pa.int32()), count)
    for name, column in columns.items():
        if len(column) != count:
            raise InvalidRequest(f"{len(column)} {name} entries for {count} values; give as many")
    return _complete(columns, count, producer=producer, now_us=now_us)


def normalise_records(
    records: pa.RecordBatch | pa.Table, *, producer: str, now_us: int
) -> pa.RecordBatch:
    """Somebody's Arrow data as messages.

    Args:
        records: any subset of :data:`MESSAGE_SCHEMA`'s columns in any order, with ``value`` among
            them. ``value`` and ``key`` may be binary or text of any width, ``timestamp`` of any
            unit and zone (one without a zone is UTC).
        producer: name where the column is absent or null.
        now_us: publish time where the column is absent or null, microseconds since 1970.

    Returns:
        A batch of exactly :data:`MESSAGE_SCHEMA`; columns that need no change are not copied.

    Raises:
        InvalidRequest: an unknown or missing column, another type, or a null value.
    """
    names = records.schema.names
    unknown = [name for name in names if name not in MESSAGE_SCHEMA.names]
    if unknown or "value" not in names or len(set(names)) != len(names):
        raise InvalidRequest(
            f"messages cannot have the columns {', '.join(names) or '(none)'}; "
            f"give 'value' and any of: {', '.join(MESSAGE_SCHEMA.names)}, each once"
        )
    columns = {name: _cast(records.column(name), name) for name in names}
    return _complete(columns, records.num_rows, producer=producer, now_us=now_us)


def message_bytes(records: pa.RecordBatch) -> pa.Int64Array:
    """Each message's size in bytes: key, value, producer name and attributes (text + 12 each).

    This is what limits are compared with: a bound on the delivered form that does not depend on
    how the message travels.
    """
    total = _lengths(records.column("value"))
    for name in ("key", "producer"):
        total = pc.add(total, _lengths(records.column(name)))
    attributes = records.column("attributes")
    if attributes.null_count < len(attributes):
        total = pc.add(total, _attribute_bytes(cast("pa.MapArray[Any, Any]", attributes)))
    return cast(pa.Int64Array, total)


def _lengths(column: ArrowArray) -> Any:
    return pc.fill_null(pc.cast(pc.binary_length(cast(Any, column)), pa.int64()), 0)


def _attribute_bytes(column: pa.MapArray[Any, Any]) -> Any:
    """Per message; sums of entries by a running total, so that no list is walked in Python."""
    entries = pc.add(_lengths(column.keys), _lengths(column.items))
    entries = pc.add(entries, ATTRIBUTE_OVERHEAD_BYTES)
    running = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(entries)])
    # The offsets of a slice count from the start of the unsliced entries, as keys and items do.
    at = running.take(column.offsets)
    sizes = pc.subtract(at.slice(1), at.slice(0, len(at) - 1))
    return pc.if_else(pc.is_null(column), 0, sizes)


def _to_array(values: Any, name: str, type_: pa.DataType) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if name == "timestamp" and pa.types.is_integer(values.type):
            values = pc.cast(values, pa.int64())
        return _cast(values, name)
    try:
        return _one_chunk(pa.array(values, type_), name)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        wanted = "bytes or text" if pa.types.is_binary(type_) else str(type_)
        raise InvalidRequest(f"a {name} is not {wanted}: {error}") from error


def _cast(column: Any, name: str) -> Any:
    wanted = MESSAGE_SCHEMA.field(name).type
    column = _one_chunk(column, name)
    if column.type == wanted:
        return column
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not _castable(column.type, wanted):
            raise TypeError("no lossless conversion")
        return column.cast(wanted, safe=not pa.types.is_timestamp(wanted))
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRequest(
            f"the column {name!r} has type {column.type}; give {wanted} ({error})"
        ) from error


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(given) or given == pa.int64()
    if pa.types.is_map(wanted):
        return pa.types.is_map(given)
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(given)
    textual = (
        pa.types.is_string(given)
        or pa.types.is_large_string(given)
        or pa.types.is_string_view(given)
    )
    return textual or (pa.types.is_binary(wanted) and _is_binary(given))


def _is_binary(given: pa.DataType) -> bool:
    return (
        pa.types.is_binary(given)
        or pa.types.is_large_binary(given)
        or pa.types.is_binary_view(given)
        or pa.types.is_fixed_size_binary(given)
    )


def _one_chunk(column: Any, name: str) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    whole: Any = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        raise InvalidRequest(f"the column {name!r} has more than 2 GiB; give it in smaller batches")
    return whole


def _nulls(count: int, type_: Any) -> Any:
    if not pa.types.is_map(type_):
        return pa.nulls(count, type_)
    # pa.nulls gives every null map an entry of its own, which slices then carry along.
    flags, offsets = pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))
    entries: Any = pa.array([], pa.struct([type_.field(0).type.field(i) for i in range(2)]))
    return pa.Array.from_buffers(type_, count, [flags, offsets], count, children=[entries])


def _complete(columns: dict[str, Any], count: int, *, producer: str, now_us: int) -> pa.RecordBatch:
    """Add absent columns, fill absent times and producers, and refuse null values."""
    if columns["value"].null_count:
        at = pc.index(columns["value"].is_null(), True).as_py()
        raise InvalidRequest(f"message {at} has no value (null); an empty value is b''")
    defaults: dict[str, Any] = {
        "timestamp": pa.scalar(now_us, TIMESTAMP_TYPE),
        "producer": pa.scalar(producer, pa.string()),
    }
    for field in MESSAGE_SCHEMA:
        default = defaults.get(field.name)
        if field.name not in columns:
            columns[field.name] = (
                _nulls(count, field.type) if default is None else pa.repeat(default, count)
            )
        elif default is not None and columns[field.name].null_count:
            columns[field.name] = pc.fill_null(columns[field.name], default)
    arrays = [columns[name] for name in MESSAGE_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
