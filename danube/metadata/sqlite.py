"""A metadata store in one sqlite file: what a broker without a cluster keeps beside its journal.

Several processes of one host may share the file. Watches are polls. Leases count CLOCK_BOOTTIME,
which goes on while the machine sleeps, and belong to one boot of it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from danube.core.clock import Clock
from danube.core.stores import Compare, Delete, KeyValue, Put, TransactionResult, WatchEvent
from danube.metadata import sqlite_statements as statements
from danube.metadata.limits import (
    HISTORY_EVENTS,
    check_key,
    check_transaction,
    check_ttl,
)
from danube.metadata.sqlite_file import meaning, open_file
from danube.metadata.sqlite_thread import Job, SqliteThread

T = TypeVar("T")

BUSY_MS: Final = 5_000
"""How long to wait for another process's transaction."""

POLL_S: Final = 0.1
"""How often a watch looks for changes that other processes made."""


def boot_id() -> str:
    """What tells this boot of the machine from every other; empty where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class SqliteMetadata:
    """Keys, history and leases in the file ``path``, which is created if absent.

    Args:
        path: of the file; its directory exists.
        clock: whose ``boottime_s`` ends leases.
        boot: id of the machine's boot.
        busy_ms: how long to wait for another process's transaction, in milliseconds.
        history_events: newest changes kept for watches to resume from.

    Raises:
        UnsupportedFormat: the file is of a newer version or of another program.
        Corruption: the file is damaged.
        Unavailable: another process holds it locked.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        boot: str | None = None,
        busy_ms: int = BUSY_MS,
        history_events: int = HISTORY_EVENTS,
    ) -> None:
        self._clock = clock
        self._boot = boot_id() if boot is None else boot
        self._history_events = history_events
        self._waiting: set[asyncio.Future[None]] = set()
        connection = open_file(path, busy_ms=busy_ms)
        self._thread = SqliteThread(
            connection, self._end_leases, lambda error: meaning(error, path)
        )

    # -- reading ---------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        check_key(key)
        return await self._thread.run(lambda db: statements.get(db, key), writes=False)

    async def get_many(self, keys: Sequence[str]) -> list[KeyValue | None]:
        for key in keys:
            check_key(key)
        return await self._thread.run(
            lambda db: [statements.get(db, key) for key in keys], writes=False
        )

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0) -> list[KeyValue]:
        return await self._thread.run(
            lambda db: statements.key_range(db, prefix, start_after, limit), writes=False
        )

    async def revision(self) -> int:
        return await self._thread.run(lambda db: statements.counter(db, "revision"), writes=False)

    # -- writing ---------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        return (await self.transact([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        check_key(key)

        def job(db: sqlite3.Connection) -> bool:
            found = statements.get(db, key) is not None
            statements.apply(db, [Delete(key)], self._history_events)
            return found

        return await self._write(job)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TransactionResult:
        check_transaction(compares, operations)
        return await self._write(
            lambda db: statements.transact(db, compares, operations, self._history_events)
        )

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        outcome = await self._thread.run(job, writes=True)
        self._wake()
        return outcome

    # -- watches ---------------------------------------------------------------------------

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[WatchEvent]:
        seen = after_revision
        while True:
            fresh, seen = await self._thread.run(
                partial(statements.events, prefix=prefix, after_revision=seen), writes=False
            )
            for event in fresh:
                yield event
            if not fresh:
                await self._change()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=POLL_S)
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    # -- leases ----------------------------------------------------------------------------

    async def grant_lease(self, ttl_s: float) -> int:
        check_ttl(ttl_s)
        return await self._write(
            lambda db: statements.grant_lease(db, ttl_s, self._clock.boottime_s(), self._boot)
        )

    async def keep_alive(self, lease: int) -> bool:
        return await self._write(
            lambda db: statements.keep_alive(db, lease, self._clock.boottime_s())
        )

    async def revoke_lease(self, lease: int) -> None:
        await self._write(lambda db: statements.end_lease(db, lease, self._history_events))

    def _end_leases(self, connection: sqlite3.Connection) -> Job | None:
        """In the thread: what ends the leases that are over, if there are any."""
        now = self._clock.boottime_s()
        if not statements.ended_leases(connection, now, self._boot):
            return None

        def job(db: sqlite3.Connection) -> None:
            # Looked up again, now that nobody else can renew one.
            for lease in statements.ended_leases(db, now, self._boot):
                statements.end_lease(db, lease, self._history_events)

        return job

    async def close(self) -> None:
        await self._thread.close()
        self._wake()
