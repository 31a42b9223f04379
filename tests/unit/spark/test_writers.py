"""The writers against a scripted broker: no JVM, the methods Spark calls in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from danube.core.errors import (
    InvalidRequest,
    InvalidSettings,
    MessageTooLarge,
    StaleSink,
    TopicReplaced,
    Unavailable,
    Unsupported,
)
from danube.core.frames import decode_frame, parse_frame
from spark_sink import staging
from spark_sink.messages import StagedMessage
from spark_sink.options import SinkOptions
from spark_sink.writers import DanubeBatchWriter, DanubeStreamWriter
from tests.unit.spark.scripted_broker import ScriptedBroker
from tests.unit.spark.travel import travelled

KEYED = StructType([StructField("key", StringType()), StructField("value", StringType())])
VALUES = StructType([StructField("value", BinaryType())])


class Task:
    """What a task can ask Spark."""

    def __init__(self, **properties: str) -> None:
        self.partition = 0
        self.attempt = 0
        self.properties = {
            "sql.streaming.queryId": "query-1",
            "streaming.sql.batchId": "0",
            "spark.jobGroup.id": "run-1",
        } | properties

    def partitionId(self) -> int:
        return self.partition

    def taskAttemptId(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    found = Task()
    monkeypatch.setattr(TaskContext, "get", lambda: found)
    return found


def options(broker: ScriptedBroker, **more: str) -> SinkOptions:
    given = {"serviceUrl": broker.url, "topic": "/ns/t", "retryTimeoutMs": "3000"} | more
    return SinkOptions.parse({name: value for name, value in given.items() if value})


def stream_writer(
    broker: ScriptedBroker, schema: StructType = VALUES, **more: str
) -> DanubeStreamWriter:
    return DanubeStreamWriter(options(broker, **more), schema, overwrite=False)


def batch(values: Iterable[Any], **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values), **columns})


def write(writer: DanubeStreamWriter | DanubeBatchWriter, *batches: pa.RecordBatch) -> Any:
    # As Spark does it: writer and message travel pickled.
    return travelled(travelled(writer).write(iter(batches)))


def test_a_staged_batch_is_invisible_until_its_commit(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a", b"b"]), batch([b"c"]))
    assert broker.values("/ns/t", 0) == []
    stream_writer(broker).commit([message], 0)
    assert broker.values("/ns/t", 0) == [b"a", b"b", b"c"]


def test_the_label_names_query_run_batch_partition_and_attempt(
    broker: ScriptedBroker, task: Task
) -> None:
    broker.create("/ns/t")
    task.partition, task.attempt = 3, 17
    message = write(stream_writer(broker), batch([b"a"]))
    label = broker.requests("Stage")[0].label
    assert (label.query_id, label.run_id, label.batch_id) == ("query-1", "run-1", 0)
    assert (label.sink_name, label.spark_partition, label.attempt) == ("/ns/t", 3, 17)
    assert (message.query_id, message.run_id, message.batch_id) == ("query-1", "run-1", 0)


def test_the_sink_name_is_option_then_topic_then_default(broker: ScriptedBroker) -> None:
    assert options(broker).sink_name == "/ns/t"
    assert options(broker, sinkName="mine").sink_name == "mine"
    assert options(broker, topic="").sink_name == "default"


def test_a_commit_that_is_repeated_adds_nothing(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    for _ in range(2):
        stream_writer(broker).commit([message], 0)
    assert broker.values("/ns/t", 0) == [b"a"]


def test_a_commit_is_repeated_while_the_broker_is_away(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    broker.fail("CommitBatch", Unavailable("an owner is down"), Unavailable("an owner is down"))
    stream_writer(broker).commit([message], 0)
    assert broker.values("/ns/t", 0) == [b"a"]


def test_a_commit_gives_up_after_the_time_out_with_one_line(
    broker: ScriptedBroker, task: Task
) -> None:
    broker.create("/ns/t")
    writer = stream_writer(broker, retryTimeoutMs="200")
    message = write(writer, batch([b"a"]))
    broker.fail("CommitBatch", *[Unavailable("an owner\nis down")] * 50)
    with pytest.raises(Unavailable, match=r"committing batch 0 .* an owner is down$"):
        writer.commit([message], 0)


def test_an_older_batch_is_not_tried_again(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    broker.fail("CommitBatch", StaleSink("danube sinks forget query-1"))
    with pytest.raises(StaleSink, match="danube sinks forget"):
        stream_writer(broker).commit([message], 0)
    assert broker.count("CommitBatch") == 1


def test_an_abort_after_a_decision_undoes_nothing(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    stream_writer(broker).commit([message], 0)
    stream_writer(broker).abort([message], 0)
    assert broker.values("/ns/t", 0) == [b"a"]


def test_an_abort_drops_what_tasks_staged_and_bears_failed_ones(
    broker: ScriptedBroker, task: Task
) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    stream_writer(broker).abort([None, message], 0)
    assert broker.staged == {}
    stream_writer(broker).abort([None], 0)
    assert broker.count("AbortBatch") == 1


def test_an_abort_that_fails_is_no_error_of_the_query(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    broker.fail("AbortBatch", Unavailable("away"))
    stream_writer(broker).abort([message], 0)


def test_an_empty_batch_commits(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker))
    stream_writer(broker).commit([message], 0)
    assert broker.requests("CommitBatch")[0].batch_id == 0
    assert broker.count("Stage") == 0


def test_a_set_that_a_broken_stream_cut_off_is_staged_again_under_a_new_id(
    broker: ScriptedBroker, task: Task
) -> None:
    broker.create("/ns/t")
    broker.fail("Stage", Unavailable("killed"), Unavailable("starting"))
    message = write(stream_writer(broker), batch([b"a"]))
    stream_writer(broker).commit([message], 0)
    assert broker.values("/ns/t", 0) == [b"a"]
    assert len({opening.set_id for opening in broker.requests("Stage")}) == 3


def test_a_topic_created_again_under_a_task_fails_it(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    broker.fail("Stage", TopicReplaced("/ns/t has another id now"))
    with pytest.raises(TopicReplaced):
        write(stream_writer(broker), batch([b"a"]))


def test_a_large_batch_is_staged_in_sets_and_frames_of_bounded_size_in_order(
    broker: ScriptedBroker, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SET_BYTES", 200_000)
    monkeypatch.setattr(staging, "TARGET_FRAME_BYTES", 50_000)
    monkeypatch.setattr(staging, "IN_FLIGHT_BYTES", 400_000)
    broker.create("/ns/t")
    values = [f"{at:06d}".encode() * 100 for at in range(2000)]
    message = write(
        stream_writer(broker), *(batch(values[at : at + 50]) for at in range(0, 2000, 50))
    )
    assert len(message.parts) > 4
    assert all(len(frame) < 70_000 for _, frames in broker.staged.values() for frame in frames)
    stream_writer(broker).commit([message], 0)
    assert broker.values("/ns/t", 0) == values


def test_memory_over_many_partitions_is_bounded(
    broker: ScriptedBroker, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "COLLECTED_BYTES", 10_000)
    broker.create("/ns/t", 16)
    schema = StructType([*VALUES.fields, StructField("partition", IntegerType())])
    rows = [batch([b"x" * 100] * 16, partition=pa.array(range(16), pa.int32())) for _ in range(100)]
    message = write(stream_writer(broker, schema), *rows)
    assert len(message.parts) > 16
    assert sum(part.count for part in message.parts) == 1600


def test_a_message_above_the_topics_limit_is_refused_before_it_is_sent(
    broker: ScriptedBroker, task: Task
) -> None:
    broker.create("/ns/t").max_message_bytes = 1000
    with pytest.raises(MessageTooLarge, match=r"a row has 2\d\d\d bytes; /ns/t takes"):
        write(stream_writer(broker), batch([b"x" * 2000]))
    assert broker.count("Stage") == 0


def test_keys_go_to_their_partitions_and_rows_without_are_spread(
    broker: ScriptedBroker, task: Task
) -> None:
    broker.create("/ns/t", 3)
    keys = ["a", "order-123", "payment", "shipping"]
    message = write(stream_writer(broker, KEYED), batch(keys, key=keys))
    stream_writer(broker, KEYED).commit([message], 0)
    assert [broker.values("/ns/t", part) for part in range(3)] == [
        [b"order-123", b"payment"],
        [b"a"],
        [b"shipping"],
    ]
    task.properties["streaming.sql.batchId"] = "1"
    spread = write(stream_writer(broker), *(batch([b"x"]) for _ in range(3)))
    assert sorted(part.partition for part in spread.parts) == [0, 1, 2]


def test_the_topic_column_routes_rows(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    broker.create("/ns/u")
    schema = StructType([*VALUES.fields, StructField("topic", StringType())])
    writer = stream_writer(broker, schema, topic="")
    message = write(writer, batch([b"1", b"2", b"3"], topic=["/ns/t", "/ns/u", "/ns/t"]))
    writer.commit([message], 0)
    assert broker.values("/ns/t", 0) == [b"1", b"3"]
    assert broker.values("/ns/u", 0) == [b"2"]
    with pytest.raises(InvalidRequest, match="no topic"):
        write(writer, batch([b"1"], topic=pa.array([None], pa.string())))


def test_a_row_without_a_value_is_refused(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    with pytest.raises(InvalidRequest, match="no value"):
        write(stream_writer(broker), batch(pa.array([b"a", None], pa.binary())))


def test_attributes_arrive(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    kind = MapType(StringType(), StringType())
    schema = StructType([*VALUES.fields, StructField("attributes", kind)])
    attributes = pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string()))
    write(stream_writer(broker, schema), batch([b"x", b"y"], attributes=attributes))
    [(_, [frame])] = broker.staged.values()
    sent = decode_frame(parse_frame(frame)).column("attributes")
    assert sent.to_pylist() == [[("a", "1")], None]
    broken = pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidRequest, match="attribute without text"):
        write(stream_writer(broker, schema), batch([b"x"], attributes=broken))


# --- what is refused on the driver --------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (StructField("valeu", StringType()), "did you mean 'value'"),
        (StructField("value", LongType()), "make it string or binary"),
        (StructField("offset", LongType()), "set by the broker"),
        (StructField("key", StringType()), "no column 'value'"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    broker: ScriptedBroker, field: StructField, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        stream_writer(broker, StructType([field]))


def test_a_topic_must_come_from_option_or_column(broker: ScriptedBroker) -> None:
    with pytest.raises(InvalidRequest, match="set the option 'topic'"):
        stream_writer(broker, topic="")


def test_overwriting_is_refused_with_a_sentence(broker: ScriptedBroker) -> None:
    with pytest.raises(Unsupported, match="output mode complete"):
        DanubeStreamWriter(options(broker), VALUES, overwrite=True)
    with pytest.raises(Unsupported, match='mode\\("append"\\)'):
        DanubeBatchWriter(options(broker), VALUES, overwrite=True)


def test_a_sink_option_that_is_misspelt_or_of_the_source_is_refused(
    broker: ScriptedBroker,
) -> None:
    with pytest.raises(InvalidSettings, match="did you mean 'sinkName'"):
        options(broker, sinkname2="x")
    with pytest.raises(InvalidSettings, match="belongs to the source"):
        options(broker, subscribe="/ns/t")
    with pytest.raises(InvalidSettings, match="go together"):
        options(broker, txnAppId="x")


# --- batch writes -------------------------------------------------------------------------------


def batch_writer(broker: ScriptedBroker, **more: str) -> DanubeBatchWriter:
    return DanubeBatchWriter(options(broker, **more), VALUES, overwrite=False)


def test_a_batch_write_is_one_transaction_of_its_own(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    for _ in range(2):
        writer = batch_writer(broker)
        messages = [write(writer, batch([b"a"])), write(writer, batch([b"b"]))]
        travelled(writer).commit(messages)
    assert broker.values("/ns/t", 0) == [b"a", b"b"] * 2
    first, second = broker.requests("CommitBatch")
    assert first.query_id != second.query_id
    assert not first.streaming


def test_a_named_transaction_happens_once(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    for version in ("7", "7", "9"):
        writer = batch_writer(broker, txnAppId="job", txnVersion=version)
        writer.commit([write(writer, batch([version.encode()]))])
    assert broker.values("/ns/t", 0) == [b"7", b"9"]
    assert all(request.streaming for request in broker.requests("CommitBatch"))
    writer = batch_writer(broker, txnAppId="job", txnVersion="8")
    with pytest.raises(StaleSink):
        writer.commit([write(writer, batch([b"8"]))])


def test_a_commit_without_messages_is_refused(broker: ScriptedBroker) -> None:
    with pytest.raises(Exception, match="without any task's message"):
        stream_writer(broker).commit([None], 0)


def test_a_task_outside_of_spark_is_refused(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    with pytest.raises(Unsupported, match="inside a Spark task"):
        stream_writer(broker).write(iter([]))


def test_messages_are_plain_data(broker: ScriptedBroker, task: Task) -> None:
    broker.create("/ns/t")
    message = write(stream_writer(broker), batch([b"a"]))
    assert isinstance(message, StagedMessage)
    assert message == travelled(message)
