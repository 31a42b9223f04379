"""From append times to offsets: by extents at the tail, by file statistics below it."""

from __future__ import annotations

import pyarrow as pa

from danube.lake.reader import read_file
from danube.lake.snapshot import FileInfo
from danube.log.topic import TopicLog


async def offset_for_time(topic: TopicLog, number: int, time_us: int) -> int:
    """First offset whose append time is at or after ``time_us``; else the durable offset.

    Append times do not decrease within a partition, so statistics find the file or frame.
    """
    log = topic.owned(number).log
    snapshot = topic.table.snapshot if topic.table is not None else None
    files = snapshot.files_between(number, log.log_start, log.rolled_offset) if snapshot else []
    for file in files:
        if file.max_append_time_us >= time_us:
            return await topic.context.workers.read(_within, topic.context.store, file, time_us)
    for extent in log.state.extents.after(log.rolled_offset):
        if extent.append_time_us >= time_us:
            return max(extent.base, log.log_start)
    return log.durable_offset


def _within(store: object, file: FileInfo, time_us: int) -> int:
    if file.min_append_time_us >= time_us:
        return file.start
    columns = ["offset", "append_time"]
    for batch in read_file(store, file, file.start, file.end, columns=columns):  # type: ignore[arg-type]
        times = batch.column("append_time").cast(pa.int64()).to_numpy()
        at = int(times.searchsorted(time_us))
        if at < len(times):
            return int(batch.column("offset")[at].as_py())
    return file.end
