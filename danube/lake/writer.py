"""Parquet files from stored batches: one partition's contiguous range each, sorted by offset.

Encodings and row groups as measured in the design's storage notes, section 9: zstd 1,
DELTA_BINARY_PACKED for offsets and times, dictionaries only where values repeat, statistics where
readers skip by them, page checksums because ``verify`` reads them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from danube.core.batch import TABLE_SCHEMA
from danube.core.checksum import crc32c
from danube.core.limits import MIB
from danube.lake.settings import LakeSettings
from danube.objects.streaming import Write

# The stubs are older than Arrow.
pc: Final[Any] = pyarrow.compute
arange: Final[Any] = getattr(pa, "arange")  # noqa: B009

STATISTICS: Final = ["offset", "timestamp", "append_time"]
ENCODINGS: Final = dict.fromkeys(STATISTICS, "DELTA_BINARY_PACKED")
DICTIONARIES: Final = ["topic", "producer", "schema_id", "schema_version"]
FILE_SCHEMA: Final = TABLE_SCHEMA.remove(TABLE_SCHEMA.get_field_index("partition"))
"""What a file holds: Delta keeps partition columns in the path alone."""

KEY_SAMPLE_ROWS: Final = 4096
KEY_REPEATS: Final = 4
"""Keys get a dictionary if they repeat this often in a sample: else it costs and saves nothing."""

EXACT_ABOVE_BYTES: Final = MIB
"""Batches below this are counted with the buffers they share."""

SMALL_CHUNK_ROWS: Final = 512
"""Batches smaller than this on average are joined before writing; the copy costs less."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Messages as the journal holds them, at ``base_offset`` and on.

    ``records`` has the columns of ``MESSAGE_SCHEMA``.
    """

    base_offset: int
    append_time_us: int
    records: pa.RecordBatch

    @property
    def end_offset(self) -> int:
        """One above its last offset."""
        return self.base_offset + self.records.num_rows

    def slice(self, start: int, end: int) -> StoredBatch:
        """What of it lies in [start, end). Copies nothing."""
        if start <= self.base_offset and self.end_offset <= end:
            return self
        start = min(max(start, self.base_offset), self.end_offset)
        end = max(min(end, self.end_offset), start)
        rows = self.records.slice(start - self.base_offset, end - start)
        return StoredBatch(start, self.append_time_us, rows)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What the Delta log will say about a Parquet file that was written."""

    start: int
    end: int
    size_bytes: int
    crc32c: int
    min_timestamp_us: int
    max_timestamp_us: int
    min_append_time_us: int
    max_append_time_us: int


def runs(batches: Sequence[StoredBatch], file_bytes: int) -> Iterator[list[StoredBatch]]:
    """Split ascending batches into files: at gaps, and before one would exceed ``file_bytes``.

    A batch that is larger than that by itself is split by rows.
    """
    run: list[StoredBatch] = []
    size = 0
    for batch in _fitting(batches, file_bytes):
        more = _size(batch.records)
        if run and (batch.base_offset != run[-1].end_offset or size + more > file_bytes):
            yield run
            run, size = [], 0
        run.append(batch)
        size += more
    if run:
        yield run


