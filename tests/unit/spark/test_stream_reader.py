"""The streaming reader against a scripted broker: no JVM, the methods Spark calls."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructField, StructType

from danube.core.errors import (
    Corruption,
    DataLost,
    InvalidRequest,
    InvalidSettings,
    SubscriptionBusy,
    TopicNotFound,
    Unavailable,
    Unsupported,
)
from spark_source import cursor
from spark_source.options import SourceOptions
from spark_source.stream import DanubeStreamReader
from tests.unit.spark.columns import EVERY, column, columns
from tests.unit.spark.scripted_broker import ScriptedBroker
from tests.unit.spark.travel import travelled

ALL = ReadAllAvailable()


def reader(
    broker: ScriptedBroker,
    schema: StructType = EVERY,
    subscribe: str = "/ns/t",
    **options: str,
) -> DanubeStreamReader:
    given = {"serviceUrl": broker.url, "subscribe": subscribe, "retryTimeoutMs": "3000"}
    return DanubeStreamReader(SourceOptions.parse(given | options), schema)


def rows(source: DanubeStreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for partition in source.partitions(start, end):
        # As Spark does it: the reader and the partition travel pickled.
        batches += travelled(source).read(travelled(partition))
    return pa.Table.from_batches(batches, schema=source._target)


def values(source: DanubeStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    found: Any = rows(source, start, end).column("value").to_pylist()
    return list(found)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for something another thread does."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def next_of(offsets: dict[str, Any], topic: str = "/ns/t") -> dict[str, int]:
    found: dict[str, int] = offsets["topics"][topic]["next"]
    return found


def test_a_new_query_starts_at_the_latest_offset_unless_told_otherwise(
    broker: ScriptedBroker,
) -> None:
    broker.create("/ns/t", 2)
    broker.append("/ns/t", 1, ["a", "b"])
    assert next_of(reader(broker).initialOffset()) == {"0": 0, "1": 2}
    assert next_of(reader(broker, startingOffsets="earliest").initialOffset()) == {"0": 0, "1": 0}
    exact = '{"/ns/t": {"0": -1, "1": 1}}'
    assert next_of(reader(broker, startingOffsets=exact).initialOffset()) == {"0": 0, "1": 1}


def test_a_start_beyond_the_end_or_in_an_unknown_partition_is_refused(
    broker: ScriptedBroker,
) -> None:
    broker.create("/ns/t")
    with pytest.raises(InvalidSettings, match="ends at 0"):
        reader(broker, startingOffsets='{"/ns/t": {"0": 5}}').initialOffset()
    with pytest.raises(InvalidSettings, match="names partition 1"):
        reader(broker, startingOffsets='{"/ns/t": {"0": 0, "1": 0}}').initialOffset()


def test_every_message_is_read_once_with_its_columns(broker: ScriptedBroker) -> None:
    broker.create("/ns/t", 2)
    broker.append("/ns/t", 0, ["a", "b"], keys=["k", None])
    broker.append("/ns/t", 1, ["c"])
    source = reader(broker, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    table = rows(source, start, end)
    assert table.schema == source._target
    shown = table.select(["key", "value", "topic", "partition", "offset", "producer"])
    assert [tuple(row.values()) for row in shown.to_pylist()] == [
        (b"k", b"a", "/ns/t", 0, 0, "test"),
        (None, b"b", "/ns/t", 0, 1, "test"),
        (None, b"c", "/ns/t", 1, 0, "test"),
    ]


def test_no_new_data_is_told_by_the_same_offset(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    source = reader(broker)
    start = source.initialOffset()
    assert source.latestOffset(start, ALL) == start


def test_only_the_columns_that_were_asked_for_are_read(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a", "b"])
    source = reader(broker, columns("offset", "value"), startingOffsets="earliest")
    start = source.initialOffset()
    table = rows(source, start, source.latestOffset(start, ALL))
    assert table.to_pylist() == [{"offset": 0, "value": b"a"}, {"offset": 1, "value": b"b"}]


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (column("ofset", "long"), "did you mean 'offset'"),
        (column("value", "string"), "CAST"),
        (column("offset", "integer"), "is int64, not int32"),
    ],
)
def test_a_schema_that_topics_do_not_have_is_refused(
    broker: ScriptedBroker, field: StructField, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        reader(broker, StructType([field]))


def test_a_micro_batch_is_limited_in_step_over_partitions(broker: ScriptedBroker) -> None:
    broker.create("/ns/t", 2)
    broker.append("/ns/t", 0, ["x"] * 100)
    broker.append("/ns/t", 1, ["y"] * 300)
    source = reader(broker, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(40)
    start = source.initialOffset()
    first = source.latestOffset(start, limit)
    assert next_of(first) == {"0": 10, "1": 30}
    assert len(values(source, start, first)) == 40


def test_available_now_reads_what_was_there_and_ends(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["x"] * 5)
    source = reader(broker, startingOffsets="earliest")
    source.prepareForTriggerAvailableNow()
    start = source.initialOffset()
    broker.append("/ns/t", 0, ["too late"] * 5)
    first = source.latestOffset(start, ReadMaxRows(3))
    second = source.latestOffset(first, ReadMaxRows(3))
    assert [next_of(first), next_of(second)] == [{"0": 3}, {"0": 5}]
    assert source.latestOffset(second, ReadMaxRows(3)) == second
    assert broker.requests("MoveCursor")[-1].finished


def test_latest_offset_takes_a_limit_so_that_spark_gives_one() -> None:
    assert len(inspect.signature(DanubeStreamReader.latestOffset).parameters) == 3


def test_the_lag_is_reported_from_the_last_look(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    source = reader(broker, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert source.reportLatestOffset() is None
    broker.append("/ns/t", 0, ["a", "b", "c"])
    start = source.initialOffset()
    source.latestOffset(start, ReadMaxRows(1))
    reported = source.reportLatestOffset()
    assert reported is not None
    assert next_of(reported) == {"0": 3}
    assert reported.keys() == start.keys()


# --- the cursor ---------------------------------------------------------------------------------


def test_the_first_call_of_a_run_registers_the_cursor_and_commit_moves_it(
    broker: ScriptedBroker,
) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a", "b"])
    source = reader(broker, startingOffsets="earliest", subscriptionName="mine")
    start = source.initialOffset()
    assert broker.count("RegisterQuery") == 0
    end = source.latestOffset(start, ALL)
    assert broker.cursors["mine"] == {"/ns/t": {0: 0}}
    source.commit(end)
    assert broker.cursors["mine"] == {"/ns/t": {0: 2}}
    assert broker.count("RegisterQuery") == 1


def test_a_generated_name_is_kept_by_the_spark_checkpoint(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    start = reader(broker).initialOffset()
    assert start["sub"]
    again = reader(broker)
    again.latestOffset(start, ALL)
    assert broker.requests("RegisterQuery")[-1].subscription == start["sub"]


def test_two_live_queries_of_one_driver_with_one_name_are_two_runs(
    broker: ScriptedBroker,
) -> None:
    broker.create("/ns/t")
    living = [reader(broker, subscriptionName="mine") for _ in range(2)]
    for source in living:
        source.latestOffset(source.initialOffset(), ALL)
    first, second = broker.requests("RegisterQuery")
    assert first.run_id != second.run_id


def test_a_query_started_again_in_its_driver_goes_on_as_the_same_run(
    broker: ScriptedBroker,
) -> None:
    """Without a word from the first, whose process Spark kills: it is only gone."""
    broker.create("/ns/t")
    start = reader(broker).initialOffset()
    for _ in range(2):
        source = reader(broker)
        source.latestOffset(start, ALL)
        del source
    first, second = broker.requests("RegisterQuery")
    assert first.run_id == second.run_id
    assert broker.count("MoveCursor") == 0


def test_a_query_in_a_long_micro_batch_tells_that_it_lives(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("/ns/t")
    broker.fail("MoveCursor", Unavailable("a beat may be missed"))
    monkeypatch.setattr(cursor, "HEARTBEAT_S", 0.01)
    source = reader(broker, subscriptionName="mine")
    source.latestOffset(source.initialOffset(), ALL)
    broker.wait_for("MoveCursor", 3)
    source.stop()
    assert [request.finished for request in broker.requests("MoveCursor")][-1]


def test_a_run_whose_name_was_taken_ends(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("/ns/t")
    monkeypatch.setattr(cursor, "HEARTBEAT_S", 0.01)
    source = reader(broker, subscriptionName="mine")
    start = source.initialOffset()
    broker.fail("MoveCursor", SubscriptionBusy("another run has it"))
    source.latestOffset(start, ALL)
    run = source._cursor._run
    assert run is not None
    wait_until(lambda: run.taken is not None)
    with pytest.raises(SubscriptionBusy, match="another run has it"):
        source.latestOffset(start, ALL)


def test_two_live_runs_on_one_name_are_refused(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.busy.add("mine")
    source = reader(broker, subscriptionName="mine", retryTimeoutMs="200")
    with pytest.raises(SubscriptionBusy, match="live run"):
        source.latestOffset(source.initialOffset(), ALL)


def test_a_name_that_is_freed_meanwhile_is_taken(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.fail("RegisterQuery", SubscriptionBusy("still held"), SubscriptionBusy("still held"))
    source = reader(broker)
    source.latestOffset(source.initialOffset(), ALL)
    assert broker.count("RegisterQuery") == 3


# --- losses -------------------------------------------------------------------------------------


def test_a_lost_range_ends_the_query_where_it_lies_and_no_earlier(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a", "b"])
    broker.lose("/ns/t", 0, 3)
    broker.append("/ns/t", 0, ["c"])
    source = reader(broker, startingOffsets="earliest")
    start = source.initialOffset()
    before = source.latestOffset(start, ALL)
    assert values(source, start, before) == [b"a", b"b"]
    with pytest.raises(DataLost, match=r"\[2, 5\).*failOnDataLoss"):
        source.latestOffset(before, ALL)


def test_a_lost_range_is_stepped_over_if_that_is_allowed(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a", "b"])
    broker.lose("/ns/t", 0, 1000)
    broker.append("/ns/t", 0, ["c"])
    source = reader(broker, startingOffsets="earliest", failOnDataLoss="false")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(3))
    assert next_of(end) == {"0": 1003}
    assert values(source, start, end) == [b"a", b"b", b"c"]


def test_what_retention_removed_obeys_fail_on_data_loss(broker: ScriptedBroker) -> None:
    topic = broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a", "b"])
    broker.append("/ns/t", 0, ["c", "d"])
    start = reader(broker, startingOffsets="earliest").initialOffset()
    end = reader(broker, startingOffsets="latest").initialOffset()
    topic.partitions[0].log_start = 2
    with pytest.raises(DataLost, match=r"\[0, 2\).*retention"):
        reader(broker).latestOffset(start, ALL)
    with pytest.raises(DataLost, match=r"\[0, 2\).*retention"):
        reader(broker).partitions(start, end)
    careless = reader(broker, failOnDataLoss="false")
    assert values(careless, start, careless.latestOffset(start, ALL)) == [b"c", b"d"]


def test_a_topic_that_was_created_again_is_another_topic(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["old"] * 3)
    start = reader(broker, startingOffsets="latest").initialOffset()
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["new"])
    with pytest.raises(DataLost, match="deleted and created again"):
        reader(broker).latestOffset(start, ALL)
    careless = reader(broker, failOnDataLoss="false")
    end = careless.latestOffset(start, ALL)
    assert next_of(end) == {"0": 1}
    assert values(careless, start, end) == [b"new"]


def test_a_topic_that_was_deleted_obeys_fail_on_data_loss(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    start = reader(broker).initialOffset()
    del broker.topics["/ns/t"]
    with pytest.raises(DataLost, match="was deleted"):
        reader(broker).latestOffset(start, ALL)
    careless = reader(broker, failOnDataLoss="false")
    assert careless.latestOffset(start, ALL) == start


def test_a_log_that_ends_before_what_was_read_obeys_fail_on_data_loss(
    broker: ScriptedBroker,
) -> None:
    topic = broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a", "b", "c"])
    start = reader(broker).initialOffset()
    topic.partitions[0].durable = 1
    with pytest.raises(DataLost, match=r"ends at offset 1.*read up to 3"):
        reader(broker).latestOffset(start, ALL)
    careless = reader(broker, failOnDataLoss="false")
    assert careless.latestOffset(start, ALL) == start


def test_offsets_that_go_backwards_are_refused(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.append("/ns/t", 0, ["a"])
    source = reader(broker)
    late = source.initialOffset()
    early = reader(broker, startingOffsets="earliest").initialOffset()
    with pytest.raises(Corruption, match="goes backwards"):
        source.partitions(late, early)


def test_a_topic_that_is_added_to_a_query_starts_at_its_earliest_offset(
    broker: ScriptedBroker,
) -> None:
    broker.create("/ns/t")
    start = reader(broker).initialOffset()
    other = broker.create("/ns/u")
    broker.append("/ns/u", 0, ["gone"])
    broker.append("/ns/u", 0, ["kept"])
    other.partitions[0].log_start = 1
    source = reader(broker, subscribe="/ns/t,/ns/u")
    end = source.latestOffset(start, ALL)
    assert values(source, start, end) == [b"kept"]


# --- errors -------------------------------------------------------------------------------------


def test_an_unknown_topic_is_named_with_what_to_do(broker: ScriptedBroker) -> None:
    with pytest.raises(TopicNotFound, match="no topic /ns/t; create it"):
        reader(broker).initialOffset()


def test_a_topic_that_keeps_nothing_cannot_be_read(broker: ScriptedBroker) -> None:
    broker.create("/ns/t").reliable = False
    with pytest.raises(Unsupported, match="not a reliable topic"):
        reader(broker).initialOffset()


def test_a_broker_that_is_away_for_a_moment_ends_no_query(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.fail("Lookup", Unavailable("starting"), Unavailable("starting"))
    assert next_of(reader(broker).initialOffset()) == {"0": 0}


def test_a_broker_that_stays_away_ends_the_query_with_one_line(broker: ScriptedBroker) -> None:
    broker.create("/ns/t")
    broker.fail("Lookup", *[Unavailable("starting\nstill")] * 50)
    with pytest.raises(Unavailable) as caught:
        reader(broker, retryTimeoutMs="150").initialOffset()
    lines = "".join(traceback.format_exception(caught.value)).strip().splitlines()
    assert lines[-1].startswith("danube.core.errors.Unavailable: looking up /ns/t at")
    assert lines[-1].endswith("starting still")
    assert "During handling" not in "\n".join(lines)
    assert "direct cause" not in "\n".join(lines)
