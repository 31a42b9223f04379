"""The file of the sqlite metadata store: how it is opened, its format, what its errors mean.

A power cut must not take a decision back, so every transaction is synced (``synchronous=FULL``);
the write-ahead log makes that one sync. The file says what it is (``application_id``) and in which
format (``user_version``), both looked at before anything is written.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from danube.core.errors import (
    Corruption,
    DanubeError,
    DiskFull,
    StorageFailed,
    Unavailable,
    UnsupportedFormat,
)

APPLICATION_ID: Final = 0x444E4D44
"""``DNMD``: what ``file`` and we recognise a Danube metadata file by."""

FORMAT: Final = 1
"""Newest format that this version writes and reads."""

_TABLES: Final = (
    """CREATE TABLE keys (
        key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
        mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX keys_of_lease ON keys (lease) WHERE lease <> 0",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, revision INTEGER NOT NULL, key TEXT NOT NULL,
        value BLOB, create_revision INTEGER NOT NULL, lease INTEGER NOT NULL)""",
    "CREATE INDEX events_by_revision ON events (revision)",
    """CREATE TABLE leases (
        id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_s REAL NOT NULL, deadline_s REAL NOT NULL,
        boot TEXT NOT NULL)""",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counters VALUES ('revision', 0), ('compacted', 0)",
)


def open_file(path: Path, *, busy_ms: int) -> sqlite3.Connection:
    """Open or create a metadata file.

    Args:
        path: of the file; its directory exists.
        busy_ms: how long to wait for another process's transaction, in milliseconds.

    Raises:
        UnsupportedFormat: written by a newer version, or not a metadata file.
        Corruption: damaged, or no sqlite file at all.
        Unavailable: another process holds it.
        StorageFailed: the disk failed.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise meaning(error, path) from error
    try:
        connection.execute(f"PRAGMA busy_timeout={int(busy_ms)}")
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise meaning(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    fresh = not _check_format(connection, path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    if fresh:
        _create(connection, path)
        # The directory entries of the file and its log must survive a power cut too.
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _check_format(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a store of ours already."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables and not version:
        return False
    if application != APPLICATION_ID:
        raise UnsupportedFormat(
            f"{path} is a database of another program; name another file or move that one away"
        )
    if version > FORMAT:
        raise UnsupportedFormat(
            f"{path} has metadata format {version}, this version reads up to {FORMAT}: it was "
            "written by a newer Danube; start that one"
        )
    return True


def _create(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have created it between our look and our lock.
        if not _check_format(connection, path):
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def meaning(error: sqlite3.Error, path: Path) -> DanubeError:
    """The error of ours that an error of sqlite means."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(
            f"the metadata file {path} is locked by another process ({text}); "
            "stop what holds it, or try again"
        )
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"no space left for the metadata file {path}; free some ({text})")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corruption(
            f"the metadata file {path} is damaged or not a metadata file ({text}); "
            "restore it from a backup"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return StorageFailed(
            f"the metadata file {path} cannot be opened for writing ({text}); "
            "check that its directory exists and belongs to this user"
        )
    return StorageFailed(f"the metadata file {path} failed: {text}")