def _fitting(batches: Sequence[StoredBatch], file_bytes: int) -> Iterator[StoredBatch]:
    for batch in batches:
        rows, size = batch.records.num_rows, _size(batch.records)
        if size <= file_bytes or rows == 1:
            if rows:
                yield batch
            continue
        step = max(rows * file_bytes // size, 1)
        for at in range(batch.base_offset, batch.end_offset, step):
            yield batch.slice(at, at + step)


def _size(records: pa.RecordBatch) -> int:
    """Bytes of a batch. The exact count is slow, and needed only where a slice keeps much alive."""
    size = records.get_total_buffer_size()
    return size if size < EXACT_ABOVE_BYTES else records.nbytes


class _Sink(io.RawIOBase):
    """A file that only grows, for Arrow: passes on, counts and checksums what is written."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write
        self.size_bytes = 0
        self.crc32c = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: Any) -> int:
        self._write(data)
        self.crc32c = crc32c(data, self.crc32c)
        self.size_bytes += len(data)
        return len(data)


def write_file(
    run: Sequence[StoredBatch], topic: str, settings: LakeSettings, write: Write
) -> WrittenFile:
    """Encode one contiguous run of batches, passing the file on as it is made.

    Args:
        run: ascending, without gaps, at least one row.
        topic: the topic's name, the same in every row.
        settings: row groups and compression.
        write: takes the file's bytes in order.

    Raises:
        OSError: whatever ``write`` raises.
    """
    table = _table(run, topic)
    sink = _Sink(write)
    with pq.ParquetWriter(
        cast(Any, pa).PythonFile(sink, mode="w"),
        table.schema,
        compression="zstd",
        compression_level=settings.compression_level,
        use_dictionary=cast(Any, _dictionaries(table)),
        column_encoding=cast(Any, ENCODINGS),
        write_statistics=cast(Any, STATISTICS),
        write_page_index=True,
        write_page_checksum=True,
        # Readers get plain Parquet types: a dictionary in memory is no one's schema.
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=_row_group_rows(table, settings))
    least, most = _bounds(table.column("timestamp"))
    times = [batch.append_time_us for batch in run]
    return WrittenFile(
        start=run[0].base_offset,
        end=run[-1].end_offset,
        size_bytes=sink.size_bytes,
        crc32c=sink.crc32c,
        min_timestamp_us=least,
        max_timestamp_us=most,
        min_append_time_us=min(times),
        max_append_time_us=max(times),
    )


def _table(run: Sequence[StoredBatch], topic: str) -> pa.Table:
    messages = pa.Table.from_batches([batch.records for batch in run])
    rows = messages.num_rows
    if rows < len(run) * SMALL_CHUNK_ROWS and len(run) > 1:
        messages = messages.combine_chunks()
    columns: dict[str, Any] = {name: messages.column(name) for name in messages.schema.names}
    columns["topic"] = _constant(topic, rows)
    columns["offset"] = arange(run[0].base_offset, run[0].base_offset + rows)
    columns["append_time"] = _append_times(run)
    fields = [
        field.with_type(columns["topic"].type) if field.name == "topic" else field
        for field in FILE_SCHEMA
    ]
    arrays = [columns[field.name] for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _constant(text: str, rows: int) -> pa.Array[Any]:
    """One value many times, already as the dictionary that the file will hold."""
    indices = pa.repeat(pa.scalar(0, pa.int8()), rows)
    return cast("pa.Array[Any]", pa.DictionaryArray.from_arrays(indices, pa.array([text])))


def _append_times(run: Sequence[StoredBatch]) -> Any:
    type_ = FILE_SCHEMA.field("append_time").type
    lengths = pa.array([batch.records.num_rows for batch in run], pa.int64())
    ends = pc.cast(pc.cumulative_sum(lengths), pa.int64())
    times = pa.array([batch.append_time_us for batch in run], type_)
    encoded = cast(Any, pa.RunEndEncodedArray).from_arrays(ends, times)
    return pc.run_end_decode(encoded)


def _dictionaries(table: pa.Table) -> list[str]:
    keys = table.column("key").slice(0, KEY_SAMPLE_ROWS).drop_null()
    distinct = pc.count_distinct(keys).as_py() if len(keys) else 0
    pays = 0 < distinct * KEY_REPEATS <= len(keys)
    return [*DICTIONARIES, "key"] if pays else DICTIONARIES


def _row_group_rows(table: pa.Table, settings: LakeSettings) -> int:
    per_row = max(table.nbytes // table.num_rows, 1)
    return max(min(settings.row_group_rows, settings.row_group_bytes // per_row), 1)


def _bounds(times: Any) -> tuple[int, int]:
    found = pc.min_max(times.cast(pa.int64())).as_py()
    return found["min"], found["max"]
