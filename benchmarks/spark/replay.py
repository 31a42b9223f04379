"""Replaying a topic's history with Structured Streaming, beside Spark's own Parquet stream."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import MIB, Bench
from benchmarks.lake.roll import table_directory
from benchmarks.measure import in_turns
from benchmarks.messaging.publishing import publisher
from benchmarks.payloads import SIZES, random_records
from benchmarks.processes import Process
from benchmarks.results import Figure, Row, Setup, compared
from benchmarks.spark.session import run_once, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AT_LEAST = {"1 KiB": 0.9, "100 B": 0.65}
FILE_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, offset BIGINT, timestamp TIMESTAMP, "
    "append_time TIMESTAMP, producer STRING, attributes MAP<STRING, STRING>, schema_id BIGINT, "
    "schema_version INT, partition INT"
)


def run(bench: Bench) -> Iterator[Row]:
    """Both sizes; everything is rolled, so that executors read Parquet and nothing else."""
    with bench.broker() as broker, spark_session(bench.new_directory("spark")) as spark:
        for name, size in SIZES.items():
            yield _replay(bench, broker, spark, name, size)


def _replay(bench: Bench, broker: Process, spark: SparkSession, name: str, size: int) -> Row:
    topic = f"/default/replay-{size}"
    rows, table = _fill(bench, broker, topic, size)
    files = list(table.glob("partition=*/*.parquet"))

    def history() -> DataFrame:
        made = spark.readStream.format("danube").option("serviceUrl", broker.url)
        return made.option("subscribe", topic).option("startingOffsets", "earliest").load()

    def parquet() -> DataFrame:
        return spark.readStream.schema(FILE_SCHEMA).parquet(str(table))

    figures = in_turns(
        {"ours": _reader(bench, history, rows), "peer": _reader(bench, parquet, rows)},
        bench.repeats,
    )
    shutil.rmtree(table)
    return compared(
        bench.name,
        f"Spark replay, {name}",
        Figure.of("rows/s", figures["ours"]),
        Figure.of("rows/s", figures["peer"]),
        Setup(
            payload=f"{name} random",
            batch=f"{rows} rows in {len(files)} Parquet files of one partition, all columns",
            durability="rolled and committed",
            client="readStream.format('danube'), availableNow, noop sink, time of addBatch",
            peer="JVM readStream.parquet on the same files, same columns, trigger, sink and time",
        ),
        at_least=AT_LEAST[name],
    )


def _fill(bench: Bench, broker: Process, topic: str, size: int) -> tuple[int, Path]:
    """Publish and roll; returns how many messages, and the table's directory."""
    total = bench.sizes.replay_mib * MIB
    records = random_records(total, size)
    with bench.entered(publisher(broker.url, topic)) as filled:
        bench.wait(filled.send_batch(records))
        bench.wait(filled.roll())
        return records.num_rows, bench.wait(table_directory(filled.client, topic))


def _reader(bench: Bench, frame: Callable[[], DataFrame], rows: int) -> Callable[[], float]:
    def writer(checkpoint: Path) -> DataStreamWriter:
        return frame().writeStream.format("noop").option("checkpointLocation", str(checkpoint))

    return lambda: run_once(writer, bench.new_directory("checkpoint"), rows)
