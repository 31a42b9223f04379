"""The journal on the machine's real file system, with its writing thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from danube.core.errors import FailedPrecondition, StorageFailed
from danube.journal import files as files_module
from danube.journal.envelope import Position
from danube.journal.files import OsFile, OsFiles
from danube.journal.journal import Journal
from danube.journal.recovery import RecoveredEntry
from danube.journal.settings import JournalSettings
from danube.testing.simdisk import SimDisk
from tests.unit.journal.journals import DIRECTORY, messages, state, texts, value_of

SETTINGS = JournalSettings(
    segment_bytes=256 * 1024, flush_bytes=64 * 1024, disk_reserve_bytes=0, idle_flush_ms=5
)


def opened(directory: Path) -> tuple[Journal, list[RecoveredEntry]]:
    journal = Journal.open(directory, SETTINGS, broker_id="b")
    found = list(journal.recover())
    journal.start()
    return journal, found


class Waiter:
    """Waits for answers from the writing thread."""

    def __init__(self) -> None:
        self._semaphore = threading.Semaphore(0)
        self.positions: list[Position] = []
        self.errors: list[BaseException] = []

    def __call__(self, outcome: Sequence[Position] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self.errors.append(outcome)
        else:
            self.positions += outcome
        self._semaphore.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._semaphore.acquire(timeout=30)


def test_submissions_are_grouped_written_in_order_and_recovered(tmp_path: Path) -> None:
    journal, found = opened(tmp_path / "j")
    assert found == []
    waiter = Waiter()
    for at in range(500):
        journal.submit([messages(f"m{at}", at)], waiter)
    waiter.wait(500)
    assert waiter.positions == sorted(waiter.positions)
    assert value_of(journal.read(waiter.positions[250])) == "m250"
    numbers = journal._writer.next_number
    assert numbers < 400
    journal.close()
    journal, found = opened(tmp_path / "j")
    assert texts(found) == [f"messages m{at}" for at in range(500)]
    journal.close()


def test_an_idle_journal_writes_one_empty_flush_and_then_rests(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    written = threading.Semaphore(0)
    original = journal._writer.write

    def write(entries: Sequence[object], flags: int = 0) -> list[Position]:
        positions = original(entries, flags)  # type: ignore[arg-type]
        if not entries:
            written.release()
        return positions

    journal._writer.write = write  # type: ignore[method-assign]
    waiter = Waiter()
    journal.submit([state("a")], waiter)
    waiter.wait()
    assert written.acquire(timeout=30)
    number = journal._writer.next_number
    # A second one would be written after a few milliseconds; the next entry's number tells.
    journal.submit([state("b")], waiter)
    waiter.wait()
    assert journal._writer.next_number == number + 1
    journal.close()


def test_a_failing_sync_ends_the_thread_and_is_reported_once(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    failed: list[BaseException] = []
    told = threading.Event()

    def on_failure(error: BaseException) -> None:
        failed.append(error)
        told.set()

    journal.on_failure = on_failure

    def fail() -> None:
        raise OSError(5, "Input/output error")

    writing = journal._segments.writing
    assert writing is not None
    writing.fdatasync = fail  # type: ignore[method-assign]
    waiter = Waiter()
    journal.submit([state("a")], waiter)
    waiter.wait()
    assert told.wait(30)
    assert isinstance(waiter.errors[0], StorageFailed)
    with pytest.raises(StorageFailed):
        journal.submit([state("b")], waiter)
    journal.close()
    assert len(failed) == 1


def test_closing_with_a_full_disk_does_not_hang() -> None:
    disk = SimDisk()
    journal = Journal.open(DIRECTORY, SETTINGS, broker_id="b", files=disk.files())
    assert list(journal.recover()) == []
    journal.start()
    disk.taken_bytes = disk.free_bytes()
    waiter = Waiter()
    for at in range(60):
        journal.submit([messages("x" * 9_000, at)], waiter)
    journal.close()
    waiter.wait(60)
    assert waiter.errors
    assert all(isinstance(error, StorageFailed) for error in waiter.errors)


def test_the_directory_is_locked_while_it_is_open(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    with pytest.raises(FailedPrecondition, match="another process"):
        Journal.open(tmp_path, SETTINGS, broker_id="b")
    journal.close()
    journal, _ = opened(tmp_path)
    journal.close()


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot be used"):
        Journal.open(tmp_path / "file" / "journal", SETTINGS, broker_id="b")


def test_writes_of_many_buffers_are_split_where_the_system_wants_it(tmp_path: Path) -> None:
    file = OsFiles().open(tmp_path / "f", create=True)
    parts = [bytes([at % 251]) * 3 for at in range(3_000)]
    assert file.pwritev(parts, 5) == 9_000
    assert file.pread(9_000, 5) == b"".join(parts)
    buffer = bytearray(20_000)
    assert file.readinto(memoryview(buffer), 0) == 9_005
    assert file.pread(100, 9_000) == b"".join(parts)[-5:]
    file.close()
    file.close()


def test_a_system_without_fdatasync_and_fallocate_is_served_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files_module, "_warned", set())
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "posix_fallocate")
    file = OsFiles().open(tmp_path / "f", create=True)
    with caplog.at_level(logging.WARNING, logger="danube"):
        for _ in range(3):
            file.preallocate(8192)
            file.fdatasync()
    assert file.size() == 8192
    assert sorted(r.message.split("call=")[1] for r in caplog.records) == [
        "'fdatasync'",
        "'posix_fallocate'",
    ]
    file.close()


def test_only_this_user_may_read_the_journal(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "deep" / "journal")
    journal.close()
    modes = [path.stat().st_mode & 0o077 for path in (tmp_path / "deep" / "journal").iterdir()]
    assert modes
    assert not any(modes)
    assert isinstance(OsFiles().open(next((tmp_path / "deep" / "journal").iterdir())), OsFile)
