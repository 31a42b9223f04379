"""The memory and the sqlite store do what every metadata store must."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from danube.core.errors import (
    Corruption,
    DanubeError,
    DiskFull,
    ResourceExhausted,
    StorageFailed,
    Unavailable,
    UnsupportedFormat,
)
from danube.core.stores import Put
from danube.metadata import sqlite_thread
from danube.metadata.memory import MemoryMetadata
from danube.metadata.sqlite import SqliteMetadata, boot_id
from danube.metadata.sqlite_file import FORMAT, meaning
from tests.clocks import ManualClock
from tests.conformance.metadata import (
    KEPT_EVENTS,
    DurableMetadataConformance,
    MetadataConformance,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


class TestMemory(MetadataConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[MemoryMetadata]:
        store = MemoryMetadata(clock, history_events=KEPT_EVENTS)
        yield store
        await store.close()


class TestSqlite(DurableMetadataConformance):
    @pytest.fixture
    async def again(
        self, clock: ManualClock, path: Path
    ) -> AsyncIterator[Callable[[], Awaitable[SqliteMetadata]]]:
        opened: list[SqliteMetadata] = []

        async def again() -> SqliteMetadata:
            opened.append(SqliteMetadata(path, clock, history_events=KEPT_EVENTS))
            return opened[-1]

        yield again
        for store in opened:
            await store.close()

    @pytest.fixture
    async def store(self, again: Callable[[], Awaitable[SqliteMetadata]]) -> SqliteMetadata:
        return await again()

    async def test_every_commit_is_synced(self, store: SqliteMetadata) -> None:
        def settings(db: sqlite3.Connection) -> tuple[str, int]:
            (mode,) = db.execute("PRAGMA journal_mode").fetchone()
            (level,) = db.execute("PRAGMA synchronous").fetchone()
            return mode, level

        assert await store._thread.run(settings, writes=False) == ("wal", 2)

    async def test_requests_that_wait_share_a_sync(self, store: SqliteMetadata) -> None:
        held, commits = asyncio.Event(), []
        loop = asyncio.get_running_loop()
        release = threading.Event()

        def hold(db: sqlite3.Connection) -> None:
            loop.call_soon_threadsafe(held.set)
            assert release.wait(30)
            db.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)

        holding = asyncio.create_task(store._thread.run(hold, writes=False))
        await held.wait()
        puts = [asyncio.create_task(store.put(f"/{n}", b"")) for n in range(100)]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(holding, *puts)
        assert len(await store.range("/")) == 100
        assert 1 <= len(commits) <= 4

    async def test_one_refused_request_does_not_hurt_those_beside_it(
        self, store: SqliteMetadata
    ) -> None:
        results = await asyncio.gather(
            store.put("/a", b""),
            store.put("/b", b"", lease=99),
            store.put("/c", b""),
            return_exceptions=True,
        )
        assert isinstance(results[1], DanubeError)
        assert [item.key for item in await store.range("/")] == ["/a", "/c"]

    async def test_too_many_waiting_requests_are_refused(
        self, store: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_thread, "MAX_WAITING", 0)
        with pytest.raises(ResourceExhausted, match="slow down"):
            await store.get("/a")


async def test_leases_end_with_the_boot_that_they_were_taken_in(
    path: Path, clock: ManualClock
) -> None:
    store = SqliteMetadata(path, clock, boot="monday")
    lease = await store.grant_lease(3600)
    await store.put("/a", b"", lease=lease)
    await store.put("/b", b"")
    await store.close()
    clock.advance(-900_000)  # boottime starts again
    store = SqliteMetadata(path, clock, boot="tuesday")
    try:
        assert [item.key for item in await store.range("/")] == ["/b"]
        assert await store.keep_alive(lease) is False
    finally:
        await store.close()


def test_a_file_of_a_newer_format_is_refused_and_left_alone(path: Path, clock: ManualClock) -> None:
    asyncio.run(SqliteMetadata(path, clock).close())
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedFormat, match="newer Danube"):
        SqliteMetadata(path, clock)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused(path: Path, clock: ManualClock) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(UnsupportedFormat, match="another program"):
        SqliteMetadata(path, clock)


def test_a_file_that_is_no_database_is_corruption(path: Path, clock: ManualClock) -> None:
    path.write_bytes(b"certainly not a database, but long enough to look like one" * 100)
    with pytest.raises(Corruption, match=r"metadata\.sqlite"):
        SqliteMetadata(path, clock)


def test_a_missing_directory_is_named(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(StorageFailed, match="directory exists"):
        SqliteMetadata(tmp_path / "no" / "such" / "file", clock)


async def test_a_locked_file_is_unavailable_and_heals(path: Path, clock: ManualClock) -> None:
    store = SqliteMetadata(path, clock, busy_ms=1)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        await store.put("/a", b"1")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked by another process"):
            await store.put("/a", b"2")
        found = await store.get("/a")
        assert found is not None
        assert found.value == b"1"
        other.execute("ROLLBACK")
        await store.put("/a", b"3")
    finally:
        other.close()
        await store.close()


async def test_a_full_disk_is_told_and_loses_nothing(path: Path, clock: ManualClock) -> None:
    store = SqliteMetadata(path, clock)

    def shrink(db: sqlite3.Connection) -> None:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages + 1}")

    try:
        await store.put("/a", b"kept")
        await store._thread.run(shrink, writes=False)
        with pytest.raises(DiskFull, match="free some"):
            await store.transact([], [Put("/a", b"x" * 100_000), Put("/b", b"")])
        assert [item.value for item in await store.range("/")] == [b"kept"]
    finally:
        await store.close()


def test_an_unknown_failure_of_the_disk_stops_the_process(path: Path) -> None:
    assert isinstance(meaning(sqlite3.OperationalError("disk I/O error"), path), StorageFailed)


def test_the_boot_of_this_machine_is_the_same_twice() -> None:
    assert boot_id() == boot_id()
