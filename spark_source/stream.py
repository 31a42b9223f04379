"""The streaming reader: where a query starts, how far a micro-batch goes, what its tasks read.

Spark makes three instances: one in a driver process that lives as long as the query's run (offset
calls, stateful), one in the planner, and copies of that in executors. What ``latestOffset`` learns
reaches ``read`` only through input partitions.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from danube.core.errors import Corruption, DanubeError
from danube.wire.quickack import quick_ack
from spark_source.broker import Broker
from spark_source.cursor import QueryCursor
from spark_source.fetch import Fetcher
from spark_source.offsets import SourceOffsets, TopicPosition
from spark_source.options import SourceOptions
from spark_source.planning import Planner, Range
from spark_source.positions import LATEST, Positions
from spark_source.progress import TopicState, look, next_offsets, require, resolve
from spark_source.readable import readable_errors, readable_iterator
from spark_source.schema import target_schema
from spark_source.splits import DanubePartition, group

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger("danube.spark.source")


class DanubeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches.

    Args:
        options: the query's.
        schema: the columns Spark wants, in its order.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options.for_stream()
        self._target = target_schema(schema)
        self._broker = Broker(options.service_url, options.retry_timeout_s)
        self._begin_run()

    def _begin_run(self) -> None:
        """Set up what only the driver's instance uses."""
        self._cursor = QueryCursor(self._broker)
        self._states: dict[str, TopicState] = {}
        self._until: dict[str, TopicState] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_options", "_target", "_broker")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_run()
        quick_ack()

    # --- driver --------------------------------------------------------------------------------

    @readable_errors
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts (``startingOffsets``, latest unless given)."""
        positions = self._options.starting or Positions(LATEST)
        states = self._look()
        require(states, self._options.topics)
        subscription = self._options.subscription or f"spark-{uuid.uuid4().hex[:16]}"
        topics = {
            name: TopicPosition(
                state.topic_id,
                resolve("startingOffsets", positions, name, state, self._planner()),
            )
            for name, state in states.items()
        }
        return SourceOffsets(subscription, topics).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, or everything."""
        if self._options.max_offsets_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    @readable_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing that becomes durable from now on belongs to this run."""
        self._until = self._look()

    @readable_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Up to where the next micro-batch reads; ``start`` when there is nothing new.

        The first call of a run takes the query's subscription and sets its cursor to ``start``.
        Later ones move it too: Spark calls ``commit`` only when the next micro-batch has data.
        """
        begin = self._begin(start)
        states = self._look()
        require(states, [name for name in self._options.topics if name not in begin.topics])
        self._cursor.reached(begin, self._topic_ids())
        until = states if self._until is None else self._until
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        following = next_offsets(begin, states, until, max_rows, self._planner()).to_json()
        if following != start:
            return following
        if self._until is not None:
            self._cursor.finish()  # the run is over, and Spark will not say so
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The durable offsets last seen: Spark shows them, and so the lag, in its progress."""
        if not self._states:
            return None
        topics = {
            name: TopicPosition(state.topic_id, state.durable)
            for name, state in self._states.items()
        }
        return SourceOffsets(self._cursor.subscription, topics).to_json()

    @readable_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks for the messages between two offsets; the same ones whenever it is asked."""
        ranges = ranges_between(SourceOffsets.from_json(start), SourceOffsets.from_json(end))
        pieces = self._planner().plan(ranges)
        return list(group(pieces, cores=cores(), at_least=self._options.min_partitions))

    @readable_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Every micro-batch up to ``end`` is done: move the query's cursor."""
        if not self._states:
            self._look()
        self._cursor.reached(self._begin(end), self._topic_ids())

    def stop(self) -> None:
        """Give the subscription back. Spark may not call this: brokers have a time-out."""
        try:
            self._cursor.finish()
        except DanubeError as error:
            _log.info("the end of the run could not be told: %s", error)

    # --- executor ------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task as record batches of exactly Spark's Arrow schema."""
        return read_partition(self._broker, self._options, self._target, partition)

    # --- helpers -------------------------------------------------------------------------------

    def _planner(self) -> Planner:
        return Planner(self._broker, fail_on_data_loss=self._options.fail_on_data_loss)

    def _look(self) -> dict[str, TopicState]:
        self._states = look(self._broker, self._options.topics)
        return self._states

    def _topic_ids(self) -> dict[str, str]:
        return {name: state.topic_id for name, state in self._states.items()}

    def _begin(self, offsets: dict[str, Any]) -> SourceOffsets:
        found = SourceOffsets.from_json(offsets)
        # The option wins over what an earlier run wrote, so that a query can be given a name later.
        name = self._options.subscription or found.subscription
        wanted = set(self._options.topics)
        return SourceOffsets(name, {k: v for k, v in found.topics.items() if k in wanted})


def read_partition(
    broker: Broker, options: SourceOptions, target: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The messages of one task, whichever reader planned it."""
    if not isinstance(partition, DanubePartition):
        return iter(())  # Spark's stand-in for "no partitions" in a batch read
    fetcher = Fetcher(broker, target, options.fail_on_data_loss)
    return readable_iterator(fetcher.read(partition.pieces))


def ranges_between(start: SourceOffsets, end: SourceOffsets) -> list[Range]:
    """What lies between two offsets, per topic partition, in order.

    A topic that was created again in between starts at 0 of its new life, and so does a partition
    that was added.
    """
    ranges: list[Range] = []
    for name, target in sorted(end.topics.items()):
        before = start.topics.get(name)
        known: Mapping[int, int] = {}
        if before is not None and before.topic_id == target.topic_id:
            known = before.next
        for partition, following in sorted(target.next.items()):
            begin = known.get(partition, 0)
            if following < begin:
                raise Corruption(
                    f"the Spark checkpoint goes backwards in partition {partition} of {name}, from "
                    f"{begin} to {following}; restore it, or start with a new one"
                )
            fresh = partition not in known
            ranges.append(Range(name, target.topic_id, partition, begin, following, fresh))
    return ranges


def cores() -> int:
    """How many tasks to aim at: Spark does not tell a Python source, so this machine's cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
