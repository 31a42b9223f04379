"""The source in real Spark against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.spark.broker_process import BrokerProcess
from tests.integration.spark.queries import finished, numbered, read, stream


def numbers(frame: DataFrame) -> list[int]:
    """The values, sorted."""
    rows = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n").collect()
    return sorted(row.n for row in rows)


def to_files(frame: DataFrame, work: Path, **trigger: Any) -> StreamingQuery:
    """Start writing values into Parquet files, exactly once by Spark's own file sink."""
    writer = frame.select("value").writeStream.format("parquet").option("path", str(work / "out"))
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def in_files(spark: SparkSession, work: Path) -> list[int]:
    return numbers(spark.read.parquet(str(work / "out")))


def test_history_and_tail_are_one_read(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str
) -> None:
    broker = shared_broker
    broker.create(topic, 2)
    numbered(broker, topic, 0, 0, 500)
    numbered(broker, topic, 1, 500, 700)
    broker.roll(topic)
    numbered(broker, topic, 0, 700, 1000)
    frame = read(spark, broker.url, topic)
    assert numbers(frame) == list(range(1000))
    rows = frame.where("partition = 0").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(800))
    assert [bytes(row.key).decode() for row in rows] == [
        str(number) for number in [*range(500), *range(700, 1000)]
    ]
    assert {row.topic for row in rows} == {topic}
    assert {row.producer for row in rows} == {"test"}
    times = [row.append_time for row in rows]
    assert times == sorted(times)


