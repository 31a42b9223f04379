"""Proves that a table is the log: every offset once, in order, or recorded as lost; every file
readable to its last page and equal to what the Delta log says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from danube.core.checksum import crc32c
from danube.core.errors import DanubeError
from danube.core.limits import MIB
from danube.core.offsets import RangeSet
from danube.core.stores import ObjectStore
from danube.lake.reader import read_file
from danube.lake.replay import TableLog
from danube.lake.snapshot import FileInfo, LostRange, Snapshot

# The stubs are older than Arrow.
pc: Final[Any] = pyarrow.compute

PIECE_BYTES: Final = 8 * MIB
MAX_PROBLEMS: Final = 1000
"""After this many problems the rest is not reported, only that there is more."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition: [``start``, ``off``) holds ``rows`` messages in ``files`` files."""

    start: int
    off: int
    rows: int
    files: int
    lost: tuple[LostRange, ...]


@dataclass(slots=True)
class VerifyReport:
    """The whole table. It is proved if ``problems`` is empty."""

    version: int
    partitions: dict[int, PartitionReport] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def note(self, problem: str) -> None:
        """Add a problem, up to a bound."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        elif len(self.problems) == MAX_PROBLEMS:
            self.problems.append("… and more")


def verify_table(
    log: TableLog,
    *,
    durable: Mapping[int, int] | None = None,
    progress: Callable[[FileInfo], None] | None = None,
) -> VerifyReport:
    """Read a table from its log and every file of it in full.

    Args:
        log: the table's; it is read anew.
        durable: per partition the durable offset, which no rolled offset may exceed.
        progress: called before each file.

    Raises:
        ObjectNotFound: there is no table.
        Corruption, ForeignCommit: the log itself cannot be read.
    """
    snapshot = log.load().snapshot
    report = VerifyReport(snapshot.version)
    for partition in snapshot.partitions():
        for problem in layout_problems(snapshot, partition):
            report.note(f"partition {partition}: {problem}")
        if durable is not None and snapshot.off(partition) > durable.get(partition, 0):
            report.note(
                f"partition {partition}: off {snapshot.off(partition)} is above the durable "
                f"offset {durable.get(partition, 0)}"
            )
        _verify_files(log, snapshot, partition, report, progress)
    return report


def layout_problems(snapshot: Snapshot, partition: int) -> list[str]:
    """What is wrong with one partition by the Delta log alone; reads no file."""
    found: list[str] = []
    start, off = snapshot.start(partition), snapshot.off(partition)
    lost = snapshot.lost_set(partition)
    if start > off:
        found.append(f"start {start} is above off {off}")
    if sum(len(range(x.start, x.end)) for x in snapshot.lost(partition)) != lost.total():
        found.append("recorded lost ranges overlap")
    covered = RangeSet()
    at = start
    for file in snapshot.partition_files(partition):
        if file.start < at:
            found.append(f"{file.path} begins at {file.start}, before {at}: offsets appear twice")
        at = max(at, file.end)
        inside = sum(len(x) for x in lost.within(file.start, file.end))
        if file.rows + inside != file.end - file.start:
            found.append(
                f"{file.path} has {file.rows} rows for [{file.start}, {file.end}) with {inside} "
                "lost offsets"
            )
        covered.add(file.start, file.end)
    if at > off:
        found.append(f"files reach {at}, above off {off}")
    for gap in covered.gaps(start, max(start, off)):
        found.extend(f"offsets {missing} are missing" for missing in lost.gaps(gap.start, gap.end))
    return found


def _verify_files(
    log: TableLog,
    snapshot: Snapshot,
    partition: int,
    report: VerifyReport,
    progress: Callable[[FileInfo], None] | None,
) -> None:
    rows, newest_us = 0, -(2**63)
    lost = snapshot.lost_set(partition)
    files = snapshot.partition_files(partition)
    for file in files:
        if progress is not None:
            progress(file)
        try:
            seen = _read_through(log.store, file, log.name, lost)
        except DanubeError as error:
            report.note(f"partition {partition}: {error}")
            continue
        rows += seen.rows
        for problem in seen.problems(file):
            report.note(f"partition {partition}: {file.path}: {problem}")
        if seen.first_append_us < newest_us:
            report.note(f"partition {partition}: {file.path}: append time goes back")
        newest_us = max(newest_us, seen.append_us[1])
    report.partitions[partition] = PartitionReport(
        snapshot.start(partition),
        snapshot.off(partition),
        rows,
        len(files),
        snapshot.lost(partition),
    )


@dataclass(slots=True)
class _Seen:
    """What a file was found to hold."""

    next_offset: int
    rows: int = 0
    first_append_us: int = 2**63 - 1
    last_append_us: int = -(2**63)
    timestamp_us: tuple[int, int] = (2**63 - 1, -(2**63))
    append_us: tuple[int, int] = (2**63 - 1, -(2**63))
    wrong: list[str] = field(default_factory=list)

    def problems(self, file: FileInfo) -> list[str]:
        found = list(dict.fromkeys(self.wrong))
        told = (file.min_timestamp_us, file.max_timestamp_us)
        told_append = (file.min_append_time_us, file.max_append_time_us)
        if self.rows != file.rows:
            found.append(f"it has {self.rows} rows, the Delta log says {file.rows}")
        if self.next_offset != file.end:
            found.append(f"it ends at {self.next_offset}, the Delta log says {file.end}")
        if self.timestamp_us != told:
            found.append(f"its timestamps span {self.timestamp_us}, the Delta log says {told}")
        if self.append_us != told_append:
            found.append(f"append times span {self.append_us}, the Delta log says {told_append}")
        return found


def _read_through(store: ObjectStore, file: FileInfo, topic: str, lost: RangeSet) -> _Seen:
    """Read a whole file: its bytes against the Delta log's checksum, its rows one by one."""
    seen = _Seen(file.start)
    size, checksum = _checksum(store, file)
    if size != file.size_bytes:
        seen.wrong.append(f"it has {size} bytes, the Delta log says {file.size_bytes}")
    elif file.crc32c not in (checksum, -1):
        seen.wrong.append("its bytes do not have the checksum in the Delta log")
    for batch in read_file(store, file, 0, 2**63 - 1, verify=True):
        _look(batch, seen, topic, lost)
    return seen


