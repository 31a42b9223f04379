"""The writers Spark calls: tasks stage, the driver commits (architecture.md, "Sink").

``commit`` and ``abort`` of a streaming write run on a new object in another process: everything
they need comes with the tasks' messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from danube.core.clock import Clock, IdSource, SystemClock, SystemIds
from danube.core.errors import DanubeError, Unsupported, in_one_line
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.quickack import quick_ack
from spark_sink.broker import Broker
from spark_sink.columns import check_columns
from spark_sink.messages import StagedMessage
from spark_sink.options import SinkOptions
from spark_sink.routing import route, split
from spark_sink.rows import by_topic
from spark_sink.staging import Stager

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

_log = logging.getLogger("danube.spark.sink")


@dataclass(frozen=True, slots=True)
class Transaction:
    """Which batch a task writes for."""

    query_id: str
    run_id: str
    batch_id: int


class _Writer:
    """What both writers do."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, topic=options.topic)
        self._options = options
        self._broker = Broker(options.service_url, options.retry_timeout_s)
        self._clock: Clock = SystemClock()
        self._ids: IdSource = SystemIds()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        quick_ack()

    def _stage(self, transaction: Transaction, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
        task = _task_context()
        label = pb.SinkLabel(
            query_id=transaction.query_id,
            sink_name=self._options.sink_name,
            batch_id=transaction.batch_id,
            run_id=transaction.run_id,
            spark_partition=task.partitionId(),
            attempt=task.taskAttemptId(),
        )
        name = self._options.producer_name
        stager = Stager(
            self._broker, label, producer_name=name, random_bytes=self._ids.random_bytes
        )
        try:
            # Keyless rows go round from batch to batch; tasks and micro-batches start apart.
            turn = task.partitionId() + transaction.batch_id
            for at, batch in enumerate(batches):
                self._add(stager, batch, turn + at)
            parts = stager.finish()
        except DanubeError as error:
            stager.cancel()
            raise in_one_line(error) from None
        except BaseException:
            stager.cancel()
            raise
        return StagedMessage(transaction.query_id, transaction.run_id, transaction.batch_id, parts)

    def _add(self, stager: Stager, batch: pa.RecordBatch, turn: int) -> None:
        for rows in by_topic(
            batch,
            topic=self._options.topic,
            producer=self._options.producer_name,
            now_us=self._clock.now_us(),
        ):
            topic = stager.topic(rows.topic)
            chosen = route(
                rows.records,
                partitions=topic.partitions,
                keyless=turn % topic.partitions,
                explicit=rows.explicit,
                topic=rows.topic,
            )
            for partition, records in split(rows.records, chosen):
                stager.add(topic, partition, records)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], *, streaming: bool) -> None:
        staged = _staged(messages)
        if not staged:
            raise DanubeError("Spark committed a batch without any task's message; run it again")
        try:
            answer = self._broker.commit(
                query_id=staged[0].query_id,
                sink_name=self._options.sink_name,
                batch_id=staged[0].batch_id,
                run_id=staged[0].run_id,
                parts=[part for message in staged for part in message.parts],
                streaming=streaming,
            )
        except DanubeError as error:
            raise in_one_line(error) from None
        for lost in answer.lost:
            _log.error(
                "messages of batch %d for partition %d of %s went with a lost disk after the "
                "batch was decided; they are recorded as lost",
                staged[0].batch_id,
                lost.partition,
                lost.topic,
            )

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Hurry the clean-up. Spark also calls this after a commit that failed with its outcome
        unknown, so the broker undoes nothing that is decided."""
        staged = _staged(messages)
        if not staged:
            return  # no task told who it was; the broker drops its sets after a while
        try:
            self._broker.abort(
                query_id=staged[0].query_id,
                sink_name=self._options.sink_name,
                batch_id=staged[0].batch_id,
                run_id=staged[0].run_id,
                parts=[part for message in staged for part in message.parts],
            )
        except DanubeError as error:
            _log.info("staged sets are left for the broker to drop: %s", error)


class DanubeStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once.

    Args:
        options: the sink's.
        schema: columns of the DataFrame.
        overwrite: True in output mode complete, which is refused.

    Raises:
        Unsupported: output mode complete.
        InvalidRequest: columns that cannot be written.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Unsupported(
                "a topic cannot be written in output mode complete, because messages are never "
                "replaced; use output mode append (with a watermark for aggregations)"
            )
        super().__init__(options, schema)

    # pyspark's own Arrow writers break their base class in the same way.
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Stage one task's rows (executor)."""
        return self._stage(_streaming_transaction(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the batch visible, once, however often Spark repeats it (driver)."""
        self._commit(messages, streaming=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged unless the batch was decided (driver)."""
        self._abort(messages)


class DanubeBatchWriter(_Writer, DataSourceArrowWriter):
    """Appends one DataFrame, all of it or nothing.

    Made on the driver; the same object's copies stage and commit, so the transaction is made here.

    Args:
        options: the sink's.
        schema: columns of the DataFrame.
        overwrite: True in mode overwrite, which is refused.

    Raises:
        Unsupported: mode overwrite.
        InvalidRequest: columns that cannot be written.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Unsupported(
                "a topic cannot be overwritten, because messages are never replaced; use "
                'mode("append")'
            )
        super().__init__(options, schema)
        run_id = uuid.uuid4().hex
        query_id, batch_id = options.transaction or (f"batch-{run_id}", 0)
        self._transaction = Transaction(query_id, run_id, batch_id)

    # pyspark's own Arrow writers break their base class in the same way.
    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Stage one task's rows (executor)."""
        return self._stage(self._transaction, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible (driver)."""
        # A transaction the user named must be remembered like a stream's; one of ours need not.
        self._commit(messages, streaming=self._options.transaction is not None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged (driver)."""
        self._abort(messages)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedMessage]:
    return [message for message in messages if isinstance(message, StagedMessage)]


def _streaming_transaction() -> Transaction:
    task = _task_context()
    query_id = task.getLocalProperty("sql.streaming.queryId")
    batch_id = task.getLocalProperty("streaming.sql.batchId")
    run_id = task.getLocalProperty("spark.jobGroup.id")
    if query_id is None or batch_id is None or run_id is None:
        raise Unsupported(
            "Spark did not tell the task its query, run and batch, without which nothing can be "
            "written exactly once; use Spark 4.2"
        )
    return Transaction(query_id, run_id, int(batch_id))


def _task_context() -> TaskContext:
    from pyspark import TaskContext

    found = TaskContext.get()
    if found is None:
        raise Unsupported("rows can only be staged inside a Spark task")
    return found
