"""The batch reader: ``spark.read``, from ``startingOffsets`` to ``endingOffsets``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from danube.wire.quickack import quick_ack
from spark_source.broker import Broker
from spark_source.options import SourceOptions
from spark_source.planning import Planner, Range
from spark_source.positions import EARLIEST, LATEST, Positions
from spark_source.progress import look, require, resolve
from spark_source.readable import readable_errors
from spark_source.schema import target_schema
from spark_source.splits import group
from spark_source.stream import cores, read_partition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DanubeBatchReader(DataSourceReader):
    """Reads what topics hold at the time the query is planned. Registers no cursor.

    Args:
        options: the query's.
        schema: the columns Spark wants, in its order.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options.for_batch()
        self._target = target_schema(schema)
        self._broker = Broker(options.service_url, options.retry_timeout_s)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        quick_ack()

    @readable_errors
    def partitions(self) -> list[InputPartition]:
        """Tasks for the whole read. Spark may ask twice; nothing is changed by it."""
        options = self._options
        planner = Planner(self._broker, fail_on_data_loss=options.fail_on_data_loss)
        states = look(self._broker, options.topics)
        require(states, options.topics)
        ranges: list[Range] = []
        for name, state in states.items():
            first = options.starting or Positions(EARLIEST)
            last = options.ending or Positions(LATEST)
            starts = resolve("startingOffsets", first, name, state, planner)
            ends = resolve("endingOffsets", last, name, state, planner)
            ranges += [
                Range(name, state.topic_id, partition, start, max(start, ends[partition]))
                for partition, start in starts.items()
            ]
        pieces = planner.plan(ranges)
        return list(group(pieces, cores=cores(), at_least=options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task as record batches of exactly Spark's Arrow schema."""
        return read_partition(self._broker, self._options, self._target, partition)