def _checksum(store: ObjectStore, file: FileInfo) -> tuple[int, int]:
    """Size and crc32c of an object, read in pieces."""
    size, checksum = 0, 0
    while piece := store.get_range(file.key, size, PIECE_BYTES):
        size += len(piece)
        checksum = crc32c(piece, checksum)
    return size, checksum


def _look(batch: pa.RecordBatch, seen: _Seen, topic: str, lost: RangeSet) -> None:
    offsets = batch.column("offset")
    _follow(offsets, seen, lost)
    times = _microseconds(batch, "timestamp")
    seen.timestamp_us = _widened(seen.timestamp_us, times)
    appended = _microseconds(batch, "append_time")
    seen.append_us = _widened(seen.append_us, appended)
    if not seen.rows:
        seen.first_append_us = appended[0].as_py()
    steps = pc.pairwise_diff(appended).drop_null()
    if appended[0].as_py() < seen.last_append_us or (pc.min(steps).as_py() or 0) < 0:
        seen.wrong.append("append time goes back")
    seen.last_append_us = appended[-1].as_py()
    if not pc.all(pc.equal(batch.column("topic"), topic)).as_py():
        seen.wrong.append(f"rows belong to another topic than {topic}")
    for name in ("value", "offset", "timestamp", "append_time", "topic"):
        if batch.column(name).null_count:
            seen.wrong.append(f"{name} is null in some row")
    seen.rows += batch.num_rows


def _follow(offsets: Any, seen: _Seen, lost: RangeSet) -> None:
    """Check that offsets go on one by one from the last, but for lost ranges."""
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    steps = pc.pairwise_diff(offsets).drop_null()
    dense = first == seen.next_offset and not pc.any(pc.not_equal(steps, 1)).as_py()
    if not dense:
        at = seen.next_offset
        for offset in offsets.to_pylist():
            if offset < at:
                seen.wrong.append(f"offset {offset} comes after {at - 1}")
            elif not lost.covers(at, offset):
                seen.wrong.append(f"offsets from {at} to {offset} are missing")
            at = offset + 1
    seen.next_offset = last + 1


def _microseconds(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name).cast(pa.int64())


def _widened(bounds: tuple[int, int], values: Any) -> tuple[int, int]:
    found = pc.min_max(values).as_py()
    return min(bounds[0], found["min"]), max(bounds[1], found["max"])
