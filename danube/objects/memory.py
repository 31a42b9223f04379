"""An object store in memory, for tests and the simulator."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from danube.core.clock import Clock, SystemClock
from danube.core.stores import Buffer, ObjectChanged, ObjectExists, ObjectInfo, ObjectNotFound
from danube.objects.keys import check_key

_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    info: ObjectInfo


class MemoryObjects:
    """Objects in a dictionary; thread-safe. ``clock`` dates them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()
        self._writes = 0
        # Two stores are two places: caches by URI must not mix them up.
        self._number = next(_NUMBERS)

    @property
    def uri(self) -> str:
        return f"memory://{self._number}"

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        with self._lock:
            return self._write(key, data)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        with self._lock:
            if key in self._objects:
                raise ObjectExists(f"object {key} exists already")
            return self._write(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> ObjectInfo:
        with self._lock:
            if self._find(key).info.etag != etag:
                raise ObjectChanged(f"object {key} is not at entity tag {etag} any more")
            return self._write(key, data)

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._find(key).data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._lock:
            return self._find(key).data[start : start + length]

    def head(self, key: str) -> ObjectInfo:
        with self._lock:
            return self._find(key).info

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            keys = sorted(k for k in self._objects if k.startswith(prefix) and k > start_after)
            found = [self._objects[key].info for key in keys]
        return iter(found)

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def _find(self, key: str) -> _Object:
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFound(f"there is no object {key}") from None

    def _write(self, key: str, data: Buffer) -> ObjectInfo:
        self._writes += 1
        info = ObjectInfo(check_key(key), len(data), self._clock.now_us(), f"m{self._writes}")
        self._objects[key] = _Object(bytes(data), info)
        return info
