"""Removes what nobody can need any more: old log entries, objects of removed files, orphans,
tables of deleted topics.

Everything here deletes, so everything here waits: removed files for readers that planned on them,
orphans for writers that have not committed them yet, log entries for writers that slept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from danube.core.names import TopicId
from danube.core.stores import ObjectInfo, ObjectStore
from danube.lake.checkpoints import TornCheckpoint, read_checkpoint
from danube.lake.layout import (
    checkpoint_key,
    is_data_path,
    last_checkpoint_key,
    log_prefix,
    log_version,
    table_key,
)
from danube.lake.replay import Loaded
from danube.lake.table import TopicTable
from danube.objects.syncing import sync

HOUR_US = 3600 * 1_000_000
CHECKPOINT_KEPT_US = HOUR_US
"""How long a superseded Delta checkpoint stays for readers that were just told of it."""

DELETE_AT_ONCE = 1000
"""Keys per request: S3's bound."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One object of a table's log. ``kind``: ``json`` or ``checkpoint.parquet``."""

    key: str
    version: int
    kind: str
    modified_us: int


# -- the log ---------------------------------------------------------------------------------


def plan_log_cleanup(
    entries: Collection[LogEntry],
    readable: Collection[int],
    *,
    commit_cutoff_us: int,
    checkpoint_cutoff_us: int,
) -> list[str]:
    """Which entries of a log may go, oldest first.

    Delta commits go by age, never by count, and never those since the second newest Delta
    checkpoint, for a torn checkpoint must not cost the table. Of the Delta checkpoints three stay
    however old they are: the newest two, and one that the oldest remaining commits stand on.

    Args:
        entries: all of the log.
        readable: the newest versions whose Delta checkpoint was just read in full.
        commit_cutoff_us: Delta commits modified after this stay.
        checkpoint_cutoff_us: Delta checkpoints modified after this stay: somebody may have just
            been told of them.
    """
    newest = sorted(readable)[-2:]
    if len(newest) < 2:
        return []
    commits = [entry for entry in entries if entry.kind == "json"]
    checkpoints = [entry for entry in entries if entry.kind != "json"]
    young = [entry.version for entry in commits if entry.modified_us >= commit_cutoff_us]
    first_needed = min([newest[0], *young])
    base = max((e.version for e in checkpoints if e.version <= first_needed), default=-1)
    going = [entry for entry in commits if entry.version < base]
    going += [
        entry
        for entry in checkpoints
        if entry.version not in (base, *newest) and entry.modified_us < checkpoint_cutoff_us
    ]
    return [entry.key for entry in sorted(going, key=lambda entry: (entry.version, entry.kind))]


def clean_log(table: TopicTable, now_us: int) -> int:
    """Remove old entries of a table's log; returns how many.

    Never while a Delta checkpoint is written: both hold the table's turn.
    """
    retention_us = table.settings.log_retention_hours * HOUR_US
    with table.turn():
        entries = _log_entries(table.store, table.log.table)
        readable = _newest_readable(table.store, table.log.table, entries)
        keys = plan_log_cleanup(
            entries,
            readable,
            commit_cutoff_us=now_us - retention_us,
            checkpoint_cutoff_us=now_us - CHECKPOINT_KEPT_US,
        )
        if keys:
            _sync(table.store, table.log.table, readable)
            _delete(table.store, keys)
    return len(keys)


def _log_entries(store: ObjectStore, table: str) -> list[LogEntry]:
    found: list[LogEntry] = []
    for info in store.list(log_prefix(table)):
        named = log_version(info.key)
        if named is not None:
            found.append(LogEntry(info.key, *named, info.modified_us))
    return found


def _newest_readable(store: ObjectStore, table: str, entries: Iterable[LogEntry]) -> list[int]:
    versions = sorted((e.version for e in entries if e.kind != "json"), reverse=True)
    found: list[int] = []
    for version in versions:
        try:
            read_checkpoint(store, table, version)
        except TornCheckpoint:
            continue
        found.append(version)
        if len(found) == 2:
            break
    return found


def _sync(store: ObjectStore, table: str, versions: Iterable[int]) -> None:
    """What remains must be on the disk before what it stands for goes.

    It was synced when it was written, unless the process ended just then.
    """
    keys = [checkpoint_key(table, version) for version in versions]
    hint = last_checkpoint_key(table)
    sync(store, [*keys, *(info.key for info in store.list(hint) if info.key == hint)])


# -- data files ------------------------------------------------------------------------------


def plan_object_removal(
    objects: Iterable[ObjectInfo],
    table: str,
    live: Collection[str],
    removed: Mapping[str, int],
    *,
    now_us: int,
    removal_delay_hours: int,
    orphan_age_hours: int,
) -> list[str]:
    """Which data objects may go.

    Args:
        objects: below the table's key.
        table: its key.
        live: paths of files in a snapshot that is newer than the listing.
        removed: paths that left the table, to when (ms).
        now_us: wall clock.
        removal_delay_hours: how long removed files stay.
        orphan_age_hours: how long files stay that the log does not know.
    """
    going: list[str] = []
    for info in objects:
        path = info.key.removeprefix(f"{table}/")
        # Of other names we know nothing: they were not made here.
        if path in live or not is_data_path(path):
            continue
        if path in removed:
            since_us, delay_hours = removed[path] * 1000, removal_delay_hours
        else:
            since_us, delay_hours = info.modified_us, orphan_age_hours
        if since_us < now_us - delay_hours * HOUR_US:
            going.append(info.key)
    return going


def remove_objects(
    table: TopicTable, now_us: int, *, removal_delay_hours: int, orphan_age_hours: int
) -> int:
    """Remove objects of files that left the table long ago, and old orphans; returns how many."""
    with table.turn():
        # Listed first: whatever was committed since is then in the snapshot.
        objects = list(table.store.list(f"{table.log.table}/partition="))
        loaded: Loaded = table.load()
        keys = plan_object_removal(
            objects,
            table.log.table,
            {file.path for file in loaded.snapshot.all_files()},
            loaded.removed,
            now_us=now_us,
            removal_delay_hours=removal_delay_hours,
            orphan_age_hours=orphan_age_hours,
        )
        _delete(table.store, keys)
    return len(keys)


def remove_deleted_table(
    store: ObjectStore, topic_id: TopicId, deleted_us: int, *, now_us: int, delay_hours: int
) -> bool:
    """Remove the table of a topic that was deleted at ``deleted_us``, once its time has come.

    Returns:
        Whether nothing of it is left, so that the catalog may forget the topic.
    """
    if now_us < deleted_us + delay_hours * HOUR_US:
        return False
    table = table_key(topic_id)
    # The log first: without it nobody takes the rest for a table.
    for prefix in (log_prefix(table), f"{table}/"):
        _delete(store, [info.key for info in store.list(prefix)])
    return True


def _delete(store: ObjectStore, keys: list[str]) -> None:
    for at in range(0, len(keys), DELETE_AT_ONCE):
        store.delete(keys[at : at + DELETE_AT_ONCE])
