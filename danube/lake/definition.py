"""Version 0 of a topic's table: protocol, schema and properties."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from danube.core.batch import TABLE_SCHEMA
from danube.core.errors import Corruption, ForeignCommit, UnsupportedFormat
from danube.core.names import TopicId
from danube.lake.actions import Definition
from danube.lake.settings import LakeSettings

FORMAT_PROPERTY: Final = "danube.formatVersion"
FORMAT_VERSION: Final = 1
STATISTICS_COLUMNS: Final = ("offset", "timestamp", "append_time")

# The oldest protocol there is: every reader of Delta tables knows it.
PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}


def define(
    topic_id: TopicId, topic_name: str, settings: LakeSettings, *, now_us: int
) -> Definition:
    """What version 0 says."""
    metadata = {
        "id": metadata_id(topic_id),
        "name": topic_name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(delta_schema(TABLE_SCHEMA), separators=(",", ":")),
        "partitionColumns": ["partition"],
        "configuration": _properties(settings),
        "createdTime": now_us // 1000,
    }
    return Definition(PROTOCOL, metadata)


def metadata_id(topic_id: TopicId) -> str:
    """A table's id in Delta's metadata, derived from the topic's."""
    return str(uuid.UUID(bytes=topic_id.raw))


def check_definition(
    topic_id: TopicId,
    metadata: Mapping[str, Any] | None,
    protocol: Mapping[str, Any] | None,
    where: str,
) -> None:
    """Check that a table is one of ours, of this topic, and of a format we know.

    Raises:
        Corruption: no metadata, or of another topic.
        UnsupportedFormat: written by a newer version of Danube.
        ForeignCommit: the protocol was upgraded by another tool.
    """
    found = (metadata or {}).get("id")
    if metadata is None or found != metadata_id(topic_id):
        raise Corruption(
            f"the table at {where} belongs to topic {found}, not to {metadata_id(topic_id)}; "
            "restore the right one"
        )
    properties = dict(metadata.get("configuration") or {})
    version = int(properties.get(FORMAT_PROPERTY, 0))
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the table at {where} has format {version}; this version of Danube writes "
            f"{FORMAT_VERSION}. Use the newer version that wrote it"
        )
    given = protocol or {}
    if (given.get("minReaderVersion"), given.get("minWriterVersion")) != (1, 2):
        raise ForeignCommit(
            f"the protocol of the table at {where} is {dict(given)}, not {PROTOCOL}: another "
            "tool upgraded it. Restore the table's log from before that"
        )


def _properties(settings: LakeSettings) -> dict[str, str]:
    return {
        FORMAT_PROPERTY: str(FORMAT_VERSION),
        # Retention removes files.
        "delta.appendOnly": "false",
        "delta.checkpointInterval": str(settings.checkpoint_interval_count),
        "delta.dataSkippingStatsColumns": ",".join(f"`{name}`" for name in STATISTICS_COLUMNS),
        # No tool but our upkeep cleans the log up: a sleeping writer must never find a version
        # number free that was taken.
        "delta.enableExpiredLogCleanup": "false",
        "delta.logRetentionDuration": f"interval {settings.log_retention_hours} hours",
        # Never delta.setTransactionRetentionDuration: transactions are the table's state.
    }


def delta_schema(schema: pa.Schema) -> dict[str, Any]:
    """An Arrow schema as Delta's JSON (protocol document, "Schema Serialization Format")."""
    fields = [
        {
            "name": field.name,
            "type": _delta_type(field.type),
            "nullable": field.nullable,
            "metadata": {},
        }
        for field in schema
    ]
    return {"type": "struct", "fields": fields}


def _delta_type(type_: pa.DataType) -> Any:
    if isinstance(type_, pa.MapType):
        return {
            "type": "map",
            "keyType": _delta_type(type_.key_type),
            "valueType": _delta_type(type_.item_type),
            "valueContainsNull": True,
        }
    return _SIMPLE[type_]


_SIMPLE: Final[dict[pa.DataType, str]] = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
