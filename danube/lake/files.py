"""What the table knows of one Parquet file, and of one lost range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One live file: a range of one partition, sorted by offset.

    Attributes:
        path: relative to the table, as in the Delta log.
        key: in the object store.
        partition: its partition.
        start: its first offset.
        end: one above its last offset.
        rows: how many messages; ``end - start`` unless a lost range lies inside.
        size_bytes: of the object.
        min_timestamp_us: smallest publish time, microseconds since 1970 UTC; and so on.
        crc32c: of the whole object, -1 if not known.
    """

    path: str
    key: str
    partition: int
    start: int
    end: int
    rows: int
    size_bytes: int
    min_timestamp_us: int
    max_timestamp_us: int
    min_append_time_us: int
    max_append_time_us: int
    crc32c: int = -1


@dataclass(frozen=True, slots=True, order=True)
class LostRange:
    """Offsets [start, end) that no message has or will ever have, and why.

    ``kind`` is one of :data:`LOST_KINDS`; the Delta log stores its number.
    """

    start: int
    end: int
    kind: str


OTHER: Final = "other"
LOST_KINDS: Final = {
    OTHER: 0,
    "unproved": 1,  # may have been handed out before an unclean stop: up to the offset ceiling
    "quarantined": 2,  # taken out of a damaged journal by `danube journal repair`
    "restored": 3,  # the table was ahead of the journal: one of them came from a backup
    "sink": 4,  # decided, but the staged bodies went with a lost disk
}
"""Names of reasons and the numbers that stand for them in the Delta log; never renumbered."""

_NAMES: Final = {number: name for name, number in LOST_KINDS.items()}


def lost_code(kind: str) -> int:
    """The number of a kind; those without one are ``other``."""
    return LOST_KINDS.get(kind, LOST_KINDS[OTHER])


def lost_kind(code: int) -> str:
    """The kind of a number; numbers of a newer version are ``other``."""
    return _NAMES.get(code, OTHER)
