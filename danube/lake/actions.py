"""The Delta actions we write and read, as types, and the JSON of one Delta commit.

Format: Delta protocol document, "Actions". Our addition is ``danubeCommitId`` in ``commitInfo``:
a random id that tells a lost reply from somebody else's Delta commit, and ours from foreign ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from danube.core.errors import Corruption
from danube.lake.files import FileInfo
from danube.lake.layout import is_data_path

COMMIT_ID: Final = "danubeCommitId"
CHECKSUM: Final = "danube.crc32c"
ENGINE: Final = "danube-spark"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class NotOurs(Exception):
    """An add action that we cannot have written; whoever reads the log names the version."""


@dataclass(frozen=True, slots=True)
class Add:
    """A file joins the table. ``data_change`` False: rearranged rows, nothing new to a stream."""

    file: FileInfo
    modified_ms: int
    data_change: bool = True

    def to_json(self) -> dict[str, Any]:
        """The action as Delta writes it."""
        return {
            "add": {
                "path": self.file.path,
                "partitionValues": {"partition": str(self.file.partition)},
                "size": self.file.size_bytes,
                "modificationTime": self.modified_ms,
                "dataChange": self.data_change,
                "stats": json.dumps(_stats(self.file), separators=(",", ":")),
                "tags": {CHECKSUM: str(self.file.crc32c)},
            }
        }


@dataclass(frozen=True, slots=True)
class Remove:
    """A file leaves the table; its object goes later."""

    file: FileInfo
    deleted_ms: int
    data_change: bool = True

    def to_json(self) -> dict[str, Any]:
        """The action as Delta writes it."""
        return {
            "remove": {
                "path": self.file.path,
                "deletionTimestamp": self.deleted_ms,
                "dataChange": self.data_change,
                "extendedFileMetadata": True,
                "partitionValues": {"partition": str(self.file.partition)},
                "size": self.file.size_bytes,
            }
        }


@dataclass(frozen=True, slots=True)
class Txn:
    """An application transaction: a named counter that outlives log clean-up.

    Never with ``lastUpdated``, which would let other tools expire it.
    """

    app_id: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """The action as Delta writes it."""
        return {"txn": {"appId": self.app_id, "version": self.version}}


@dataclass(frozen=True, slots=True)
class Definition:
    """Protocol and metadata of a table, written by version 0 alone."""

    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]


Action = Add | Remove | Txn


@dataclass(frozen=True, slots=True)
class Commit:
    """One Delta commit as read. ``adds`` and ``removes`` are as they stand in the JSON."""

    version: int
    info: Mapping[str, Any] = field(default_factory=dict)
    adds: Sequence[Mapping[str, Any]] = ()
    removes: Sequence[Mapping[str, Any]] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    others: Sequence[str] = ()

    @property
    def commit_id(self) -> str | None:
        """Our random id; None on a Delta commit that is not ours."""
        found = self.info.get(COMMIT_ID)
        return found if isinstance(found, str) else None


def encode_commit(
    commit_id: str,
    operation: str,
    actions: Sequence[Action],
    *,
    now_us: int,
    definition: Definition | None = None,
) -> bytes:
    """The JSON lines of one Delta commit, ``commitInfo`` first."""
    info = {
        "timestamp": now_us // 1000,
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "engineInfo": ENGINE,
        COMMIT_ID: commit_id,
    }
    lines: list[dict[str, Any]] = [{"commitInfo": info}]
    if definition is not None:
        lines.append({"protocol": dict(definition.protocol)})
        lines.append({"metaData": dict(definition.metadata)})
    lines.extend(action.to_json() for action in actions)
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


def parse_commit(version: int, data: bytes, where: str) -> Commit:
    """Read one Delta commit.

    Args:
        version: its version.
        data: the object's bytes.
        where: its URI, for messages.

    Raises:
        Corruption: empty, torn or not JSON; the message says how to go on.
    """
    adds: list[Mapping[str, Any]] = []
    removes: list[Mapping[str, Any]] = []
    txns: dict[str, int] = {}
    single: dict[str, Mapping[str, Any]] = {}
    others: list[str] = []
    try:
        for name, body in _lines(data):
            if name == "add":
                adds.append(body)
            elif name == "remove":
                removes.append(body)
            elif name == "txn":
                txns[body["appId"]] = int(body["version"])
            elif name in ("metaData", "protocol", "commitInfo"):
                single[name] = body
            else:
                others.append(name)
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Corruption(
            f"the Delta commit {where} is torn or damaged ({len(data)} bytes: {error}); restore "
            "that file from a backup. Only if it is empty and the newest version, which a power "
            "cut can leave behind under another writer, it may be deleted instead"
        ) from None
    return Commit(
        version,
        single.get("commitInfo", {}),
        adds,
        removes,
        txns,
        single.get("metaData"),
        single.get("protocol"),
        others,
    )


def _lines(data: bytes) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if not data.rstrip().endswith(b"}"):
        raise ValueError("it does not end with a complete action")
    for line in data.decode().splitlines():
        if line.strip():
            ((name, body),) = json.loads(line).items()
            yield name, body


def parse_add(table: str, add: Mapping[str, Any]) -> FileInfo:
    """The file of one of our add actions, from a Delta commit or a Delta checkpoint.

    Raises:
        NotOurs: its path or statistics are not as we write them.
    """
    try:
        path = add["path"]
        if not is_data_path(path) or add.get("deletionVector"):
            raise NotOurs(f"the file {path} is not named or made as ours are")
        stats = json.loads(add["stats"])
        least, most = stats["minValues"], stats["maxValues"]
        return FileInfo(
            path=path,
            key=f"{table}/{path}",
            partition=int(path.partition("/")[0].removeprefix("partition=")),
            start=int(least["offset"]),
            end=int(most["offset"]) + 1,
            rows=int(stats["numRecords"]),
            size_bytes=int(add["size"]),
            min_timestamp_us=_microseconds(least["timestamp"]),
            max_timestamp_us=_microseconds(most["timestamp"]),
            min_append_time_us=_microseconds(least["append_time"]),
            max_append_time_us=_microseconds(most["append_time"]),
            crc32c=int((add.get("tags") or {}).get(CHECKSUM, -1)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotOurs(
            f"the file {add.get('path')} has other statistics than ours: {error}"
        ) from None


def _stats(file: FileInfo) -> dict[str, Any]:
    return {
        "numRecords": file.rows,
        "minValues": {
            "offset": file.start,
            "timestamp": _iso(file.min_timestamp_us),
            "append_time": _iso(file.min_append_time_us),
        },
        "maxValues": {
            "offset": file.end - 1,
            "timestamp": _iso(file.max_timestamp_us),
            "append_time": _iso(file.max_append_time_us),
        },
        "nullCount": {"offset": 0, "timestamp": 0, "append_time": 0},
    }


def _iso(time_us: int) -> str:
    moment = _EPOCH + time_us * _MICROSECOND
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _microseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _MICROSECOND
