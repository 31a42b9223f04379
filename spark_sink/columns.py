"""Which columns a written DataFrame may have, checked once on the driver."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from danube.core.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

WRITABLE: Final = {
    "value": "string or binary",
    "key": "string or binary",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
    "attributes": "map<string,string>",
}
READ_ONLY: Final = ("offset", "append_time", "producer", "schema_id", "schema_version")
"""Columns of the source that a sink cannot set."""


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse a DataFrame that cannot be written.

    Args:
        schema: its schema.
        topic: the option ``topic``, or None.

    Raises:
        InvalidRequest: no ``value``, neither option nor column ``topic``, a column of another
            name or type.
    """
    for field in schema.fields:
        if field.name not in WRITABLE:
            raise InvalidRequest(_unknown(field.name))
        if not _fits(field.name, field.dataType):
            raise InvalidRequest(
                f"the column {field.name!r} is {field.dataType.simpleString()}; make it "
                f"{WRITABLE[field.name]}, for example with CAST or to_json()"
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidRequest(
            "there is no column 'value' to write; make one, for example with "
            "to_json(struct(*)) AS value"
        )
    if topic is None and "topic" not in names:
        raise InvalidRequest("no topic to write to; set the option 'topic' or add a column 'topic'")


def _unknown(name: str) -> str:
    if name in READ_ONLY:
        return f"the column {name!r} is set by the broker and cannot be written; leave it out"
    near = difflib.get_close_matches(name, WRITABLE, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(WRITABLE)}"
    return f"the sink has no column {name!r}; {hint}"


def _fits(name: str, found: DataType) -> bool:
    from pyspark.sql import types

    if name in ("value", "key"):
        return isinstance(found, types.StringType | types.BinaryType)
    if name == "attributes":
        return isinstance(found, types.MapType) and all(
            isinstance(part, types.StringType) for part in (found.keyType, found.valueType)
        )
    if name == "partition":
        return isinstance(found, types.ByteType | types.ShortType | types.IntegerType)
    wanted = types.StringType if name == "topic" else types.TimestampType
    return isinstance(found, wanted)
