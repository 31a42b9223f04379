"""An object store in a local directory: what a call reported as written survives a power cut.

A write is a temporary file, fsync, link (create) or rename (put), fsync of the directory, and
fsync of every directory that had to be made. Temporary files live in ``.danube/tmp`` of the root,
so that no listing meets them and a crash leaves them where they are found again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from danube.core.errors import DiskFull, StorageFailed
from danube.core.stores import (
    Buffer,
    ObjectChanged,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreUnavailable,
)
from danube.objects.files import LocalFiles
from danube.objects.keys import check_key
from danube.objects.streaming import Produce

OWN_DIRECTORY = ".danube"
"""The store's own files below its root; keys cannot begin with a dot."""


class LocalObjects:
    """Objects as files below ``root`` (made if absent).

    Raises:
        StorageFailed: from any write whose fsync, link or rename failed. It must not be tried
            again: after a failed fsync nobody knows what is on the disk.
        DiskFull: no space for the temporary file; nothing was written.
    """

    def __init__(self, root: Path, files: LocalFiles | None = None) -> None:
        self._root = root.resolve()
        self._files = LocalFiles() if files is None else files
        self._temporary = self._root / OWN_DIRECTORY / "tmp"
        self._names = 0
        self._lock = threading.Lock()
        self._make_directories(self._temporary)
        self._sweep()

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    def path(self, key: str) -> Path:
        """The file of an object."""
        return self._root / check_key(key)

    # -- writing ---------------------------------------------------------------------------

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._write(
            key, lambda path: self._files.write_synced(path, data), self._files.rename
        )

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self._write(key, lambda path: self._files.write_synced(path, data), self._files.link)

    def create_from(self, key: str, produce: Produce) -> ObjectInfo:
        """See :func:`danube.objects.streaming.create_from`."""
        return self._write(
            key, lambda path: self._files.write_streamed(path, produce), self._files.link
        )

    def replace(self, key: str, data: Buffer, etag: str) -> ObjectInfo:
        # No file system replaces by comparison: whoever replaces takes turns.
        with self._files.locked(self._root / OWN_DIRECTORY / "replace.lock"):
            if self.head(key).etag != etag:
                raise ObjectChanged(f"object {key} is not at entity tag {etag} any more")
            return self.put(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        touched: set[Path] = set()
        for key in keys:
            path = self.path(key)
            try:
                self._files.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                _failed("delete", path, error)
            touched.add(path.parent)
        for directory in sorted(touched):
            self._sync_directory(directory)

    def sync(self, keys: Sequence[str]) -> None:
        """Bring objects to the disk that another library wrote into the root without syncing.

        Raises:
            ObjectNotFound: one of them is not there.
        """
        for key in keys:
            path = self.path(key)
            try:
                self._files.sync_file(path)
            except FileNotFoundError:
                raise _absent(key) from None
            except OSError as error:
                _failed("sync", path, error)
        for directory in sorted({self.path(key).parent for key in keys}):
            self._sync_directory(directory)

    def _write(
        self, key: str, fill: Callable[[Path], None], place: Callable[[Path, Path], None]
    ) -> ObjectInfo:
        target = self.path(key)
        self._make_directories(target.parent)
        temporary = self._temporary_name()
        try:
            self._write_temporary(temporary, fill)
            try:
                place(temporary, target)
            except FileExistsError:
                raise ObjectExists(f"object {key} exists already") from None
            except OSError as error:
                _no_links(target, error)
                _failed("name", target, error)
            info = _info(key, os.stat(target))
        finally:
            self._discard(temporary)
        self._sync_directory(target.parent)
        return info

    def _write_temporary(self, path: Path, fill: Callable[[Path], None]) -> None:
        try:
            fill(path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space to write below {self._root}; free some") from error
            _failed("write", path, error)

    def _temporary_name(self) -> Path:
        with self._lock:
            self._names += 1
            return self._temporary / f"{os.getpid()}-{id(self):x}-{self._names}"

    def _discard(self, temporary: Path) -> None:
        try:
            self._files.unlink(temporary)
        except FileNotFoundError:
            pass  # renamed
        except OSError:
            pass  # swept at the next start

    def _make_directories(self, path: Path) -> None:
        if path.is_dir():
            return
        if path != self._root:
            self._make_directories(path.parent)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._files.make_directory(path)
        except FileExistsError:
            if not path.is_dir():
                raise StorageFailed(f"{path} is a file where a directory belongs") from None
        except OSError as error:
            _failed("make", path, error)
        # Also when somebody else has just made it: they may not have synced it yet.
        self._sync_directory(path.parent)

    def _sync_directory(self, path: Path) -> None:
        try:
            self._files.sync_directory(path)
        except FileNotFoundError:
            pass  # a directory that is gone has no entries to lose
        except OSError as error:
            _failed("sync", path, error)

    def _sweep(self) -> None:
        """Remove temporary files of processes that have ended."""
        for path in self._temporary.iterdir():
            if not _alive(path.name.partition("-")[0]):
                path.unlink(missing_ok=True)

    # -- reading ---------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        try:
            return self.path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise _absent(key) from None
        except OSError as error:
            raise _unreadable(key, error) from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            descriptor = os.open(self.path(key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise _absent(key) from None
        except OSError as error:
            raise _unreadable(key, error) from error
        try:
            return _read(descriptor, start, length)
        except IsADirectoryError:
            raise _absent(key) from None
        except OSError as error:
            raise _unreadable(key, error) from error
        finally:
            os.close(descriptor)

    def head(self, key: str) -> ObjectInfo:
        path = self.path(key)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise _absent(key) from None
        if path.is_dir():
            raise _absent(key)
        return _info(key, status)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        parent = prefix.rpartition("/")[0]
        return self._walk(parent, prefix, start_after)

    def _walk(self, directory: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        try:
            entries = list(os.scandir(self._root / directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        lead = f"{directory}/" if directory else ""
        # Keys are ordered as text, in which a directory's name ends with its slash.
        named = [
            (lead + entry.name + ("/" if entry.is_dir() else ""), entry)
            for entry in entries
            if not entry.name.startswith(".")
        ]
        for key, entry in sorted(named, key=lambda item: item[0]):
            if key.endswith("/"):
                last_below = key[:-1] + "0"  # the character after the slash
                related = key.startswith(prefix) or prefix.startswith(key)
                if related and last_below > start_after:
                    yield from self._walk(key[:-1], prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                try:
                    yield _info(key, entry.stat())
                except FileNotFoundError:
                    continue  # deleted while we were listing


def _read(descriptor: int, start: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(descriptor, length, start)):
        parts.append(part)
        start += len(part)
        length -= len(part)
    return b"".join(parts)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1000, etag)


def _absent(key: str) -> ObjectNotFound:
    return ObjectNotFound(f"there is no object {key}")


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:
        return True
    return True


def _no_links(path: Path, error: OSError) -> None:
    if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
        raise StorageFailed(
            f"cannot create {path}: {error.strerror}; the file system there has no hard links, "
            "which atomic creation needs. Put the data directory on another one"
        ) from error


def _unreadable(key: str, error: OSError) -> ObjectStoreUnavailable:
    return ObjectStoreUnavailable(
        f"cannot read object {key}: {error.strerror or error}; check the disk and its permissions"
    )


def _failed(what: str, path: Path, error: OSError) -> NoReturn:
    raise StorageFailed(
        f"cannot {what} {path}: {error.strerror or error}; check the disk and its permissions, "
        "then start again"
    ) from error
