"""A topic's table is an ordinary Delta table: deltalake, DuckDB and Spark read what we wrote.

One table with everything in it: two partitions, a lost range, retention, a Delta checkpoint in the
middle of its history and one at its end, log clean-up, and Delta commits after both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from danube.core.batch import TABLE_SCHEMA
from danube.core.errors import ForeignCommit
from danube.lake.table import LostRange, TopicTable
from danube.objects.local import LocalObjects
from danube.testing.jars import jars
from danube.testing.java import ensure_java
from danube.upkeep.cleaning import clean_log
from danube.upkeep.verify import verify_table
from tests.unit.lake.lake_samples import (
    NAME,
    NOW_US,
    TOPIC,
    HandClock,
    messages,
    open_table,
    part,
)

LOST = LostRange(150, 170, "unproved")
EXPECTED = {0: [*range(100, 150), *range(170, 330)], 1: [*range(80)]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TopicTable:
    store = LocalObjects(tmp_path_factory.mktemp("lake"))
    table = open_table(store, clock=HandClock())
    table.fence({0: 1, 1: 1})
    table.roll([part(0, 100), part(0, 50, partition=1)])
    table.checkpoint()
    table.roll([part(100, 200, lost=[LOST])])
    table.remove(0, 1, table.snapshot.partition_files(0)[:1], 100, maint=0)
    table.roll([part(200, 300)])
    table.checkpoint()
    assert clean_log(table, 2**62) > 0
    table.roll([part(300, 330), part(50, 80, partition=1)])
    return table


def check(found: pa.Table) -> None:
    """The rows, as some reader has them, are the messages that were rolled."""
    found = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
    for partition, offsets in EXPECTED.items():
        rows = found.filter(pc.field("partition") == partition)
        assert rows.column("offset").to_pylist() == offsets
        sent = messages(0, 330).take(pa.array(offsets))
        for name in ("key", "value", "producer", "schema_id"):
            assert rows.column(name).to_pylist() == sent.column(name).to_pylist()
        assert micros(rows, "timestamp") == [NOW_US + offset for offset in offsets]
        attributes = [dict(one or []) or None for one in rows.column("attributes").to_pylist()]
        assert attributes == [{"n": str(o)} if o % 2 else None for o in offsets]
        assert set(rows.column("topic").to_pylist()) == {NAME}


def micros(rows: pa.Table, name: str) -> list[Any]:
    found = rows.column(name).cast(pa.timestamp("us", tz="UTC"))
    return found.cast(pa.int64()).to_pylist()


# -- deltalake -------------------------------------------------------------------------------


def test_deltalake_reads_rows_schema_and_state(table: TopicTable) -> None:
    found = DeltaTable(table.uri)
    assert found.version() == table.snapshot.version
    assert found.metadata().name == NAME
    assert str(found.metadata().id).replace("-", "") == str(TOPIC)
    assert found.metadata().partition_columns == ["partition"]
    rows = found.to_pyarrow_dataset().to_table()
    assert rows.schema.names == TABLE_SCHEMA.names
    check(rows)
    for name, value in table.snapshot.txn.items():
        assert found.transaction_version(name) == value
    assert found.transaction_version("lost/0/0/from") == LOST.start


def test_deltalake_skips_files_by_our_statistics(table: TopicTable) -> None:
    actions = pa.table(DeltaTable(table.uri).get_add_actions(flatten=True))
    ours = {file.path: file for file in table.snapshot.all_files()}
    assert set(actions.column("path").to_pylist()) == set(ours)
    for action in actions.to_pylist():
        file = ours[action["path"]]
        assert (action["min.offset"], action["max.offset"]) == (file.start, file.end - 1)
        assert action["num_records"] == file.rows
        assert action["size_bytes"] == file.size_bytes
        newest = datetime.fromtimestamp(file.max_timestamp_us // 10**6, UTC)
        assert action["max.timestamp"].replace(microsecond=0) == newest
        assert action["max.timestamp"].microsecond == file.max_timestamp_us % 10**6
        assert action["partition.partition"] == file.partition


@pytest.mark.parametrize("how", ["append", "compact", "properties"])
def test_what_another_tool_does_to_a_table_is_noticed_and_can_be_taken_back(
    tmp_path: Path, how: str
) -> None:
    store = LocalObjects(tmp_path)
    table = open_table(store, clock=HandClock())
    table.fence({0: 1})
    for at in range(0, 40, 10):
        table.roll([part(at, at + 10)])
    strange = DeltaTable(table.uri)
    if how == "append":
        write_deltalake(strange, strange.to_pyarrow_dataset().head(5), mode="append")
    elif how == "compact":
        strange.optimize.compact()
    else:
        strange.alter.set_table_properties({"delta.checkpointInterval": "3"})
    version = table.snapshot.version + 1
    with pytest.raises(ForeignCommit, match=rf"version {version} .*delta-rs.*move (\S+)") as caught:
        table.roll([part(40, 50)])
    # As the message says: move that version out of the log, start again, verify.
    named = str(caught.value).partition("move file://")[2].split(" ")[0]
    Path(named).unlink()
    again = open_table(store, seed=1)
    again.fence({0: 2})
    again.roll([part(40, 50, epoch=2)])
    report = verify_table(again.log)
    assert report.ok, report.problems
    assert report.partitions[0].rows == 50


# -- DuckDB ----------------------------------------------------------------------------------


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its Delta extension from pip; it fetches nothing by itself."""
    found = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        connection.load_extension(str(next(found)))
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def test_duckdb_reads_the_table_with_its_own_delta_reader(
    table: TopicTable, duck: duckdb.DuckDBPyConnection
) -> None:
    found = duck.sql("SELECT * FROM delta_scan($uri)", params={"uri": table.uri}).to_arrow_table()
    assert found.schema.names == TABLE_SCHEMA.names
    check(found)


