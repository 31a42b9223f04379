"""Faults in front of any object store: lost replies, time-outs, refusals, crashes, pauses.

Tests and the simulator decide by a plan; the store behind stays the real one.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from danube.core.stores import Buffer, ObjectInfo, ObjectStore, ObjectStoreUnavailable
from danube.objects.streaming import Produce, create_from
from danube.objects.syncing import sync

T = TypeVar("T")


class Crashed(BaseException):
    """The process "ends" here; nothing of ours may catch it."""


class Fault(enum.Enum):
    """What happens to one call."""

    LOST_REPLY = "lost reply"  # carried out, but the caller hears a time-out
    TIMEOUT = "time-out"  # not carried out, and the caller cannot know
    REFUSED = "503"  # not carried out
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    LATE = "late"  # the caller hears a time-out; carried out at the next call of deliver_late


Plan = Callable[[str, str], Fault | None]
"""Given the operation's name and the (first) key, which fault to inject. It may also wait."""


class FaultyObjects:
    """``inner`` behind ``plan``."""

    def __init__(self, inner: ObjectStore, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self._late: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        return self._inner.uri

    def deliver_late(self) -> None:
        """Carry out every call that was late, in order; whatever it raises nobody hears."""
        with self._lock:
            late, self._late = self._late, []
        for call in late:
            try:
                call()
            except Exception:
                pass  # the one who asked has long stopped waiting

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._call("put", key, lambda: self._inner.put(key, data))

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self._call("create", key, lambda: self._inner.create(key, data))

    def create_from(self, key: str, produce: Produce) -> ObjectInfo:
        """See :func:`danube.objects.streaming.create_from`; a ``create`` to the plan."""
        return self._call("create", key, lambda: create_from(self._inner, key, produce))

    def replace(self, key: str, data: Buffer, etag: str) -> ObjectInfo:
        return self._call("replace", key, lambda: self._inner.replace(key, data, etag))

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: self._inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        return self._call("head", key, lambda: self._inner.head(key))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._call("list", prefix, lambda: self._listed(prefix, start_after))

    def _listed(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        return iter(list(self._inner.list(prefix, start_after=start_after)))

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", keys[0] if keys else "", lambda: self._inner.delete(keys))

    def sync(self, keys: Sequence[str]) -> None:
        """See :func:`danube.objects.syncing.sync`."""
        self._call("sync", keys[0] if keys else "", lambda: sync(self._inner, keys))

    def _call(self, operation: str, key: str, run: Callable[[], T]) -> T:
        fault = self._plan(operation, key)
        if fault is None:
            return run()
        if fault is Fault.CRASH_BEFORE:
            raise Crashed(f"crashed before {operation} {key}")
        if fault in (Fault.LOST_REPLY, Fault.CRASH_AFTER):
            run()
        if fault is Fault.CRASH_AFTER:
            raise Crashed(f"crashed after {operation} {key}")
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(run)
        raise ObjectStoreUnavailable(
            f"{operation} of {key}: injected {fault.value}; whether it was carried out is not known"
        )
