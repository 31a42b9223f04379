"""Delta checkpoints: read by us over the object store, written by ``deltalake`` and then synced.

delta-rs never fsyncs what it writes locally, and a torn checkpoint after log clean-up would cost
the table; so what it wrote is read back, compared with our own state and synced before anyone may
rely on it. Format: Delta protocol document, "Checkpoints", classic single files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from danube.core.errors import Corruption
from danube.core.stores import ObjectNotFound, ObjectStore
from danube.lake.layout import checkpoint_key, last_checkpoint_key
from danube.objects.syncing import sync


class TornCheckpoint(Exception):
    """A Delta checkpoint is absent, empty or damaged."""


@dataclass(slots=True)
class CheckpointState:
    """The actions of one Delta checkpoint."""

    adds: Sequence[Mapping[str, Any]] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None


class CheckpointWriter(Protocol):
    """Writes the Delta checkpoint of a table's newest version."""

    def __call__(self, table_uri: str) -> int:
        """Write checkpoint and hint; returns the version."""


def deltalake_writer(table_uri: str, storage_options: dict[str, str] | None = None) -> int:
    """Write a Delta checkpoint with ``deltalake``; nothing of it is synced yet."""
    # Only brokers have it, and only here.
    from deltalake import DeltaTable

    table = DeltaTable(table_uri, storage_options=storage_options)
    table.create_checkpoint()
    return table.version()


def hinted_version(store: ObjectStore, table: str) -> int | None:
    """The version that ``_last_checkpoint`` names; None if there is no readable hint."""
    try:
        hint = json.loads(store.get(last_checkpoint_key(table)))
        return int(hint["version"])
    except (ObjectNotFound, ValueError, KeyError, TypeError):
        return None


def read_checkpoint(store: ObjectStore, table: str, version: int) -> CheckpointState:
    """Read one Delta checkpoint.

    Raises:
        TornCheckpoint: it is absent, empty or damaged.
    """
    key = checkpoint_key(table, version)
    try:
        data = store.get(key)
        rows = pq.read_table(
            pa.BufferReader(data), columns=["txn", "add", "remove", "metaData", "protocol"]
        )
        state = CheckpointState(
            adds=_actions(rows, "add"),
            txns={txn["appId"]: txn["version"] for txn in _actions(rows, "txn")},
            removed={r["path"]: r["deletionTimestamp"] or 0 for r in _actions(rows, "remove")},
            metadata=next(iter(_actions(rows, "metaData")), None),
            protocol=next(iter(_actions(rows, "protocol")), None),
        )
    except ObjectNotFound as error:
        raise TornCheckpoint(f"Delta checkpoint {version} is gone ({error})") from None
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise TornCheckpoint(f"Delta checkpoint {version} is torn or damaged ({error})") from None
    if state.metadata is None:
        raise TornCheckpoint(f"Delta checkpoint {version} has no metadata")
    return state


def _actions(rows: pa.Table, name: str) -> list[dict[str, Any]]:
    if name not in rows.schema.names:
        return []
    found: list[Any] = rows.column(name).drop_null().to_pylist()
    # Maps come as lists of pairs.
    for action in found:
        for key in ("configuration", "partitionValues", "tags"):
            if isinstance(action.get(key), list):
                action[key] = dict(action[key])
    return found


def write_checkpoint(
    store: ObjectStore, table: str, writer: CheckpointWriter, *, expected_txns: Mapping[str, int]
) -> int:
    """Write a Delta checkpoint, read it back, and sync it with its hint and directory.

    Args:
        store: the store the table is in.
        table: its key.
        writer: see :func:`deltalake_writer`.
        expected_txns: transactions that must be in it at these values or higher ones.

    Returns:
        The version of the checkpoint.

    Raises:
        Corruption: what was written is not what the log says; it has been removed again.
    """
    version = writer(f"{store.uri}/{table}")
    keys = [checkpoint_key(table, version), last_checkpoint_key(table)]
    try:
        written = read_checkpoint(store, table, version).txns
    except TornCheckpoint:
        written = {}
    missing = [name for name, value in expected_txns.items() if written.get(name, -1) < value]
    if missing or hinted_version(store, table) != version:
        store.delete(keys)
        raise Corruption(
            f"Delta checkpoint {version} of {store.uri}/{table} came out without "
            f"{missing[:3] or 'its hint'} and was removed; nothing is lost. Report this"
        )
    sync(store, keys)
    return version