def test_replaying_history_moves_no_payload_byte_through_the_broker(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    broker = shared_broker
    broker.create(topic, 2)
    for partition in (0, 1):
        numbered(broker, topic, partition, partition * 1000, partition * 1000 + 1000)
    broker.roll(topic)
    before = broker.metric("read_payload_bytes_total")
    history = broker.metric("read_history_payload_bytes_total")
    finished(to_files(stream(spark, broker.url, topic), tmp_path))
    assert in_files(spark, tmp_path) == list(range(2000))
    assert broker.metric("read_payload_bytes_total") == before
    assert broker.metric("read_history_payload_bytes_total") == history
    # The counter counts: the tail does come from the broker.
    numbered(broker, topic, 0, 2000, 2010)
    assert numbers(read(spark, broker.url, topic)) == list(range(2010))
    assert broker.metric("read_payload_bytes_total") > before
    assert broker.metric("read_history_payload_bytes_total") == history


def test_a_query_goes_on_where_its_spark_checkpoint_says(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    broker = shared_broker
    broker.create(topic, 2)
    source = {"maxOffsetsPerTrigger": 200}
    for at in range(3):
        numbered(broker, topic, 0, at * 500, at * 500 + 300)
        numbered(broker, topic, 1, at * 500 + 300, at * 500 + 500)
        if at == 1:
            broker.roll(topic)
        query = finished(to_files(stream(spark, broker.url, topic, **source), tmp_path))
        progress = [each for each in query.recentProgress if each.numInputRows]
        # Several micro-batches of bounded size, partitions in step.
        assert [each.numInputRows for each in progress] == [200, 200, 100]
    assert in_files(spark, tmp_path) == list(range(1500))
    newest = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    offsets = json.loads(newest[-1].read_text().splitlines()[-1])
    assert offsets["v"] == 1
    assert offsets["topics"][topic] == {
        "id": broker.lookup(topic).topic_id,
        "next": {"0": 900, "1": 600},
    }


def test_the_broker_shows_the_querys_cursor(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    broker = shared_broker
    broker.create(topic)
    numbered(broker, topic, 0, 0, 100)
    named = {"subscriptionName": "copying"}
    finished(to_files(stream(spark, broker.url, topic, **named), tmp_path))
    numbered(broker, topic, 0, 100, 130)
    request = pb.ListSubscriptionsRequest(topic=topic)
    [found] = broker.admin.ListSubscriptions(request, timeout=20).subscriptions
    assert (found.subscription, found.type) == ("copying", pb.SPARK)
    assert [(each.cursor, each.lag_messages) for each in found.partitions] == [(100, 30)]
    # The run said that it was over, so another may begin at once.
    finished(to_files(stream(spark, broker.url, topic, **named), tmp_path))
    assert in_files(spark, tmp_path) == list(range(130))


def test_a_batch_reads_between_the_offsets_it_is_given(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str
) -> None:
    broker = shared_broker
    broker.create(topic, 2)
    numbered(broker, topic, 0, 0, 100)
    numbered(broker, topic, 1, 100, 200)
    broker.roll(topic)
    frame = read(
        spark,
        broker.url,
        topic,
        startingOffsets=json.dumps({topic: {"0": 90, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 5}}),
    )
    assert numbers(frame) == [*range(90, 100), *range(100, 105)]


def test_two_topics_are_read_as_one_frame(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str
) -> None:
    broker = shared_broker
    for at, name in enumerate((topic, f"{topic}-b")):
        broker.create(name)
        numbered(broker, name, 0, at * 10, at * 10 + 10)
    frame = read(spark, broker.url, f"{topic}, {topic}-b")
    assert numbers(frame) == list(range(20))


def test_a_schema_of_one_column_is_enough(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str
) -> None:
    broker = shared_broker
    broker.create(topic)
    numbered(broker, topic, 0, 0, 100)
    broker.roll(topic)
    numbered(broker, topic, 0, 100, 150)
    reader = spark.read.format("danube").option("serviceUrl", broker.url)
    frame = reader.option("subscribe", topic).schema("offset BIGINT").load()
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(150))
    assert reader.load().count() == 150


def test_an_empty_topic_is_an_empty_frame(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str
) -> None:
    shared_broker.create(topic, 3)
    assert read(spark, shared_broker.url, topic).count() == 0


def test_a_query_lives_through_a_broker_that_is_killed(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    broker.create(topic, 2)
    numbered(broker, topic, 0, 0, 100)
    query = to_files(stream(spark, broker.url, topic), tmp_path, processingTime="0 seconds")
    try:
        query.processAllAvailable()
        broker.kill()
        broker.start()
        numbered(broker, topic, 1, 100, 200)
        query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    assert in_files(spark, tmp_path) == list(range(200))


@pytest.mark.parametrize("named", [{}, {"subscriptionName": "reporting"}])
def test_a_query_that_was_stopped_goes_on_at_once(
    spark: SparkSession,
    shared_broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    named: dict[str, str],
) -> None:
    """Spark kills a stopped query's source without a word, and the broker here would take the
    run for alive for ten minutes."""
    broker = shared_broker
    broker.create(topic)
    for at in range(2):
        numbered(broker, topic, 0, at * 10, at * 10 + 10)
        rows = stream(spark, broker.url, topic, **named)
        query = to_files(rows, tmp_path, processingTime="0 seconds")
        query.processAllAvailable()
        query.stop()
    assert in_files(spark, tmp_path) == list(range(20))


def test_two_live_queries_may_not_share_a_subscription(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    broker = shared_broker
    broker.create(topic)
    options = {"subscriptionName": "mine", "retryTimeoutMs": "500"}
    first, second = (stream(spark, broker.url, topic, **options) for _ in range(2))
    living = to_files(first, tmp_path / "a", processingTime="0 seconds")
    try:
        living.processAllAvailable()
        with pytest.raises(StreamingQueryException, match=r"SubscriptionBusy: .*another run"):
            finished(to_files(second, tmp_path / "b"))
        assert living.isActive
    finally:
        living.stop()


def test_a_topic_created_again_ends_the_query_with_a_sentence(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    broker = shared_broker
    broker.create(topic)
    numbered(broker, topic, 0, 0, 10)
    finished(to_files(stream(spark, broker.url, topic), tmp_path))
    broker.admin.DeleteTopic(pb.DeleteTopicRequest(topic=topic), timeout=20)
    broker.create(topic)
    numbered(broker, topic, 0, 100, 110)
    with pytest.raises(StreamingQueryException, match=r"DataLost: topic .* created again"):
        finished(to_files(stream(spark, broker.url, topic), tmp_path))
    careless = stream(spark, broker.url, topic, failOnDataLoss="false")
    finished(to_files(careless, tmp_path))
    assert in_files(spark, tmp_path) == [*range(10), *range(100, 110)]


def test_a_slip_in_an_option_shows_at_load(spark: SparkSession, topic: str) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
        read(spark, "127.0.0.1:1", topic, startingOffset="earliest")


def test_an_unknown_topic_is_named(spark: SparkSession, shared_broker: BrokerProcess) -> None:
    with pytest.raises(AnalysisException, match=r"no topic /default/nowhere; create it"):
        read(spark, shared_broker.url, "/default/nowhere").count()
