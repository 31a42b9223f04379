"""Where a topic's table lies in the object store and what its objects are called.

The log's names are Delta's (protocol document, "Delta Log Entries" and "Checkpoints"); the data
files' are ours, and a live file of another name was not written by us.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from danube.core.names import TopicId

TABLES: Final = "tables"
LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"

_DATA_FILE: Final = re.compile(
    r"partition=(?P<partition>0|[1-9][0-9]*)/(?P<start>[0-9]{20})-(?P<epoch>[0-9]+)-"
    r"(?P<unique>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet"
)
_LOG_FILE: Final = re.compile(r"(?P<version>[0-9]{20})\.(?P<kind>json|checkpoint\.parquet)")


def table_key(topic_id: TopicId) -> str:
    """The key prefix of a topic's table, without a slash at its end."""
    return f"{TABLES}/{topic_id}"


def log_prefix(table: str) -> str:
    """The prefix of everything in a table's log."""
    return f"{table}/{LOG}/"


def commit_key(table: str, version: int) -> str:
    """The key of one Delta commit."""
    return f"{table}/{LOG}/{version:020}.json"


def checkpoint_key(table: str, version: int) -> str:
    """The key of one Delta checkpoint."""
    return f"{table}/{LOG}/{version:020}.checkpoint.parquet"


def last_checkpoint_key(table: str) -> str:
    """The key of the hint that names the newest Delta checkpoint."""
    return f"{table}/{LOG}/{LAST_CHECKPOINT}"


def log_version(key: str) -> tuple[int, str] | None:
    """(version, ``json`` or ``checkpoint.parquet``) of a key in a log, None for other objects."""
    found = _LOG_FILE.fullmatch(key.rpartition("/")[2])
    return None if found is None else (int(found["version"]), found["kind"])


def data_path(partition: int, start: int, epoch: int, unique: bytes) -> str:
    """The path, relative to its table, of a file whose first offset is ``start``.

    ``unique`` is 16 random bytes.
    """
    return f"partition={partition}/{start:020}-{epoch}-{uuid.UUID(bytes=unique)}.parquet"


def partition_of_path(path: str) -> int | None:
    """The partition of a data file by its path or URI; None if it is not named as ours are."""
    found = _DATA_FILE.fullmatch("/".join(path.split("/")[-2:]))
    return None if found is None else int(found["partition"])


def is_data_path(path: str) -> bool:
    """Whether a path relative to its table is one of our data files'."""
    return _DATA_FILE.fullmatch(path) is not None
