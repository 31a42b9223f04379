"""A simulated disk behind the file seam: what was not synced can be lost, in any order.

A file's contents are kept per 512-byte sector: what is durable, and every version written since
the last sync. When the machine crashes, each such sector comes back as any one of them, whichever
order they were written in, so pages get lost in any order and writes are torn. A sync makes the
newest version durable; a failing sync loses what it should have saved, as real file systems do:
afterwards the pages count as clean. Names (creations, renames, removals) are durable after the
directory's sync; before it a crash keeps any number of the oldest of them, or, to be nastier than
journalling file systems are, any of them.

A process that dies alone (``kill``) loses nothing that it wrote, synced or not.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from danube.core.stores import Buffer
from danube.journal.files import File

SECTOR_BYTES: Final = 512


class SimulatedCrash(BaseException):
    """The process has ended in the middle of a call. Not an Exception: nothing may handle it."""


@dataclass(slots=True)
class _Inode:
    """One file: what processes see, what is durable, and every unsynced version by sector."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    written: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.seen)

    def read(self, length: int, offset: int) -> bytes:
        return bytes(self.seen[offset : offset + length])

    def grow(self, size: int) -> None:
        self.seen.extend(bytes(max(size - len(self.seen), 0)))

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        self.grow(end)
        self.seen[offset:end] = data
        for number in range(offset // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES):
            start = number * SECTOR_BYTES
            version = bytes(self.seen[start : start + SECTOR_BYTES])
            self.written.setdefault(number, []).append(version)

    def sync(self) -> None:
        for number, versions in self.written.items():
            self._keep(number, versions[-1])
        self.written.clear()
        self.durable.extend(bytes(len(self.seen) - len(self.durable)))

    def _keep(self, number: int, version: bytes) -> None:
        start = number * SECTOR_BYTES
        self.durable.extend(bytes(max(start - len(self.durable), 0)))
        self.durable[start : start + SECTOR_BYTES] = version

    def lose(self, rng: random.Random, keep: float) -> None:
        """What is left after a crash: for each sector any of its versions."""
        sizes = [len(self.seen), len(self.durable)]
        for number, versions in self.written.items():
            if rng.random() < keep:
                self._keep(number, rng.choice(versions))
        self.written.clear()
        size = rng.choice(sizes) if sizes[0] != sizes[1] else sizes[0]
        self.durable.extend(bytes(max(size - len(self.durable), 0)))
        del self.durable[size:]
        self.seen = bytearray(self.durable)


@dataclass(slots=True)
class Faults:
    """What goes wrong, counted in calls from now on; None or empty: nothing.

    Attributes:
        crash_in: the process dies in the call that many calls away (0: the next one). A write is
            then cut anywhere, a sync may or may not have happened.
        fail_sync_in: that many syncs away one fails.
        short_write_in: that many writes away one takes only a part.
        read_errors: names of files that cannot be read.
    """

    crash_in: int | None = None
    fail_sync_in: int | None = None
    short_write_in: int | None = None
    read_errors: set[str] = field(default_factory=set)


class SimDisk:
    """One machine's disk. ``files()`` is a process's view of it.

    Args:
        seed: of everything random.
        capacity_bytes: of the disk; files take their size.
    """

    def __init__(self, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self.rng = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        """What others have put on the disk."""
        self.faults = Faults()
        self.calls = 0
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._pending: list[Callable[[dict[str, _Inode]], None]] = []
        self._locks: dict[str, object] = {}
        self._process = 0

    def files(self) -> SimFiles:
        """The file system as a new process sees it."""
        return SimFiles(self)

    # -- the end of processes and machines -------------------------------------------------

    def kill(self) -> None:
        """The process dies; the machine and its page cache go on."""
        self._process += 1
        self._locks.clear()
        self.faults = Faults()

    def crash(self, *, keep: float | None = None) -> None:
        """The machine dies: unsynced sectors and names are lost, each with its own luck.

        Args:
            keep: chance of a sector to come through; default: drawn for this crash.
        """
        self.kill()
        rng = self.rng
        if keep is None:
            keep = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        inodes = {id(x): x for x in [*self._names.values(), *self._durable_names.values()]}
        for inode in inodes.values():
            inode.lose(rng, keep)
        survived = self._pending[: rng.randint(0, len(self._pending))]
        if rng.random() < 0.3:
            survived = [change for change in self._pending if rng.random() < keep]
        for change in survived:
            change(self._durable_names)
        self._pending.clear()
        self._names = dict(self._durable_names)

    # -- looking and damaging from outside -------------------------------------------------

    def names(self, directory: Path) -> list[str]:
        """Names in a directory."""
        prefix = f"{directory}{os.sep}"
        found = (name.removeprefix(prefix) for name in self._names if name.startswith(prefix))
        return sorted(name for name in found if os.sep not in name)

    def contents(self, path: Path) -> bytes:
        """A file's contents as a process reads them."""
        inode = self._names[str(path)]
        return inode.read(inode.size, 0)

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Change bytes durably behind everybody's back."""
        inode = self._names[str(path)]
        inode.write(data, offset)
        inode.sync()

    def overwrite_new(self, path: Path, data: bytes) -> None:
        """Put a durable file on the disk, in the place of one that may be there."""
        inode = _Inode()
        inode.write(data, 0)
        inode.sync()
        self._names[str(path)] = self._durable_names[str(path)] = inode

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit, counted from the file's start."""
        byte = self._names[str(path)].read(1, bit // 8)[0]
        self.overwrite(path, bit // 8, bytes([byte ^ (1 << bit % 8)]))

    def free_bytes(self) -> int:
        """What may still be written."""
        used = sum(inode.size for inode in {id(x): x for x in self._names.values()}.values())
        return max(self.capacity_bytes - self.taken_bytes - used, 0)

    # -- calls -----------------------------------------------------------------------------

    def _call(self, process: int) -> bool:
        """Count a call; whether the process dies in it."""
        if process != self._process:
            raise SimulatedCrash("a process that is dead already called")
        self.calls += 1
        due = self.faults.crash_in
        if due is None:
            return False
        self.faults.crash_in = due - 1
        return due <= 0

    def _rename(self, change: Callable[[dict[str, _Inode]], None]) -> None:
        change(self._names)
        self._pending.append(change)

    def _sync_names(self) -> None:
        self._pending.clear()
        self._durable_names = dict(self._names)


class SimFile:
    """An open file of a simulated process."""

    def __init__(self, disk: SimDisk, process: int, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._process = process
        self._path = path
        self._inode = inode

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`danube.journal.files.File`."""
        self._check_readable()
        return self._inode.read(length, offset)

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """See :class:`danube.journal.files.File`."""
        self._check_readable()
        found = self._inode.read(len(buffer), offset)
        buffer[: len(found)] = found
        return len(found)

    def _check_readable(self) -> None:
        if self._process != self._disk._process:
            raise SimulatedCrash("a process that is dead already reads")
        if os.path.basename(self._path) in self._disk.faults.read_errors:
            raise OSError(errno.EIO, "simulated read error", self._path)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See :class:`danube.journal.files.File`."""
        disk, data = self._disk, b"".join(buffers)
        if disk._call(self._process):
            # Cut anywhere: pages already taken by the page cache stay there.
            self._inode.write(data[: disk.rng.randint(0, len(data))], offset)
            raise SimulatedCrash(f"in a write to {self._path}")
        short = disk.faults.short_write_in
        if short is not None:
            disk.faults.short_write_in = short - 1
            if short <= 0:
                disk.faults.short_write_in = None
                data = data[: disk.rng.randrange(len(data))]
        grows = offset + len(data) - self._inode.size
        if grows > 0 and grows > disk.free_bytes():
            raise OSError(errno.ENOSPC, "simulated full disk", self._path)
        self._inode.write(data, offset)
        return len(data)

    def preallocate(self, size: int) -> None:
        """See :class:`danube.journal.files.File`."""
        if self._disk._call(self._process):
            raise SimulatedCrash(f"in an allocation of {self._path}")
        if size - self._inode.size > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, "simulated full disk", self._path)
        self._inode.grow(size)

    def fdatasync(self) -> None:
        """See :class:`danube.journal.files.File`."""
        disk = self._disk
        if disk._call(self._process):
            if disk.rng.random() < 0.5:
                self._inode.sync()
            raise SimulatedCrash(f"in a sync of {self._path}")
        fail = disk.faults.fail_sync_in
        if fail is not None:
            disk.faults.fail_sync_in = fail - 1
            if fail <= 0:
                disk.faults.fail_sync_in = None
                self._inode.lose(disk.rng, keep=0.5)
                raise OSError(errno.EIO, "simulated sync failure", self._path)
        self._inode.sync()

    def size(self) -> int:
        """See :class:`danube.journal.files.File`."""
        return self._inode.size

    def close(self) -> None:
        """See :class:`danube.journal.files.File`."""


class SimFiles:
    """The file system of one simulated process; it dies with ``kill`` and ``crash``."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._process = disk._process

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """See :class:`danube.journal.files.FileSystem`."""
        name = str(path)
        if create:
            if name in self._disk._names:
                raise FileExistsError(errno.EEXIST, "exists", name)
            inode = _Inode()
            self._change(lambda names: names.__setitem__(name, inode))
        elif name not in self._disk._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return SimFile(self._disk, self._process, name, self._disk._names[name])

    def _change(self, change: Callable[[dict[str, _Inode]], None]) -> None:
        if self._disk._call(self._process):
            if self._disk.rng.random() < 0.5:
                self._disk._rename(change)
            raise SimulatedCrash("in a change of names")
        self._disk._rename(change)

    def listdir(self, path: Path) -> list[str]:
        """See :class:`danube.journal.files.FileSystem`."""
        return self._disk.names(path)

    def mkdir(self, path: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""

    def rename(self, source: Path, target: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""
        if str(source) not in self._disk._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))

        def change(names: dict[str, _Inode]) -> None:
            if str(source) in names:
                names[str(target)] = names.pop(str(source))

        self._change(change)

    def unlink(self, path: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""
        if str(path) not in self._disk._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

        def change(names: dict[str, _Inode]) -> None:
            names.pop(str(path), None)

        self._change(change)

    def fsync_dir(self, path: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""
        if self._disk._call(self._process):
            if self._disk.rng.random() < 0.5:
                self._disk._sync_names()
            raise SimulatedCrash(f"in a sync of {path}")
        self._disk._sync_names()

    def free_bytes(self, path: Path) -> int:
        """See :class:`danube.journal.files.FileSystem`."""
        return self._disk.free_bytes()

    def lock(self, path: Path) -> Callable[[], None]:
        """See :class:`danube.journal.files.FileSystem`."""
        name, token = str(path), object()
        if name in self._disk._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", name)
        self._disk._locks[name] = token

        def unlock() -> None:
            if self._disk._locks.get(name) is token:
                del self._disk._locks[name]

        return unlock
