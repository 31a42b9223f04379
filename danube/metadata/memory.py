"""A metadata store in memory, for tests and the simulator.

No method gives the event loop a chance to switch before it is done, so every one is atomic.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final

from danube.core.clock import Clock
from danube.core.errors import NotFound, Unavailable
from danube.core.stores import (
    Compare,
    CompareTarget,
    Delete,
    KeyValue,
    Put,
    TransactionResult,
    WatchCompacted,
    WatchEvent,
)
from danube.metadata.limits import HISTORY_EVENTS, check_key, check_transaction, check_ttl

LEASE_POLL_S: Final = 0.05
"""How often a waiting watch looks for leases that ended."""


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    deadline_s: float
    keys: set[str] = field(default_factory=set)


class MemoryMetadata:
    """Keys in a dictionary and a sorted list; for one event loop.

    Args:
        clock: whose ``boottime_s`` ends leases.
        history_events: newest changes kept for watches to resume from.
    """

    def __init__(self, clock: Clock, *, history_events: int = HISTORY_EVENTS) -> None:
        self._clock = clock
        self._history_events = history_events
        self._data: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._events: deque[WatchEvent] = deque()
        self._revision = 0
        self._compacted = 0
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = count(1)
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    # -- reading ---------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        self._begin()
        check_key(key)
        return self._data.get(key)

    async def get_many(self, keys: Sequence[str]) -> list[KeyValue | None]:
        self._begin()
        for key in keys:
            check_key(key)
        return [self._data.get(key) for key in keys]

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0) -> list[KeyValue]:
        self._begin()
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        found: list[KeyValue] = []
        for key in islice(self._keys, first, None):
            if not key.startswith(prefix) or (limit and len(found) == limit):
                break
            found.append(self._data[key])
        return found

    async def revision(self) -> int:
        self._begin()
        return self._revision

    # -- writing ---------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        return (await self.transact([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        self._begin()
        found = key in self._data
        await self.transact([], [Delete(key)])
        return found

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TransactionResult:
        self._begin()
        check_transaction(compares, operations)
        if not all(self._holds(compare) for compare in compares):
            return TransactionResult(False, self._revision)
        self._apply(operations)
        return TransactionResult(True, self._revision)

    def _holds(self, compare: Compare) -> bool:
        found = self._data.get(compare.key)
        match compare.target:
            case CompareTarget.VALUE:
                return found is not None and found.value == compare.expected
            case CompareTarget.CREATE_REVISION:
                return (found.create_revision if found else 0) == compare.expected
            case CompareTarget.MOD_REVISION:
                return (found.mod_revision if found else 0) == compare.expected

    def _apply(self, operations: Sequence[Put | Delete]) -> None:
        for operation in operations:
            lease = operation.lease if isinstance(operation, Put) else 0
            if lease and lease not in self._leases:
                raise NotFound(f"lease {lease} does not exist (any more); take a new one")
        effective = [o for o in operations if isinstance(o, Put) or o.key in self._data]
        if not effective:
            return
        self._revision += 1
        for operation in effective:
            if isinstance(operation, Put):
                self._put(operation)
            else:
                self._remove(operation.key)
        self._forget_history()
        self._wake()

    def _put(self, operation: Put) -> None:
        before = self._data.get(operation.key)
        if before is None:
            insort(self._keys, operation.key)
        elif before.lease:
            self._leases[before.lease].keys.discard(operation.key)
        created = self._revision if before is None else before.create_revision
        current = KeyValue(
            operation.key, bytes(operation.value), created, self._revision, operation.lease
        )
        self._data[operation.key] = current
        if operation.lease:
            self._leases[operation.lease].keys.add(operation.key)
        self._events.append(WatchEvent(operation.key, current, self._revision))

    def _remove(self, key: str) -> None:
        before = self._data.pop(key)
        del self._keys[bisect_left(self._keys, key)]
        if before.lease in self._leases:
            self._leases[before.lease].keys.discard(key)
        self._events.append(WatchEvent(key, None, self._revision))

    # -- watches ---------------------------------------------------------------------------

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[WatchEvent]:
        seen = after_revision
        while True:
            self._begin()
            if seen < self._compacted:
                raise WatchCompacted(
                    f"changes after revision {seen} are gone, the oldest kept is "
                    f"{self._compacted + 1}; list the keys again and watch from there"
                )
            fresh = [event for event in self._events if event.revision > seen]
            seen = max(seen, self._revision)
            for event in fresh:
                if event.key.startswith(prefix):
                    yield event
            if not fresh:
                await self._change()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=LEASE_POLL_S if self._leases else None)
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _forget_history(self) -> None:
        while len(self._events) > self._history_events:
            self._compacted = self._events.popleft().revision

    # -- leases ----------------------------------------------------------------------------

    async def grant_lease(self, ttl_s: float) -> int:
        self._begin()
        check_ttl(ttl_s)
        lease = next(self._lease_ids)
        self._leases[lease] = _Lease(ttl_s, self._clock.boottime_s() + ttl_s)
        self._wake()
        return lease

    async def keep_alive(self, lease: int) -> bool:
        self._begin()
        found = self._leases.get(lease)
        if found is None:
            return False
        found.deadline_s = self._clock.boottime_s() + found.ttl_s
        return True

    async def revoke_lease(self, lease: int) -> None:
        self._begin()
        self._end_lease(lease)

    def _end_lease(self, lease: int) -> None:
        found = self._leases.pop(lease, None)
        if found is not None:
            self._apply([Delete(key) for key in sorted(found.keys)])

    def _begin(self) -> None:
        if self._closed:
            raise Unavailable("the metadata store is closed")
        now = self._clock.boottime_s()
        for lease in [item for item, found in self._leases.items() if found.deadline_s <= now]:
            self._end_lease(lease)

    async def close(self) -> None:
        self._closed = True
        self._wake()
