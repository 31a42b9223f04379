"""Reading a partition without a seam: memory tail, then journal, then table.

One offset space and three tiers. The index of extents knows what memory and journal hold; what
is below it comes from the topic's Parquet files. The answer is always frames, so consumers never
see which tier served them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from danube.core import telemetry
from danube.core.batch import MESSAGE_SCHEMA
from danube.core.errors import Corruption, OffsetOutOfRange
from danube.core.frames import Frame, encode_frame, read_stored
from danube.core.offsets import OffsetRange
from danube.journal.envelope import Position
from danube.lake.reader import read_file
from danube.log.extents import Extent
from danube.log.partition import PartitionLog

if TYPE_CHECKING:
    from danube.lake.snapshot import FileInfo
    from danube.lake.table import TopicTable

READ_BYTES = telemetry.counter(
    "read_payload_bytes", "Bytes of frames read for clients, by tier.", ("tier",)
)
HISTORY_BYTES = telemetry.counter(
    "read_history_payload_bytes", "Bytes of rolled history served through the broker."
)
TABLE_FRAME_ROWS = 16_384
"""Rows per frame made from Parquet."""


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """One frame as read, and which of its offsets were asked for."""

    base_offset: int
    append_time_us: int
    frame: Frame
    span: OffsetRange


@dataclass(slots=True)
class ReadResult:
    """Frames in offset order, where to go on, and the lost ranges that were stepped over."""

    next_offset: int
    frames: list[StoredFrame] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    bytes: int = 0

    def add(self, item: StoredFrame, tier: str) -> None:
        """Take one more frame."""
        self.frames.append(item)
        size = item.frame.total_bytes
        self.bytes += size
        self.next_offset = item.span.end
        READ_BYTES.labels(tier).inc(size)
        if tier == "table":
            HISTORY_BYTES.inc(size)


class Tabled(Protocol):
    """A topic, of which only its table matters here: None until its first roll."""

    table: TopicTable | None


async def read(
    topic: Tabled, log: PartitionLog, start: int, *, end: int | None = None, max_bytes: int
) -> ReadResult:
    """Read durable messages from offset ``start`` on, about ``max_bytes`` of frames at most.

    Returns at least one frame when there is a message at or after ``start`` below the durable
    offset (and ``end``); fewer bytes than asked for do not mean the end.

    Raises:
        OffsetOutOfRange: ``start`` is below the log start offset or above the durable offset.
        Corruption: stored bytes do not match their checksums, or a message is missing.
    """
    limit = min(log.durable_offset, end if end is not None else log.durable_offset)
    if start < log.log_start or start > log.durable_offset:
        raise OffsetOutOfRange(
            f"offset {start} of {log.record.name} partition {log.partition.partition} is not in "
            f"[{log.log_start}, {log.durable_offset}]; start within it"
        )
    result = ReadResult(start)
    while result.next_offset < limit and result.bytes < max_bytes:
        lost = next(log.lost.within(result.next_offset, limit), None)
        if lost is not None and lost.start == result.next_offset:
            result.lost.append(lost)
            result.next_offset = lost.end
            continue
        stop = min(limit, lost.start) if lost is not None else limit
        if log.state.extents.find(result.next_offset) is not None:
            await _read_tail(log, result, stop, max_bytes)
        else:
            await _read_table(topic, log, result, stop, max_bytes)
    return result


async def _read_tail(log: PartitionLog, result: ReadResult, stop: int, max_bytes: int) -> None:
    """Add frames from memory; at the first that is not there, fetch a run from the journal."""
    missing: list[tuple[Extent, Position]] = []
    room = max_bytes - result.bytes
    at = result.next_offset
    for extent in log.state.extents.after(at):
        if extent.base > at or at >= stop or room <= 0:
            break
        if extent.frame is not None:
            if missing:
                break
            _add(result, extent, extent.frame, stop, "memory")
        elif extent.position is not None:
            missing.append((extent, extent.position))
        else:
            break
        room -= extent.bytes
        at = extent.end
    if missing:
        await _read_journal(log, result, missing, stop)


async def _read_journal(
    log: PartitionLog, result: ReadResult, missing: list[tuple[Extent, Position]], stop: int
) -> None:
    context = log.context
    positions = [position for _, position in missing]
    try:
        frames = await context.workers.read(_fetch, context, positions)
    except Corruption:
        if any(extent.position is None for extent, _ in missing):
            # Rolled, and its segment recycled, while we were on the way: the table has it now.
            return
        raise
    for (extent, _), frame in zip(missing, frames, strict=True):
        _add(result, extent, frame, stop, "journal")


def _fetch(context: object, positions: Sequence[Position]) -> list[Frame]:
    from danube.log.context import LogContext

    assert isinstance(context, LogContext)
    stored = (context.journal.read(position) for position in positions)
    return [read_stored(item.header, item.body) for item in stored]


def _add(result: ReadResult, extent: Extent, frame: Frame, stop: int, tier: str) -> None:
    span = OffsetRange(max(extent.base, result.next_offset), min(extent.end, stop))
    result.add(StoredFrame(extent.base, extent.append_time_us, frame, span), tier)


async def _read_table(
    topic: Tabled, log: PartitionLog, result: ReadResult, stop: int, max_bytes: int
) -> None:
    at, context = result.next_offset, log.context
    table = topic.table
    file = table.snapshot.file_at(log.partition.partition, at) if table is not None else None
    if file is None:
        if log.state.extents.find(at) is not None:
            return
        if table is not None and at < table.snapshot.start(log.partition.partition):
            # Retention has removed it, and whoever ran it has not told us yet.
            log.log_start = max(log.log_start, table.snapshot.start(log.partition.partition))
            raise OffsetOutOfRange(
                f"offset {at} of {log.record.name} partition {log.partition.partition} was removed "
                f"by retention, the log starts at {log.log_start} now; start from there"
            )
        raise Corruption(
            f"offset {at} of {log.record.name} partition {log.partition.partition} is neither in "
            "journal nor table, and no lost range says so; run `danube verify` on the topic"
        )
    stop = min(stop, file.end)
    rows = await context.workers.read(
        _table_frames, context.store, file, log, OffsetRange(at, stop), max_bytes - result.bytes
    )
    for item in rows:
        result.add(item, "table")


def _table_frames(
    store: object, file: FileInfo, log: PartitionLog, wanted: OffsetRange, max_bytes: int
) -> list[StoredFrame]:
    found: list[StoredFrame] = []
    room = max_bytes
    for batch in read_file(store, file, wanted.start, wanted.end):  # type: ignore[arg-type]
        for run in _append_time_runs(batch):
            item = _encode(run, log)
            found.append(item)
            room -= item.frame.total_bytes
        if room <= 0:
            break
    return found


def _append_time_runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split where the append time changes: a frame has one append time."""
    times = batch.column("append_time").cast(pa.int64())
    runs = pc.run_end_encode(times)  # type: ignore[attr-defined]  # the stubs are older
    start = 0
    for end in runs.run_ends.to_pylist():
        for at in range(start, end, TABLE_FRAME_ROWS):
            yield batch.slice(at, min(TABLE_FRAME_ROWS, end - at))
        start = end


def _encode(rows: pa.RecordBatch, log: PartitionLog) -> StoredFrame:
    columns = [rows.column(name) for name in MESSAGE_SCHEMA.names]
    records = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
    frame = encode_frame(
        records,
        topic_id=log.record.topic_id.raw,
        partition=log.partition.partition,
        producer_id=0,
        producer_epoch=0,
        first_sequence=0,
    )
    base = rows.column("offset")[0].as_py()
    append_time_us = rows.column("append_time").cast(pa.int64())[0].as_py()
    span = OffsetRange(base, base + rows.num_rows)
    return StoredFrame(base, append_time_us, frame, span)
