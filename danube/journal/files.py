"""The file seam: every byte the journal reads or writes passes here, so that faults can too.

``OsFiles`` is the machine's file system. The simulated disk that loses unsynced pages is
``danube.testing.simdisk``. Errors are ``OSError`` with its usual ``errno``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from danube.core import telemetry
from danube.core.stores import Buffer

LOG = telemetry.get_logger(__name__)
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


class File(Protocol):
    """One open file."""

    def pread(self, length: int, offset: int) -> bytes:
        """At most ``length`` bytes from ``offset``; fewer at the end of the file."""

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` on; how many bytes there were."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers one after another; how many bytes were taken (may be short)."""

    def preallocate(self, size: int) -> None:
        """Make the file ``size`` bytes long with its blocks reserved. Raises ENOSPC."""

    def fdatasync(self) -> None:
        """Make contents and size durable. After an error nothing about the file is known."""

    def size(self) -> int:
        """Length in bytes."""

    def close(self) -> None:
        """Release the descriptor; a second call does nothing."""


class FileSystem(Protocol):
    """Directories and the opening of files."""

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """Open; ``create`` makes a new file and fails if there is one."""

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: Path) -> None:
        """Make a directory durable, with its parents; fine if it is there."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a directory; durable only after ``fsync_dir``."""

    def unlink(self, path: Path) -> None:
        """Remove a file; durable only after ``fsync_dir``."""

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, path: Path) -> int:
        """Bytes that an ordinary user may still write on that file system."""

    def lock(self, path: Path) -> Callable[[], None]:
        """Lock a file for this process; returns how to unlock. Raises BlockingIOError."""


class OsFile:
    """A file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`File`."""
        found = os.pread(self._descriptor, length, offset)
        if len(found) == length or not found:
            return found
        # Short before the end: only large reads, or one that a signal has cut.
        parts = [found]
        while found and (length := length - len(found)):
            offset += len(found)
            found = os.pread(self._descriptor, length, offset)
            parts.append(found)
        return b"".join(parts)

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """See :class:`File`."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See :class:`File`."""
        done = 0
        for start in range(0, len(buffers), _IOV_MAX):
            group = buffers[start : start + _IOV_MAX]
            count = os.pwritev(self._descriptor, group, offset + done)
            done += count
            if count != sum(map(len, group)):
                break
        return done

    def preallocate(self, size: int) -> None:
        """See :class:`File`."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, 0, size)
        else:
            _warn_once("posix_fallocate")
            os.ftruncate(self._descriptor, size)

    def fdatasync(self) -> None:
        """See :class:`File`."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:
            _warn_once("fdatasync")
            os.fsync(self._descriptor)

    def size(self) -> int:
        """See :class:`File`."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """See :class:`File`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsFiles:
    """The machine's file system."""

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """See :class:`FileSystem`."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        flags |= os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return OsFile(os.open(path, flags, FILE_MODE))

    def listdir(self, path: Path) -> list[str]:
        """See :class:`FileSystem`."""
        return sorted(os.listdir(path))

    def mkdir(self, path: Path) -> None:
        """See :class:`FileSystem`."""
        if path.is_dir():
            return
        if path.parent != path:
            self.mkdir(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self.fsync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """See :class:`FileSystem`."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """See :class:`FileSystem`."""
        os.unlink(path)

    def fsync_dir(self, path: Path) -> None:
        """See :class:`FileSystem`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        """See :class:`FileSystem`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, path: Path) -> Callable[[], None]:
        """See :class:`FileSystem`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return OsFile(descriptor).close


_IOV_MAX: Final = min(max(os.sysconf("SC_IOV_MAX"), 16), 1024)
_warned: set[str] = set()


def _warn_once(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        LOG.warning(
            "this system lacks a call that brokers rely on; brokers are for Linux", call=name
        )
