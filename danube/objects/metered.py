"""Counts and times what goes through an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from danube.core import telemetry
from danube.core.errors import DanubeError
from danube.core.stores import Buffer, ObjectInfo, ObjectStore
from danube.objects.streaming import Produce, create_from
from danube.objects.syncing import sync

T = TypeVar("T")

SECONDS = telemetry.histogram(
    "object_store_seconds", "Seconds per object store request.", ("operation",)
)
FAILURES = telemetry.counter(
    "object_store_failures", "Object store requests that failed, by error.", ("operation", "error")
)
BYTES = telemetry.counter(
    "object_store_bytes", "Bytes moved to and from the object store.", ("direction",)
)


class MeteredObjects:
    """``inner`` with metrics; behaves as it does."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    @property
    def uri(self) -> str:
        return self._inner.uri

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._written(self._timed("put", lambda: self._inner.put(key, data)))

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self._written(self._timed("create", lambda: self._inner.create(key, data)))

    def create_from(self, key: str, produce: Produce) -> ObjectInfo:
        """See :func:`danube.objects.streaming.create_from`. Making the bytes counts as well."""
        return self._written(self._timed("create", lambda: create_from(self._inner, key, produce)))

    def replace(self, key: str, data: Buffer, etag: str) -> ObjectInfo:
        return self._written(self._timed("replace", lambda: self._inner.replace(key, data, etag)))

    def get(self, key: str) -> bytes:
        return self._read(self._timed("get", lambda: self._inner.get(key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read(
            self._timed("get_range", lambda: self._inner.get_range(key, start, length))
        )

    def head(self, key: str) -> ObjectInfo:
        return self._timed("head", lambda: self._inner.head(key))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        # Lazy, and as long as whoever takes it: only what fails at once is seen here.
        return self._timed("list", lambda: self._inner.list(prefix, start_after=start_after))

    def delete(self, keys: Sequence[str]) -> None:
        self._timed("delete", lambda: self._inner.delete(keys))

    def sync(self, keys: Sequence[str]) -> None:
        """See :func:`danube.objects.syncing.sync`."""
        self._timed("sync", lambda: sync(self._inner, keys))

    def _timed(self, operation: str, run: Callable[[], T]) -> T:
        with SECONDS.labels(operation).time():
            try:
                return run()
            except DanubeError as error:
                FAILURES.labels(operation, type(error).__name__).inc()
                raise

    def _written(self, info: ObjectInfo) -> ObjectInfo:
        BYTES.labels("written").inc(info.size_bytes)
        return info

    def _read(self, data: bytes) -> bytes:
        BYTES.labels("read").inc(len(data))
        return data
