"""The order in which a local table reaches the disk, and what a failing disk leaves behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from danube.core.errors import StorageFailed
from danube.objects.files import LocalFiles
from danube.objects.local import LocalObjects
from tests.unit.lake.lake_samples import newest, offsets_in, open_table, part


class Recorded(LocalFiles):
    """Writes down what becomes visible and what becomes durable; may fail to sync a file."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.fail_on = ""
        self._linking = ""

    def sync(self, descriptor: int, path: Path) -> None:
        if self.fail_on == "file":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor, path)
        self.steps.append("sync file")

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self.steps.append(f"link {target.suffix}")

    def sync_directory(self, path: Path) -> None:
        if self.fail_on == path.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_directory(path)
        self.steps.append(f"sync {path.name}")


def test_files_and_their_directories_are_synced_before_the_commit_that_names_them(
    tmp_path: Path,
) -> None:
    files = Recorded()
    table = open_table(LocalObjects(tmp_path, files))
    table.fence({0: 1, 1: 1})
    files.steps.clear()
    table.roll([part(0, 10), part(0, 10, partition=1)])
    directory = table.log.table.rpartition("/")[2]
    assert files.steps == [
        *(f"sync {directory}", "sync file", "link .parquet", "sync partition=0"),
        *(f"sync {directory}", "sync file", "link .parquet", "sync partition=1"),
        *("sync file", "link .json", "sync _delta_log"),
    ]


@pytest.mark.parametrize("fail_on", ["file", "partition=0"])
def test_a_file_that_cannot_be_synced_is_never_committed(tmp_path: Path, fail_on: str) -> None:
    files = Recorded()
    store = LocalObjects(tmp_path, files)
    table = open_table(store)
    table.fence({0: 1})
    version = table.snapshot.version
    files.fail_on = fail_on
    with pytest.raises(StorageFailed, match="check the disk"):
        table.roll([part(0, 10)])
    assert newest(store).version == version


def test_a_commit_whose_directory_cannot_be_synced_is_not_reported_as_done(
    tmp_path: Path,
) -> None:
    files = Recorded()
    store = LocalObjects(tmp_path, files)
    table = open_table(store)
    table.fence({0: 1})
    table.roll([part(0, 10)])
    files.fail_on = "_delta_log"
    with pytest.raises(StorageFailed):
        table.roll([part(10, 20)])
    # It may have landed or not; a broker that starts again finds out and goes on from there.
    successor = open_table(LocalObjects(tmp_path), seed=1)
    successor.fence({0: 2})
    off = successor.snapshot.off(0)
    successor.roll([part(off, 30, epoch=2)])
    assert offsets_in(store, newest(store)) == list(range(30))
