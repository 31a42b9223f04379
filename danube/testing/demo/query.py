"""The demo's Structured Streaming query: flights in, delays per origin and hour out."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WATERMARK: Final = "2 days"
"""The publisher ends a step in all partitions before it begins the next: two partitions are never
further apart than a step and a batch of the query."""

EVENT: Final = "time_hour timestamp, origin string, dep_delay int"
POLL_S: Final = 0.25


def spark_session(work_dir: Path) -> SparkSession:
    """A local session of two threads that writes what it has to say into ``spark.log``."""
    from pyspark.sql import SparkSession

    # A call that Ctrl-C cuts off, or the JVM's end, would be logged with tracebacks.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("danube-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.sql.warehouse.dir", str(work_dir / "warehouse"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    # The JVM and its Python workers inherit this for as long as they live.
    with _stderr_to(work_dir / "spark.log"):
        return builder.getOrCreate()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started in the block write their errors into a file."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def start_delays(
    spark: SparkSession, url: str, source: str, target: str, checkpoint: Path
) -> StreamingQuery:
    """Start the query: an ordinary one, nothing in it is made for the demo."""
    from pyspark.sql import functions as f

    flights = (
        spark.readStream.format("danube")
        .option("serviceUrl", url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("subscriptionName", "delays-query")
        .load()
        .select(f.from_json(f.col("value").cast("string"), EVENT).alias("event"))
        .select("event.*")
    )
    hourly = (
        flights.withWatermark("time_hour", WATERMARK)
        .groupBy(f.window("time_hour", "1 hour"), "origin")
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("total_delay_minutes"),
            f.max("dep_delay").alias("worst_delay_minutes"),
        )
    )
    hour = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour")
    delays = hourly.select(
        f.col("origin").alias("key"),
        f.to_json(f.struct(hour, *hourly.columns[1:])).alias("value"),
    )
    return (
        delays.writeStream.format("danube")
        .queryName("delays")
        .option("serviceUrl", url)
        .option("topic", target)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(processingTime="1 second")
        .start()
    )


@dataclass
class Totals:
    """What the query's progress reports add up to.

    Attributes:
        rows_in: rows read.
        busy_s: seconds that batches took.
        dropped: rows that the watermark dropped; must stay 0.
        batches: batches that did something.
        watermark: event time up to which windows are closed, ISO 8601.
    """

    rows_in: int = 0
    busy_s: float = 0.0
    dropped: int = 0
    batches: int = 0
    watermark: str = ""
    seen: set[int] = field(default_factory=set)

    def add(self, progress: Any) -> None:
        """Count one progress report (a mapping); one that was counted before does nothing."""
        batch = progress["batchId"]
        operators = progress.get("stateOperators") or []
        self.watermark = (progress.get("eventTime") or {}).get("watermark", self.watermark)
        if batch in self.seen or not (progress["numInputRows"] or operators):
            return
        # An idle trigger reports the next batch's number without having run it.
        if not progress["numInputRows"] and not progress["durationMs"].get("addBatch"):
            return
        self.seen.add(batch)
        self.batches += 1
        self.rows_in += progress["numInputRows"]
        self.busy_s += progress["durationMs"].get("triggerExecution", 0) / 1000
        self.dropped += sum(op.get("numRowsDroppedByWatermark", 0) for op in operators)


class Watch:
    """Adds a query's progress up in a thread, and notes when it fails."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.totals = Totals()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="demo-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self.collect()

    def collect(self) -> None:
        """Count every report that is there now."""
        for progress in self.query.recentProgress:
            self.totals.add(progress)

    def check(self) -> None:
        """Raise what ended the query, if something did."""
        error = self.query.exception()
        if error is not None:
            raise RuntimeError(f"the query failed: {error}")

    def stop(self) -> None:
        """Stop watching; the query goes on."""
        self._stop.set()
        self._thread.join()
