"""The store in a directory is an object store, and what it reported as written is on the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from danube.core.errors import DiskFull, StorageFailed
from danube.core.stores import Buffer, ObjectExists, ObjectStore
from danube.objects.files import LocalFiles
from danube.objects.local import LocalObjects
from danube.objects.streaming import Write, create_from
from tests.conformance.objects import ObjectStoreConformance


class TestLocalObjects(ObjectStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalObjects(tmp_path / "objects")


class Recorded(LocalFiles):
    """Writes down every step that makes bytes durable or visible."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def write_synced(self, path: Path, data: Buffer) -> None:
        self.steps.append(("write", "temporary"))
        super().write_synced(path, data)

    def sync(self, descriptor: int, path: Path) -> None:
        super().sync(descriptor, path)
        self.steps.append(("sync", "temporary" if ".danube" in path.parts else path.name))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.steps.append(("sync directory", path.name))

    def link(self, source: Path, target: Path) -> None:
        self.steps.append(("link", target.name))
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self.steps.append(("rename", target.name))
        super().rename(source, target)


class Failing(LocalFiles):
    """One operation fails with one error number."""

    def __init__(self) -> None:
        self.operation = ""
        self.error = errno.EIO

    def _maybe(self, operation: str) -> None:
        if operation == self.operation:
            raise OSError(self.error, os.strerror(self.error))

    def sync(self, descriptor: int, path: Path) -> None:
        self._maybe("sync")
        super().sync(descriptor, path)

    def sync_directory(self, path: Path) -> None:
        self._maybe("sync directory")
        super().sync_directory(path)


def test_create_syncs_the_file_before_it_has_a_name_and_the_directory_after(
    tmp_path: Path,
) -> None:
    files = Recorded()
    store = LocalObjects(tmp_path / "objects", files)
    files.steps.clear()
    store.create("a/b/k", b"1")
    assert files.steps == [
        ("sync directory", "objects"),
        ("sync directory", "a"),
        ("write", "temporary"),
        ("sync", "temporary"),
        ("link", "k"),
        ("sync directory", "b"),
    ]


def test_put_syncs_the_file_before_it_replaces_and_the_directory_after(tmp_path: Path) -> None:
    files = Recorded()
    store = LocalObjects(tmp_path / "objects", files)
    files.steps.clear()
    store.put("k", b"1")
    assert files.steps == [
        ("write", "temporary"),
        ("sync", "temporary"),
        ("rename", "k"),
        ("sync directory", "objects"),
    ]


def test_sync_brings_what_others_wrote_to_the_disk(tmp_path: Path) -> None:
    files = Recorded()
    store = LocalObjects(tmp_path, files)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "checkpoint").write_bytes(b"by another library")
    files.steps.clear()
    store.sync(["log/checkpoint"])
    assert files.steps == [("sync", "checkpoint"), ("sync directory", "log")]


def test_nothing_is_visible_of_a_write_whose_fsync_failed(tmp_path: Path) -> None:
    files = Failing()
    store = LocalObjects(tmp_path, files)
    files.operation = "sync"
    with pytest.raises(StorageFailed, match="check the disk"):
        store.create("k", b"1")
    assert list(store.list("")) == []


def test_a_failing_directory_sync_is_never_reported_as_success(tmp_path: Path) -> None:
    files = Failing()
    store = LocalObjects(tmp_path, files)
    files.operation = "sync directory"
    with pytest.raises(StorageFailed, match="cannot sync"):
        store.create("k", b"1")


def test_a_disk_that_fills_up_while_an_object_is_made_says_so(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)

    def produce(write: Write) -> None:
        write(b"half")
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(DiskFull, match="free some"):
        create_from(store, "k", produce)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    files = Failing()
    files.operation, files.error = "sync", errno.ENOSPC
    store = LocalObjects(tmp_path, files)
    with pytest.raises(DiskFull, match="free some"):
        store.put("k", b"1")
    assert list((tmp_path / ".danube" / "tmp").iterdir()) == []


def test_a_file_system_without_hard_links_is_named_as_the_cause(tmp_path: Path) -> None:
    class NoLinks(LocalFiles):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with pytest.raises(StorageFailed, match="no hard links"):
        LocalObjects(tmp_path, NoLinks()).create("k", b"1")


def test_temporary_files_of_ended_processes_go_at_the_next_start(tmp_path: Path) -> None:
    LocalObjects(tmp_path)
    left = tmp_path / ".danube" / "tmp"
    # Above every process number that Linux gives out.
    (left / "4194305-0-1").write_bytes(b"torn")
    (left / f"{os.getpid()}-0-1").write_bytes(b"being written")
    store = LocalObjects(tmp_path)
    assert [path.name for path in left.iterdir()] == [f"{os.getpid()}-0-1"]
    assert list(store.list("")) == []


def test_a_taken_key_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)
    store.create("k", b"1")
    with pytest.raises(ObjectExists):
        store.create("k", b"2")
    assert list((tmp_path / ".danube" / "tmp").iterdir()) == []
