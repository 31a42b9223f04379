"""What is still good in front of a damaged place: for the error message and for repairs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from danube.core import telemetry
from danube.core.errors import Corruption
from danube.core.names import TopicId
from danube.journal.envelope import EntryKind
from danube.journal.files import FileSystem
from danube.journal.layout import FIRST_FLUSH_AT, FLUSH_FILLER, segment_name, use_id_of
from danube.journal.scan import BadPlace, JournalDamaged, SegmentReader, check_entries

LOG = telemetry.get_logger(__name__)
NAMED_PARTITIONS: Final = 20
"""Partitions whose last good frame an error message names; the log has them all."""

Partition = tuple[bytes, int]


def explain(error: JournalDamaged, directory: Path, files: FileSystem) -> JournalDamaged:
    """The same error, with the last good frame of every partition in its message."""
    try:
        found = last_good_frames(directory, files, error.place)
    except (Corruption, OSError):
        return error
    names = [
        f"{TopicId(topic)} partition {partition}: the frame at offset {base}"
        for (topic, partition), base in sorted(found.items())
    ]
    for name in names:
        LOG.error("last good frame", frame=name)
    more = len(names) - NAMED_PARTITIONS
    shown = "; ".join(names[:NAMED_PARTITIONS]) + (f"; and {more} more" if more > 0 else "")
    known = f"The last good frames in front of it are: {shown}. " if names else ""
    return JournalDamaged(error.place, error.path, known)


def last_good_frames(directory: Path, files: FileSystem, place: BadPlace) -> dict[Partition, int]:
    """Base offset of the last good frame of messages in front of ``place``, by partition."""
    found: dict[Partition, int] = {}
    for name in files.listdir(directory):
        use_id = use_id_of(name)
        if use_id is None or use_id > place.segment:
            continue
        reader = SegmentReader(files, directory / segment_name(use_id), use_id)
        try:
            _walk(reader, place, found)
        finally:
            reader.close()
    return found


def _walk(reader: SegmentReader, place: BadPlace, found: dict[Partition, int]) -> None:
    limit = place.at if reader.use_id == place.segment else reader.size
    at = FIRST_FLUSH_AT
    while at < limit and (flush := reader.flush_header(at)) is not None:
        good = [] if flush.flags & FLUSH_FILLER else check_entries(reader.flush(flush), flush).good
        for start, envelope in good:
            if envelope.kind == EntryKind.MESSAGES and at + start < limit:
                found[envelope.topic_id, envelope.partition] = envelope.base_offset
        at = flush.next_at
