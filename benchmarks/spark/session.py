"""The Spark session of the benchmarks, and what one run of a streaming query took."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danube.testing.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

REPOSITORY = Path(__file__).parents[2]
CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}


@contextmanager
def spark_session(work: Path) -> Iterator[SparkSession]:
    """A session on all cores of this machine that keeps its files in ``work``."""
    os.environ.update(_environment())
    from pyspark.sql import SparkSession

    cores = len(os.sched_getaffinity(0))
    builder = SparkSession.builder.master(f"local[{cores}]").appName("danube-benchmarks")
    for name, value in CONFIGURATION.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(work / "local"))
    builder = builder.config("spark.sql.warehouse.dir", str(work / "warehouse"))
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _environment() -> dict[str, str]:
    found = ensure_java()
    paths = [str(REPOSITORY), *filter(None, found.get("PYTHONPATH", "").split(os.pathsep))]
    return found | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run_once(writer: Callable[[Path], DataStreamWriter], checkpoint: Path, rows: int) -> float:
    """Run a query to its end with a fresh Spark checkpoint; returns rows per second of addBatch.

    The time of addBatch is that of reading, moving and writing rows; starting a query and planning
    a micro-batch is not in it. Raises RuntimeError unless the query saw exactly ``rows`` rows.
    """
    query = writer(checkpoint).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        progress: list[Any] = list(query.recentProgress)
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    seen = sum(each["numInputRows"] for each in progress)
    if seen != rows:
        raise RuntimeError(f"the query read {seen} rows, not {rows}")
    busy = [each for each in progress if each["numInputRows"]]
    busy_ms = sum(int(each["durationMs"]["addBatch"]) for each in busy)
    return rows * 1000 / busy_ms
