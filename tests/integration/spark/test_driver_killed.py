"""The driver killed with SIGKILL before and after every step; and two drivers at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from danube.core.errors import StaleSink
from spark_sink.options import SinkOptions
from spark_sink.writers import DanubeStreamWriter
from tests.integration.spark.broker_process import BrokerProcess
from tests.integration.spark.conftest import REPOSITORY, spark_environment
from tests.integration.spark.faulty import PLACES, happened
from tests.integration.spark.queries import copy, finished, numbered
from tests.unit.spark.test_writers import VALUES, Task, batch

DRIVER_TIMEOUT_S = 150


def run_driver(work: Path, *arguments: str) -> int:
    """Run a driver to its end, whichever that is."""
    command = [sys.executable, "-m", "tests.integration.spark.driver", *arguments, str(work / "s")]
    with (work / "driver.log").open("a") as log:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=spark_environment(), stdout=log, stderr=log,
            timeout=DRIVER_TIMEOUT_S, check=False,
        )  # fmt: skip
    return done.returncode


@pytest.mark.timeout(900)  # each driver is a JVM of its own
def test_a_driver_killed_at_one_step_after_another_loses_and_repeats_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, long_run: bool
) -> None:
    target, checkpoint, faults = f"{topic}-out", tmp_path / "checkpoint", tmp_path / "faults"
    broker.create(topic, 2)
    broker.create(target, 2)
    total = 0
    for place in PLACES if long_run else ("after-stage", "after-commit"):
        numbered(broker, topic, total % 2, total, total + 101)
        total += 101
        ended = run_driver(tmp_path, broker.url, topic, target, str(checkpoint), str(faults), place)
        assert ended == -9, (tmp_path / "driver.log").read_text()[-3000:]
        assert happened(faults, place)
        (faults / f"{place}.reached").unlink()
    finished(copy(spark, broker.url, topic, target, checkpoint))
    found = sorted(int(value) for values in broker.values(target) for value in values)
    assert found == list(range(total))


def test_a_second_driver_on_the_same_checkpoint_fences_the_first(
    shared_broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have staged the same batch when the second commits it."""
    shared_broker.create(topic)
    options = SinkOptions.parse({"serviceUrl": shared_broker.url, "topic": topic})
    writer = DanubeStreamWriter(options, VALUES, overwrite=False)
    query_id = topic.replace("/", "")

    def stage(run_id: str, batch_id: int, value: bytes) -> Any:
        task = Task(
            **{
                "sql.streaming.queryId": query_id,
                "streaming.sql.batchId": str(batch_id),
                "spark.jobGroup.id": run_id,
            }
        )
        monkeypatch.setattr(TaskContext, "get", lambda: task)
        return writer.write(iter([batch([value])]))

    writer.commit([stage("first", 0, b"0")], 0)
    stale = stage("first", 1, b"1 by the first")
    writer.commit([stage("second", 1, b"1")], 1)
    # The same batch: answered as done, and the first's set does not appear.
    try:
        writer.commit([stale], 1)
    except StaleSink:
        pass
    with pytest.raises(StaleSink):
        writer.commit([stage("first", 2, b"2 by the first")], 2)
    writer.commit([stage("second", 2, b"2")], 2)
    assert shared_broker.values(topic) == [["0", "1", "2"]]
