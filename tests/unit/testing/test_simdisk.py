from __future__ import annotations

import errno
from pathlib import Path

import pytest

from danube.testing.simdisk import SECTOR_BYTES, SimDisk, SimulatedCrash

DIRECTORY = Path("d")
FILE = DIRECTORY / "f"


def with_file(seed: int = 0, data: bytes = b"") -> SimDisk:
    """A disk with one durable file."""
    disk = SimDisk(seed)
    files = disk.files()
    file = files.open(FILE, create=True)
    file.pwritev([data], 0)
    file.fdatasync()
    files.fsync_dir(DIRECTORY)
    return disk


def test_what_was_synced_survives_and_what_was_not_is_lost() -> None:
    disk = with_file(data=b"durable")
    disk.files().open(FILE, write=True).pwritev([b"DURABLE"], 0)
    assert disk.contents(FILE) == b"DURABLE"
    disk.crash(keep=0.0)
    assert disk.contents(FILE) == b"durable"


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    disk = with_file()
    file = disk.files().open(FILE, write=True)
    file.pwritev([b"in the page cache"], 0)
    disk.kill()
    assert disk.contents(FILE) == b"in the page cache"
    with pytest.raises(SimulatedCrash):
        file.pread(1, 0)


def test_unsynced_sectors_are_lost_in_any_order() -> None:
    old, new = b"o" * 16 * SECTOR_BYTES, b"n" * 16 * SECTOR_BYTES
    seen = set()
    for seed in range(40):
        disk = with_file(seed, old)
        disk.files().open(FILE, write=True).pwritev([new], 0)
        disk.crash(keep=0.5)
        found = disk.contents(FILE)
        sectors = [found[at : at + SECTOR_BYTES] for at in range(0, len(found), SECTOR_BYTES)]
        assert all(sector in (old[:SECTOR_BYTES], new[:SECTOR_BYTES]) for sector in sectors)
        seen.add(b"".join(sector[:1] for sector in sectors))
    # A later sector comes through without an earlier one, and the other way round.
    assert any(b"on" in item for item in seen)
    assert any(b"no" in item for item in seen)


def test_a_sector_written_twice_may_come_back_as_either_version() -> None:
    seen = set()
    for seed in range(40):
        disk = with_file(seed, b"0")
        file = disk.files().open(FILE, write=True)
        file.pwritev([b"1"], 0)
        file.pwritev([b"2"], 0)
        disk.crash(keep=0.5)
        seen.add(disk.contents(FILE))
    assert seen == {b"0", b"1", b"2"}


def test_a_failing_sync_loses_data_and_the_next_one_hides_it() -> None:
    lost = 0
    for seed in range(20):
        disk = with_file(seed, b"old")
        file = disk.files().open(FILE, write=True)
        file.pwritev([b"new"], 0)
        disk.faults.fail_sync_in = 0
        with pytest.raises(OSError, match="sync failure"):
            file.fdatasync()
        file.fdatasync()
        disk.crash(keep=0.0)
        lost += disk.contents(FILE) == b"old"
    assert 0 < lost < 20


def test_names_are_durable_only_after_the_directorys_sync() -> None:
    for change in ("create", "rename", "unlink"):
        outcomes = set()
        for seed in range(30):
            disk = with_file(seed)
            files = disk.files()
            if change == "create":
                files.open(DIRECTORY / "g", create=True)
            elif change == "rename":
                files.rename(FILE, DIRECTORY / "g")
            else:
                files.unlink(FILE)
            disk.crash()
            outcomes.add(tuple(disk.names(DIRECTORY)))
        after = {"create": ("f", "g"), "rename": ("g",), "unlink": ()}[change]
        assert outcomes == {("f",), after}


def test_a_write_can_be_cut_anywhere_by_the_death_of_its_process() -> None:
    lengths = set()
    for seed in range(30):
        disk = with_file(seed)
        disk.faults.crash_in = 0
        with pytest.raises(SimulatedCrash):
            disk.files().open(FILE, write=True).pwritev([b"x" * 100], 0)
        disk.kill()
        lengths.add(len(disk.contents(FILE)))
    assert len(lengths) > 5


def test_a_full_disk_refuses_and_a_short_write_is_short() -> None:
    disk = SimDisk(capacity_bytes=4096)
    file = disk.files().open(FILE, create=True)
    with pytest.raises(OSError, match="full") as caught:
        file.preallocate(5000)
    assert caught.value.errno == errno.ENOSPC
    file.preallocate(4096)
    assert disk.free_bytes() == 0
    disk.faults.short_write_in = 0
    assert file.pwritev([b"x" * 100], 0) < 100
    assert file.pwritev([b"x" * 100], 0) == 100


def test_a_lock_goes_with_its_process() -> None:
    disk = with_file()
    disk.files().lock(DIRECTORY / "lock")
    with pytest.raises(BlockingIOError):
        disk.files().lock(DIRECTORY / "lock")
    disk.kill()
    disk.files().lock(DIRECTORY / "lock")()
    disk.files().lock(DIRECTORY / "lock")
