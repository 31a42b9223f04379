"""The one thread that talks to sqlite, and the group commit in it.

Requests that wait while a sync is on its way share the next one: each runs in a savepoint of one
sqlite transaction, and all are answered after it is durable.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from danube.core.errors import DanubeError, ResourceExhausted, Unavailable

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]

MAX_WAITING: Final = 20_000
"""Requests waiting for the thread; more get ResourceExhausted."""

MAX_GROUP: Final = 256
"""Requests that share a sync."""


@dataclass(slots=True)
class _Request:
    job: Job
    writes: bool
    future: Future[Any]


class SqliteThread:
    """Runs jobs on one connection, in order of their submission.

    Args:
        connection: used by the thread alone from now on.
        before: runs first in every group; returns a job when something has to be written.
        meaning: translates sqlite's errors.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        before: Callable[[sqlite3.Connection], Job | None],
        meaning: Callable[[sqlite3.Error], DanubeError],
    ) -> None:
        self._connection = connection
        self._before = before
        self._meaning = meaning
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="metadata-sqlite", daemon=True)
        self._thread.start()

    async def run(self, job: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        """The job's result, once what it wrote is durable.

        A cancelled caller's job does not run if it has not begun.

        Raises:
            Unavailable: closed, or the file is locked.
            ResourceExhausted: too many requests wait.
        """
        if self._closed:
            raise Unavailable("the metadata store is closed")
        if self._requests.qsize() >= MAX_WAITING:
            raise ResourceExhausted(f"{MAX_WAITING} metadata requests wait for the disk; slow down")
        future: Future[T] = Future()
        self._requests.put(_Request(job, writes, future))
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Finish what waits, close the file, end the thread."""
        if not self._closed:
            self._closed = True
            self._requests.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        ending = False
        while not ending:
            group, ending = self._next_group()
            running = [item for item in group if item.future.set_running_or_notify_cancel()]
            if running:
                self._carry_out(running)
        self._connection.close()

    def _next_group(self) -> tuple[list[_Request], bool]:
        first = self._requests.get()
        if first is None:
            return [], True
        group = [first]
        while len(group) < MAX_GROUP:
            try:
                item = self._requests.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
        return group, False

    def _carry_out(self, group: list[_Request]) -> None:
        try:
            outcomes = self._transaction(group)
        except sqlite3.Error as error:
            outcomes = [self._meaning(error)] * len(group)
        except BaseException as error:
            outcomes = [error] * len(group)
        for item, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                item.future.set_exception(outcome)
            else:
                item.future.set_result(outcome)

    def _transaction(self, group: list[_Request]) -> list[Any]:
        connection = self._connection
        first = self._before(connection)
        writes = first is not None or any(item.writes for item in group)
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            if first is not None:
                first(connection)
            outcomes = [self._in_savepoint(item.job) for item in group]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _in_savepoint(self, job: Job) -> Any:
        connection = self._connection
        connection.execute("SAVEPOINT request")
        try:
            outcome = job(connection)
        except sqlite3.Error:
            raise
        except Exception as error:
            connection.execute("ROLLBACK TO request")
            outcome = error
        connection.execute("RELEASE request")
        return outcome
