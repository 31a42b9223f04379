"""The source's columns as Spark types, and record batches of exactly the Arrow type Spark wants.

Spark compares only the first batch's schema and fails inside the JVM on a later one that differs,
so every batch is built on the one target schema.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from danube.core.batch import TABLE_SCHEMA
from danube.core.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SOURCE_DDL: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "append_time timestamp, producer string, attributes map<string,string>, schema_id bigint, "
    "schema_version int"
)
"""TABLE_SCHEMA of danube/core/batch.py, in Spark's words."""

_HINTS: Final = {"value": "; CAST(value AS STRING) makes text", "key": "; CAST(key AS STRING)"}


def target_schema(wanted: StructType) -> pa.Schema:
    """The Arrow schema of every batch for a read with the columns ``wanted``.

    Args:
        wanted: all columns, or those the user named with ``.schema("offset long")``: only these
            are read.

    Raises:
        InvalidRequest: a column does not exist or has another type.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    target = to_arrow_schema(wanted, timezone="UTC")
    if not target.names:
        raise InvalidRequest("the schema has no column; name at least one, such as 'offset bigint'")
    for field in target:
        known = TABLE_SCHEMA.names
        if field.name not in known:
            near = difflib.get_close_matches(field.name, known, n=1)
            raise InvalidRequest(
                f"topics have no column {field.name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; they have {', '.join(known)}")
            )
        expected = TABLE_SCHEMA.field(field.name).type
        if field.type != expected:
            raise InvalidRequest(
                f"the column {field.name!r} is {expected}, not {field.type}"
                + _HINTS.get(field.name, "")
            )
    return target


def to_target(records: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """``records`` (columns of TABLE_SCHEMA, any order, more than needed) as Spark wants them."""
    arrays: list[pa.Array[Any]] = []
    for field in target:
        column = records.column(field.name)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def frame_columns(
    records: pa.RecordBatch,
    *,
    topic: str,
    partition: int,
    base_offset: int,
    append_time_us: int,
    target: pa.Schema,
) -> pa.RecordBatch:
    """A decoded frame's messages with the columns the broker knows: only those in ``target``."""
    count = records.num_rows
    arrays: list[pa.Array[Any]] = []
    for field in target:
        match field.name:
            case "topic":
                arrays.append(pa.repeat(pa.scalar(topic, pa.string()), count))
            case "partition":
                arrays.append(pa.repeat(pa.scalar(partition, pa.int32()), count))
            case "offset":
                arrays.append(pa.array(np.arange(base_offset, base_offset + count)))
            case "append_time":
                arrays.append(pa.repeat(pa.scalar(append_time_us, field.type), count))
            case name:
                arrays.append(records.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=target)
