"""One Spark session for all tests here, on this machine's two cores, with three tries per task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from danube.testing.jars import jars
from danube.testing.java import ensure_java
from tests.integration.spark.broker_process import BrokerProcess

REPOSITORY = Path(__file__).parents[3]


def spark_environment() -> dict[str, str]:
    """An environment in which Spark starts and its workers find our packages and test helpers."""
    found = ensure_java()
    paths = [str(REPOSITORY), *filter(None, found.get("PYTHONPATH", "").split(os.pathsep))]
    return found | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def build_session(work: Path) -> SparkSession:
    """A small local session that keeps its files in ``work``."""
    builder = SparkSession.builder.master("local[2,3]").appName("danube-tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        # Small data and many short queries: optimising their code costs more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        # Half the time of a micro-batch's two small files on a local disk.
        # One JVM serves every Spark test of a run, and it finds jars only at its start.
        "spark.jars": ",".join(map(str, jars("delta"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileSystemBasedCheckpointFileManager"
        ),
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Nothing is registered in it: Spark finds ``format("danube")`` by itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        session = build_session(tmp_path_factory.mktemp("spark"))
        yield session
        session.stop()


@pytest.fixture(scope="session")
def shared_broker(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker for the tests that do it no harm. It rolls only when told to."""
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    broker = BrokerProcess(data_dir, log__roll_age_s="3600", dispatch__query_ttl_s="600")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def broker(spark: SparkSession, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of one's own, to kill."""
    found = BrokerProcess(tmp_path / "data", dispatch__query_ttl_s="10")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def topic() -> str:
    """A topic's name nobody else uses."""
    return f"/default/t{os.urandom(6).hex()}"
