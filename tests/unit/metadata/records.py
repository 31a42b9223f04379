"""Records that the tests of the catalog begin with."""

from __future__ import annotations

from typing import Any

from danube.core.names import TopicId, TopicName
from danube.metadata.catalog import Catalog, TopicRecord


def topic_record(catalog: Catalog, name: str, /, **changes: Any) -> TopicRecord:
    """A topic with a fresh id."""
    fields: dict[str, Any] = {
        "name": TopicName.parse(name),
        "topic_id": catalog.new_topic_id(),
        "partitions": 1,
        "partitioned": False,
        "reliable": True,
        "durability": "disk",
        "max_message_bytes": 1000,
        "retention_ms": None,
        "retention_bytes": None,
        "retention_until_acked": False,
        "created_us": 1,
    }
    return TopicRecord(**fields | changes)


async def created(catalog: Catalog, name: str, /, **changes: Any) -> TopicRecord:
    """A topic that exists."""
    record, new = await catalog.create_topic(topic_record(catalog, name, **changes))
    assert new
    return record


def some_id(number: int) -> TopicId:
    """A topic id."""
    return TopicId(number.to_bytes(16, "big"))
