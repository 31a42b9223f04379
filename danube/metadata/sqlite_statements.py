"""What the sqlite store does inside a transaction: functions of a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from danube.core.errors import NotFound
from danube.core.stores import (
    Compare,
    CompareTarget,
    Delete,
    KeyValue,
    Put,
    TransactionResult,
    WatchCompacted,
    WatchEvent,
)

EVENTS_PER_READ: Final = 1_000
"""Changes that a watch takes at once."""

_COLUMNS: Final = "key, value, create_revision, mod_revision, lease"


def counter(connection: sqlite3.Connection, name: str) -> int:
    """The store's ``revision``, or the newest ``compacted`` one."""
    (value,) = connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
    return int(value)


def get(connection: sqlite3.Connection, key: str) -> KeyValue | None:
    """The key, or None."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM keys WHERE key = ?", (key,)).fetchone()
    return None if row is None else KeyValue(*row)


def key_range(
    connection: sqlite3.Connection, prefix: str, start_after: str, limit: int
) -> list[KeyValue]:
    """Keys with ``prefix``, after ``start_after``, ascending by code point."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM keys WHERE key >= ? AND key > ? ORDER BY key",
        (prefix, start_after),
    )
    found: list[KeyValue] = []
    for row in rows:
        if not row[0].startswith(prefix) or (limit and len(found) == limit):
            break
        found.append(KeyValue(*row))
    rows.close()
    return found


def transact(
    connection: sqlite3.Connection,
    compares: Sequence[Compare],
    operations: Sequence[Put | Delete],
    history_events: int,
) -> TransactionResult:
    """Apply the operations if the comparisons hold."""
    if not all(_holds(connection, compare) for compare in compares):
        return TransactionResult(False, counter(connection, "revision"))
    return TransactionResult(True, apply(connection, operations, history_events))


def _holds(connection: sqlite3.Connection, compare: Compare) -> bool:
    found = get(connection, compare.key)
    match compare.target:
        case CompareTarget.VALUE:
            return found is not None and found.value == compare.expected
        case CompareTarget.CREATE_REVISION:
            return (found.create_revision if found else 0) == compare.expected
        case CompareTarget.MOD_REVISION:
            return (found.mod_revision if found else 0) == compare.expected


def apply(
    connection: sqlite3.Connection, operations: Iterable[Put | Delete], history_events: int
) -> int:
    """Write, at one new revision if anything changes; returns the store's revision."""
    before = counter(connection, "revision")
    revision = before + 1
    changed = [_apply_one(connection, item, revision) for item in operations]
    if not any(changed):
        return before
    connection.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision,))
    _forget_history(connection, history_events)
    return revision


def _apply_one(connection: sqlite3.Connection, operation: Put | Delete, revision: int) -> bool:
    found = get(connection, operation.key)
    if isinstance(operation, Put):
        _put(connection, operation, revision, found)
        return True
    if found is None:
        return False
    connection.execute("DELETE FROM keys WHERE key = ?", (operation.key,))
    _record(connection, revision, operation.key, None, 0, 0)
    return True


def _put(
    connection: sqlite3.Connection, operation: Put, revision: int, found: KeyValue | None
) -> None:
    if operation.lease and not _lease_exists(connection, operation.lease):
        raise NotFound(f"lease {operation.lease} does not exist (any more); take a new one")
    created = revision if found is None else found.create_revision
    value = bytes(operation.value)
    connection.execute(
        f"INSERT OR REPLACE INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
        (operation.key, value, created, revision, operation.lease),
    )
    _record(connection, revision, operation.key, value, created, operation.lease)


def _record(
    connection: sqlite3.Connection,
    revision: int,
    key: str,
    value: bytes | None,
    created: int,
    lease: int,
) -> None:
    connection.execute(
        "INSERT INTO events (revision, key, value, create_revision, lease) VALUES (?, ?, ?, ?, ?)",
        (revision, key, value, created, lease),
    )


def _forget_history(connection: sqlite3.Connection, history_events: int) -> None:
    first, last = connection.execute("SELECT min(id), max(id) FROM events").fetchone()
    # In steps, because every change would otherwise delete one row.
    if last - first < history_events + history_events // 10:
        return
    oldest = last - history_events
    (gone,) = connection.execute(
        "SELECT max(revision) FROM events WHERE id <= ?", (oldest,)
    ).fetchone()
    connection.execute("DELETE FROM events WHERE id <= ?", (oldest,))
    connection.execute("UPDATE counters SET value = ? WHERE name = 'compacted'", (gone,))


def events(
    connection: sqlite3.Connection, prefix: str, after_revision: int
) -> tuple[list[WatchEvent], int]:
    """Changes after a revision, of whole revisions, and up to which revision that was all.

    Raises:
        WatchCompacted: some of them are gone.
    """
    compacted = counter(connection, "compacted")
    if after_revision < compacted:
        raise WatchCompacted(
            f"changes after revision {after_revision} are gone, the oldest kept is "
            f"{compacted + 1}; list the keys again and watch from there"
        )
    newest = counter(connection, "revision")
    rows = connection.execute(
        "SELECT key, value, create_revision, lease, revision FROM events "
        "WHERE revision > ? ORDER BY id",
        (after_revision,),
    )
    found: list[WatchEvent] = []
    seen = after_revision
    for number, (key, value, created, lease, revision) in enumerate(rows):
        if number >= EVENTS_PER_READ and revision != seen:
            return found, seen
        seen = revision
        if key.startswith(prefix):
            current = None if value is None else KeyValue(key, value, created, revision, lease)
            found.append(WatchEvent(key, current, revision))
    return found, max(newest, after_revision)


# -- leases --------------------------------------------------------------------------------


def _lease_exists(connection: sqlite3.Connection, lease: int) -> bool:
    return connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is not None


def grant_lease(connection: sqlite3.Connection, ttl_s: float, now_s: float, boot: str) -> int:
    """A new lease."""
    made = connection.execute(
        "INSERT INTO leases (ttl_s, deadline_s, boot) VALUES (?, ?, ?)",
        (ttl_s, now_s + ttl_s, boot),
    )
    assert made.lastrowid is not None
    return made.lastrowid


def keep_alive(connection: sqlite3.Connection, lease: int, now_s: float) -> bool:
    """Renew a lease, if there is one."""
    renewed = connection.execute(
        "UPDATE leases SET deadline_s = ? + ttl_s WHERE id = ?", (now_s, lease)
    )
    return renewed.rowcount == 1


def ended_leases(connection: sqlite3.Connection, now_s: float, boot: str) -> list[int]:
    """Leases past their time, and those of an earlier boot: their holders ended with it."""
    rows = connection.execute(
        "SELECT id FROM leases WHERE boot <> ? OR deadline_s <= ?", (boot, now_s)
    )
    return [lease for (lease,) in rows]


def end_lease(connection: sqlite3.Connection, lease: int, history_events: int) -> None:
    """Delete a lease and its keys."""
    rows = connection.execute("SELECT key FROM keys WHERE lease = ? ORDER BY key", (lease,))
    connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
    apply(connection, [Delete(key) for (key,) in rows.fetchall()], history_events)
