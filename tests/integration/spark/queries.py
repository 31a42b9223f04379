"""The queries these tests run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.spark.broker_process import BrokerProcess

QUERY_TIMEOUT_S = 120


def read(spark: SparkSession, url: str, topics: str, **options: Any) -> DataFrame:
    """A batch read."""
    reader = spark.read.format("danube").option("serviceUrl", url).option("subscribe", topics)
    return reader.options(**options).load()


def stream(spark: SparkSession, url: str, topics: str, **options: Any) -> DataFrame:
    """A streaming read from the earliest offset."""
    given = {"startingOffsets": "earliest"} | options
    reader = spark.readStream.format("danube").option("serviceUrl", url)
    return reader.option("subscribe", topics).options(**given).load()


def copy(
    spark: SparkSession,
    url: str,
    source: str,
    target: str,
    checkpoint: Path,
    *,
    format: str = "danube",
    continuous: bool = False,
    source_options: dict[str, Any] | None = None,
    **sink_options: Any,
) -> StreamingQuery:
    """Start copying keys and values of one topic into another."""
    rows = stream(spark, url, source, **(source_options or {})).select("key", "value")
    writer = rows.writeStream.format(format).option("serviceUrl", url).option("topic", target)
    writer = writer.option("checkpointLocation", str(checkpoint)).options(**sink_options)
    trigger: Any = {"processingTime": "0 seconds"} if continuous else {"availableNow": True}
    return writer.trigger(**trigger).start()


def finished(query: StreamingQuery) -> StreamingQuery:
    """Wait for the end of a query that ends by itself. Raises what it ended with."""
    assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    return query


def numbered(broker: BrokerProcess, topic: str, partition: int, start: int, end: int) -> None:
    """Publish the values ``start`` … ``end`` - 1, as text, each with itself as its key."""
    values = [str(number) for number in range(start, end)]
    broker.publish(topic, partition, values, keys=values)