def test_duckdb_skips_files_by_partition_and_by_our_statistics(
    table: TopicTable, duck: duckdb.DuckDBPyConnection
) -> None:
    query = (
        'SELECT count(*), min("offset"), max("offset") '
        f"FROM delta_scan('{table.uri}') WHERE partition = 0 AND \"offset\" BETWEEN 200 AND 249"
    )
    assert duck.sql(query).fetchall() == [(50, 200, 249)]
    ((_, profile),) = duck.sql(f"EXPLAIN ANALYZE {query}").fetchall()
    assert f"Scanning Files: 1/{len(list(table.snapshot.all_files()))}" in profile


def test_duckdb_queries_the_table_as_deltalake_resolves_it(table: TopicTable) -> None:
    topic = DeltaTable(table.uri).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("topic", topic)
        found = connection.execute(
            'SELECT partition, count(*), min("offset"), max("offset") FROM topic '
            "WHERE key = 'key-1'::BLOB GROUP BY partition ORDER BY partition"
        ).fetchall()
    for partition, count, least, most in found:
        offsets = [o for o in EXPECTED[partition] if o % 3 == 1 and o % 5]
        assert (count, least, most) == (len(offsets), offsets[0], offsets[-1])
    assert len(found) == 2


# -- Spark -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.update(ensure_java())
    work = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars("delta"))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
    )
    session = builder.getOrCreate()
    yield session
    session.stop()


def test_spark_reads_the_table_with_its_own_delta_reader(
    table: TopicTable, spark_session: Any
) -> None:
    path = table.uri.removeprefix("file://")
    found = spark_session.read.format("delta").load(path)
    assert found.columns == TABLE_SCHEMA.names
    assert [field.nullable for field in found.schema.fields] == [True] * len(TABLE_SCHEMA)
    check(found.toArrow())
    middle = found.where("partition = 0 AND offset BETWEEN 200 AND 249").count()
    assert middle == 50


def test_spark_streams_the_table_and_reads_its_history(
    table: TopicTable, spark_session: Any, tmp_path: Path
) -> None:
    path = table.uri.removeprefix("file://")
    stream = spark_session.readStream.format("delta").load(path).select("partition", "offset")
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(120)
    rows = spark_session.read.parquet(str(tmp_path / "out")).toArrow()
    for partition, offsets in EXPECTED.items():
        mine = rows.filter(pc.field("partition") == partition)
        assert sorted(mine.column("offset").to_pylist()) == offsets
    history = spark_session.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()
    assert history[0].version == table.snapshot.version
    assert [row.operation for row in history[:3]] == ["WRITE", "WRITE", "DELETE"]
