"""The sink in real Spark against a real broker: exactly once, whatever fails when."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from danube.core.names import partition_of
from tests.integration.spark.broker_process import BrokerProcess
from tests.integration.spark.faulty import PLACES, FaultySource, happened, inject
from tests.integration.spark.queries import copy, finished, numbered, stream


def copied(broker: BrokerProcess, topic: str) -> list[int]:
    """Every value of a topic, sorted: duplicates and losses show."""
    return sorted(int(value) for values in broker.values(topic) for value in values)


@pytest.fixture
def faulty(spark: SparkSession) -> str:
    spark.dataSource.register(FaultySource)
    return FaultySource.name()


@pytest.fixture
def source(shared_broker: BrokerProcess, topic: str) -> str:
    """A topic with the numbers 0 … 599 in two partitions."""
    shared_broker.create(topic, 2)
    numbered(shared_broker, topic, 0, 0, 300)
    numbered(shared_broker, topic, 1, 300, 600)
    return topic


@pytest.fixture
def target(shared_broker: BrokerProcess, topic: str) -> str:
    """An empty topic of three partitions."""
    name = f"{topic}-out"
    shared_broker.create(name, 3)
    return name


def test_a_stream_is_written_once_over_many_micro_batches_and_restarts(
    spark: SparkSession, shared_broker: BrokerProcess, source: str, target: str, tmp_path: Path
) -> None:
    broker = shared_broker
    limited: dict[str, Any] = {"source_options": {"maxOffsetsPerTrigger": 250}}
    finished(copy(spark, broker.url, source, target, tmp_path, **limited))
    numbered(broker, source, 0, 600, 650)
    finished(copy(spark, broker.url, source, target, tmp_path, **limited))
    assert copied(broker, target) == list(range(650))
    for partition, values in enumerate(broker.values(target)):
        assert {partition_of(value.encode(), 3) for value in values} == {partition}


def test_what_was_written_is_in_the_table_too(
    spark: SparkSession, shared_broker: BrokerProcess, source: str, target: str, tmp_path: Path
) -> None:
    broker = shared_broker
    finished(copy(spark, broker.url, source, target, tmp_path))
    broker.roll(target)
    for info in broker.lookup(target).partitions:
        assert info.rolled_offset == info.durable_offset
    assert copied(broker, target) == list(range(600))


def test_a_batch_write_appends_once_each(
    spark: SparkSession, shared_broker: BrokerProcess, target: str
) -> None:
    broker = shared_broker
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    writer = rows.write.format("danube").option("serviceUrl", broker.url).option("topic", target)
    writer.mode("append").save()
    assert copied(broker, target) == list(range(100))
    for _ in range(2):
        named = writer.option("txnAppId", "job").option("txnVersion", "7")
        named.mode("append").save()
    assert copied(broker, target) == sorted([*range(100), *range(100)])


def test_rows_may_name_their_topic(
    spark: SparkSession, shared_broker: BrokerProcess, source: str, target: str
) -> None:
    broker = shared_broker
    rows = spark.range(10).selectExpr(
        "CAST(id + 1000 AS STRING) AS value",
        f"IF(id % 2 = 0, '{source}', '{target}') AS topic",
        "map('origin', 'spark') AS attributes",
    )
    rows.write.format("danube").option("serviceUrl", broker.url).mode("append").save()
    assert copied(broker, source) == [*range(600), *range(1000, 1010, 2)]
    assert copied(broker, target) == list(range(1001, 1010, 2))


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_output_modes_that_replace_are_refused(
    spark: SparkSession,
    shared_broker: BrokerProcess,
    source: str,
    target: str,
    tmp_path: Path,
    mode: str,
) -> None:
    counts = stream(spark, shared_broker.url, source).groupBy("partition").count()
    rows = counts.selectExpr("CAST(count AS STRING) AS value")
    writer = rows.writeStream.format("danube").option("serviceUrl", shared_broker.url)
    writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path))
    sentence = "does not support Update mode|cannot be written in output mode complete"
    with pytest.raises((StreamingQueryException, AnalysisException), match=sentence):
        finished(writer.outputMode(mode).trigger(availableNow=True).start())
    assert copied(shared_broker, target) == []


def test_a_batch_overwrite_is_refused(
    spark: SparkSession, shared_broker: BrokerProcess, target: str
) -> None:
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value").write.format("danube")
    writer = rows.option("serviceUrl", shared_broker.url).option("topic", target)
    with pytest.raises(AnalysisException, match="cannot be overwritten"):
        writer.mode("overwrite").save()


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before-stage", "after-stage"])
def test_a_task_that_fails_once_is_tried_again_and_its_first_set_stays_invisible(
    spark: SparkSession,
    shared_broker: BrokerProcess,
    source: str,
    target: str,
    tmp_path: Path,
    faulty: str,
    place: str,
) -> None:
    faults = tmp_path / "faults"
    inject(faults, place, "raise")
    options: dict[str, Any] = {"format": faulty, "faultDir": str(faults)}
    finished(copy(spark, shared_broker.url, source, target, tmp_path / "c", **options))
    assert happened(faults, place)
    assert copied(shared_broker, target) == list(range(600))


@pytest.mark.parametrize("place", ["before-commit", "after-commit"])
def test_a_commit_that_fails_is_repeated_by_the_next_run_without_a_duplicate(
    spark: SparkSession,
    shared_broker: BrokerProcess,
    source: str,
    target: str,
    tmp_path: Path,
    faulty: str,
    place: str,
) -> None:
    faults = tmp_path / "faults"
    inject(faults, place, "raise")
    options: dict[str, Any] = {"format": faulty, "faultDir": str(faults)}
    with pytest.raises(StreamingQueryException, match=f"injected {place}"):
        finished(copy(spark, shared_broker.url, source, target, tmp_path / "c", **options))
    # Spark has called abort() too: it drops what is undecided and undoes nothing that is decided.
    visible = list(range(600)) if place == "after-commit" else []
    assert copied(shared_broker, target) == visible
    finished(copy(spark, shared_broker.url, source, target, tmp_path / "c", **options))
    assert copied(shared_broker, target) == list(range(600))


@pytest.mark.parametrize("place", PLACES)
def test_a_broker_killed_at_any_step_costs_the_query_nothing(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    faulty: str,
    place: str,
) -> None:
    broker.create(topic, 2)
    broker.create(f"{topic}-out", 2)
    numbered(broker, topic, 0, 0, 100)
    numbered(broker, topic, 1, 100, 200)
    faults = tmp_path / "faults"
    inject(faults, place, "wait")
    options: dict[str, Any] = {"format": faulty, "faultDir": str(faults)}
    query = copy(spark, broker.url, topic, f"{topic}-out", tmp_path / "c", **options)
    wait_until(lambda: happened(faults, place) or not query.isActive)
    broker.kill()
    broker.start()
    (faults / f"{place}.go").touch()
    finished(query)
    assert copied(broker, f"{topic}-out") == list(range(200))


def test_an_older_spark_checkpoint_is_refused_with_what_to_do(
    spark: SparkSession, shared_broker: BrokerProcess, source: str, target: str, tmp_path: Path
) -> None:
    """The checkpoint was rolled back: its batch 0 is older than the sink's last."""
    broker = shared_broker
    limited: dict[str, Any] = {"source_options": {"maxOffsetsPerTrigger": 400}}
    finished(copy(spark, broker.url, source, target, tmp_path, **limited))
    for folder in ("offsets", "commits"):
        for path in (tmp_path / folder).iterdir():
            if not re.fullmatch(r"\.?metadata.*", path.name):
                path.unlink()
    with pytest.raises(StreamingQueryException, match="danube sinks forget"):
        finished(copy(spark, broker.url, source, target, tmp_path, **limited))
    assert copied(broker, target) == list(range(600))


def wait_until(condition: Any, timeout_s: float = 60.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
