"""The two storage protocols every backend implements: objects and metadata.

``ObjectStore`` is blocking, because its users are pyarrow and delta-rs in bounded threads, and
Spark executors. ``MetadataStore`` is asynchronous, because its users coordinate. Both are defined
here so that rooms take them as arguments and tests inject faults behind them.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from danube.core.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable

Buffer = bytes | bytearray | memoryview


class ObjectNotFound(NotFound):
    """No object under that key."""


class ObjectExists(AlreadyExists):
    """A conditional create found the key taken."""


class ObjectChanged(FailedPrecondition):
    """A conditional replace found another entity tag."""


class ObjectStoreUnavailable(Unavailable):
    """The store failed or did not answer; whether a put landed is not known."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a head tells of one object."""

    key: str
    size_bytes: int
    modified_us: int
    etag: str


class ObjectStore(Protocol):
    """Durable objects under ``/``-separated keys. A put that returned survives a power cut."""

    @property
    def uri(self) -> str:
        """Root, e.g. ``file:///var/lib/danube/lake`` or ``s3://bucket/prefix``; no slash at end."""

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        """Create or replace. Raises ObjectStoreUnavailable."""

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        """Create if absent, as one atomic step. Raises ObjectExists, ObjectStoreUnavailable."""

    def replace(self, key: str, data: Buffer, etag: str) -> ObjectInfo:
        """Replace if the tag still matches. Raises ObjectChanged, ObjectNotFound."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound, ObjectStoreUnavailable."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``. Raises ObjectNotFound."""

    def head(self, key: str) -> ObjectInfo:
        """Raises ObjectNotFound."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with ``prefix`` and is > ``start_after``, by key ascending."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete; absent keys are fine."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key of the metadata store, in etcd's shape."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


class CompareTarget(enum.Enum):
    """What a comparison looks at."""

    VALUE = "value"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"


@dataclass(frozen=True, slots=True)
class Compare:
    """``target`` of ``key`` equals ``expected``; revisions of an absent key are 0."""

    key: str
    target: CompareTarget
    expected: int | bytes

    @classmethod
    def absent(cls, key: str) -> Compare:
        """The key does not exist."""
        return cls(key, CompareTarget.MOD_REVISION, 0)

    @classmethod
    def unchanged(cls, key: str, mod_revision: int) -> Compare:
        """The key is as it was read (``mod_revision`` 0: still absent)."""
        return cls(key, CompareTarget.MOD_REVISION, mod_revision)


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``key``; ``lease`` 0 means for ever."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete ``key`` if it is there."""

    key: str


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Whether every comparison held (and so the operations were applied), and the revision."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change: ``current`` is None for a deletion. ``revision`` orders events."""

    key: str
    current: KeyValue | None
    revision: int


class WatchCompacted(FailedPrecondition):
    """History before the revision asked for is gone: list again and watch from there."""


class MetadataStore(Protocol):
    """Small, strongly consistent keys with revisions, transactions, watches and leases.

    Revisions are one store-wide counter. Keys are text, sorted by code point. Failures raise
    ``danube.core.errors.Unavailable``; whether a write landed is then not known.
    """

    async def get(self, key: str) -> KeyValue | None:
        """The key, or None."""

    async def get_many(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """Each key or None, from one revision."""

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0) -> list[KeyValue]:
        """Keys with ``prefix`` and > ``start_after``, ascending; ``limit`` 0 means all."""

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write unconditionally; returns the revision."""

    async def delete(self, key: str) -> bool:
        """Delete; whether it was there."""

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TransactionResult:
        """Apply all operations if all comparisons hold, atomically and durably."""

    def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[WatchEvent]:
        """Every change under ``prefix`` with revision > ``after_revision``, in order, for ever.

        Raises WatchCompacted when that history is gone.
        """

    async def revision(self) -> int:
        """The newest revision."""

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease id (> 0); its keys go when it is not kept alive for ``ttl_s`` seconds."""

    async def keep_alive(self, lease: int) -> bool:
        """Renew; False when the lease has already gone."""

    async def revoke_lease(self, lease: int) -> None:
        """End the lease now and delete its keys."""

    async def close(self) -> None:
        """Release files and connections."""
