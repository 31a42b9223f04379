"""From Spark's record batches to messages per topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from danube.core.batch import normalise_records
from danube.core.errors import InvalidRequest

_MESSAGE_COLUMNS: Final = ("key", "value", "timestamp", "attributes")


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Messages for one topic and, where the DataFrame has it, the partition each row asks for."""

    topic: str
    records: pa.RecordBatch
    explicit: pa.Array[Any] | None


def by_topic(
    batch: pa.RecordBatch, *, topic: str | None, producer: str, now_us: int
) -> Iterator[TopicRows]:
    """Split ``batch`` by topic.

    Args:
        batch: as Spark hands it over: columns of :data:`spark_sink.columns.WRITABLE`.
        topic: the option, which overrides the column.
        producer: the messages' producer.
        now_us: publish time where there is no column ``timestamp``, microseconds since 1970.

    Raises:
        InvalidRequest: a row has no value or no topic, or an attribute has no text.
    """
    if batch.num_rows == 0:
        return
    if topic is not None:
        yield _rows(batch, topic, producer, now_us)
        return
    names: Any = batch.column("topic")
    if names.null_count:
        raise InvalidRequest(
            "a row has no topic (null); fill the column 'topic' or set the option 'topic'"
        )
    for name in names.unique().to_pylist():
        chosen: Any = pc.equal(names, pa.scalar(name, names.type))
        yield _rows(batch.filter(chosen), name, producer, now_us)


def _rows(batch: pa.RecordBatch, topic: str, producer: str, now_us: int) -> TopicRows:
    present = [name for name in _MESSAGE_COLUMNS if name in batch.schema.names]
    records = normalise_records(batch.select(present), producer=producer, now_us=now_us)
    attributes = cast("pa.MapArray[Any, Any]", records.column("attributes"))
    if attributes.items.null_count:
        raise InvalidRequest(
            "a row has an attribute without text (null); leave it out or give it an empty text"
        )
    explicit = batch.column("partition") if "partition" in batch.schema.names else None
    return TopicRows(topic, records, explicit)
