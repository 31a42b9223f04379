"""Writing a stream to a topic, exactly once and durable, beside writing it to Parquet files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import MIB, Bench
from benchmarks.measure import in_turns
from benchmarks.messaging.publishing import TOPIC, Publisher, publisher
from benchmarks.payloads import SIZES, random_records
from benchmarks.processes import Process
from benchmarks.results import Figure, Row, Setup, compared
from benchmarks.spark.session import run_once, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FILES = 4


def run(bench: Bench) -> Iterator[Row]:
    """Both sizes, from uncompressed Parquet files that Spark streams."""
    with (
        bench.broker() as broker,
        bench.entered(publisher(broker.url)) as topic,
        spark_session(bench.new_directory("spark")) as spark,
    ):
        for name, size in SIZES.items():
            yield _sink(bench, broker, topic, spark, name, size)


def _sink(
    bench: Bench, broker: Process, topic: Publisher, spark: SparkSession, name: str, size: int
) -> Row:
    source = bench.new_directory("source")
    rows = _write_source(source, bench.sizes.sink_mib * MIB, size)

    def frame() -> DataFrame:
        return spark.readStream.schema("value BINARY").parquet(str(source))

    figures = in_turns(
        {
            "ours": _to_topic(bench, broker, topic, frame, rows),
            "peer": _to_parquet(bench, frame, rows),
        },
        bench.repeats,
    )
    shutil.rmtree(source)
    return compared(
        bench.name,
        f"Spark sink, {name}",
        Figure.of("rows/s", figures["ours"]),
        Figure.of("rows/s", figures["peer"]),
        Setup(
            payload=f"{name} random",
            batch=f"{rows} rows from {FILES} uncompressed Parquet files in one micro-batch",
            durability="exactly once, disk: staged, pinned, decided, committed",
            client="writeStream.format('danube'), availableNow, time of addBatch",
            peer="writeStream.format('parquet') of the same stream, snappy, not synced",
        ),
        goal="no target yet",
    )


def _write_source(directory: Path, total_bytes: int, size: int) -> int:
    rows = 0
    for number in range(FILES):
        records = random_records(total_bytes // FILES, size)
        table = pa.Table.from_batches([records])
        pq.write_table(
            table, directory / f"{number}.parquet", compression="none", use_dictionary=False
        )
        rows += records.num_rows
    return rows


def _to_topic(
    bench: Bench, broker: Process, topic: Publisher, frame: Callable[[], DataFrame], rows: int
) -> Callable[[], float]:
    def writer(checkpoint: Path) -> DataStreamWriter:
        made = frame().writeStream.format("danube").option("serviceUrl", broker.url)
        return made.option("topic", TOPIC).option("checkpointLocation", str(checkpoint))

    def write() -> float:
        rate = run_once(writer, bench.new_directory("checkpoint"), rows)
        bench.wait(topic.roll())
        return rate

    return write


def _to_parquet(bench: Bench, frame: Callable[[], DataFrame], rows: int) -> Callable[[], float]:
    def write() -> float:
        target = bench.new_directory("parquet")

        def writer(checkpoint: Path) -> DataStreamWriter:
            made = frame().writeStream.format("parquet").option("path", str(target))
            return made.option("checkpointLocation", str(checkpoint))

        rate = run_once(writer, bench.new_directory("checkpoint"), rows)
        shutil.rmtree(target)
        return rate

    return write
