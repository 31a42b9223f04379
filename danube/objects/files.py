"""The few file operations a local object store is made of, as a seam for recording and faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from danube.core.stores import Buffer
from danube.objects.streaming import Produce

try:
    import fcntl
except ImportError:  # pragma: no cover - brokers run on Linux and Macs
    fcntl = None  # type: ignore[assignment]


class LocalFiles:
    """The operating system's files. A test subclasses it to record, fail or crash."""

    def write_synced(self, path: Path, data: Buffer) -> None:
        """A new file with ``data``, on disk when this returns."""
        self.write_streamed(path, lambda write: write(data))

    def write_streamed(self, path: Path, produce: Produce) -> None:
        """A new file with what ``produce`` writes, on disk when this returns."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

        def write(data: Buffer) -> None:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(descriptor, view) :]

        try:
            produce(write)
            self.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def sync(self, descriptor: int, path: Path) -> None:
        """Bring a file's bytes to the disk."""
        os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Bring a directory's entries to the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file(self, path: Path) -> None:
        """Bring to the disk what somebody else wrote to a file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if that is taken. Atomic."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file over whatever is there. Atomic."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name; FileNotFoundError if there is none."""
        os.unlink(path)

    def make_directory(self, path: Path) -> None:
        """One directory; FileExistsError if it is there."""
        os.mkdir(path)

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Hold an exclusive lock between processes and threads."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
