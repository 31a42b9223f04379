"""A file system whose changes stay in memory: a repair is tried out before it is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from danube.core.errors import Unsupported
from danube.core.stores import Buffer
from danube.journal.files import File, FileSystem


class OverlayFile:
    """A file as it would be. Changes of existing files are kept as (offset, bytes)."""

    def __init__(self, overlay: Overlay, path: Path, inner: File | None) -> None:
        self._overlay = overlay
        self._path = path
        self._inner = inner

    def size(self) -> int:
        """See :class:`danube.journal.files.File`."""
        if self._inner is None:
            return len(self._overlay.created[self._path])
        return self._inner.size()

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """See :class:`danube.journal.files.File`."""
        if self._inner is None:
            found = bytes(self._overlay.created[self._path][offset : offset + len(buffer)])
            buffer[: len(found)] = found
            return len(found)
        count = self._inner.readinto(buffer, offset)
        for at, data in self._overlay.patches.get(self._path, ()):
            low, high = max(at, offset), min(at + len(data), offset + count)
            if low < high:
                buffer[low - offset : high - offset] = data[low - at : high - at]
        return count

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`danube.journal.files.File`."""
        buffer = bytearray(length)
        return bytes(buffer[: self.readinto(memoryview(buffer), offset)])

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See :class:`danube.journal.files.File`."""
        data = b"".join(buffers)
        if self._inner is None:
            self._overlay.created[self._path][offset : offset + len(data)] = data
        else:
            self._overlay.patches.setdefault(self._path, []).append((offset, data))
        return len(data)

    def preallocate(self, size: int) -> None:
        """See :class:`danube.journal.files.File`."""
        self._overlay.created[self._path].extend(bytes(size))

    def fdatasync(self) -> None:
        """See :class:`danube.journal.files.File`."""

    def close(self) -> None:
        """See :class:`danube.journal.files.File`."""
        if self._inner is not None:
            self._inner.close()


class Overlay:
    """Reads pass through, changes are remembered."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self.created: dict[Path, bytearray] = {}
        self.patches: dict[Path, list[tuple[int, bytes]]] = {}

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """See :class:`danube.journal.files.FileSystem`."""
        if create:
            self.created[path] = bytearray()
        inner = None if path in self.created else self._inner.open(path)
        return OverlayFile(self, path, inner)

    def listdir(self, path: Path) -> list[str]:
        """See :class:`danube.journal.files.FileSystem`."""
        ours = (created.name for created in self.created if created.parent == path)
        return sorted({*self._inner.listdir(path), *ours})

    def free_bytes(self, path: Path) -> int:
        """See :class:`danube.journal.files.FileSystem`."""
        return self._inner.free_bytes(path)

    def fsync_dir(self, path: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""

    def mkdir(self, path: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""
        raise Unsupported("a trial repair makes no directories")

    def rename(self, source: Path, target: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""
        raise Unsupported("a trial repair renames nothing")

    def unlink(self, path: Path) -> None:
        """See :class:`danube.journal.files.FileSystem`."""
        raise Unsupported("a trial repair removes nothing")

    def lock(self, path: Path) -> Callable[[], None]:
        """See :class:`danube.journal.files.FileSystem`."""
        return self._inner.lock(path)

    def apply_created(self, path: Path) -> None:
        """Make one of the new files, durably."""
        data = self.created[path]
        file = self._inner.open(path, create=True)
        try:
            file.preallocate(len(data))
            self._inner.fsync_dir(path.parent)
            file.pwritev([bytes(data)], 0)
            file.fdatasync()
        finally:
            file.close()

    def apply_patches(self) -> None:
        """Change the existing files, durably."""
        for path, patches in self.patches.items():
            file = self._inner.open(path, write=True)
            try:
                for offset, data in patches:
                    file.pwritev([data], offset)
                file.fdatasync()
            finally:
                file.close()
