"""What every family of records stands on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from danube.core.clock import Clock, IdSource
from danube.core.errors import Unavailable
from danube.core.stores import Compare, Delete, KeyValue, MetadataStore, Put

RACES: Final = 50
"""How often a compare-and-set that others keep winning is tried again."""

PAGE_RECORDS: Final = 1_000
"""Most records that one call lists, and the default."""

DELETE_KEYS: Final = 100
"""Keys deleted in one transaction."""


class CatalogBase:
    """The store, a clock and a source of ids.

    Args:
        store: where the records lie.
        clock: dates them.
        ids: makes topic ids.
    """

    def __init__(self, store: MetadataStore, clock: Clock, ids: IdSource) -> None:
        self.store = store
        self._clock = clock
        self._ids = ids

    async def _applied(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> int | None:
        """The revision if every comparison held, else None."""
        result = await self.store.transact(compares, operations)
        return result.revision if result.succeeded else None

    async def _page(self, prefix: str, start_after: str, limit: int) -> list[KeyValue]:
        size = min(limit, PAGE_RECORDS) if limit > 0 else PAGE_RECORDS
        return await self.store.range(prefix, start_after=start_after, limit=size)

    async def _delete_all(self, prefix: str) -> None:
        while found := await self.store.range(prefix, limit=DELETE_KEYS):
            await self.store.transact([], [Delete(item.key) for item in found])


def revision_of(found: KeyValue | None) -> int:
    """What ``Compare.unchanged`` takes for a key that was read."""
    return 0 if found is None else found.mod_revision


def contended(what: str) -> Unavailable:
    """The error of a compare-and-set that was lost too often."""
    return Unavailable(f"{what} was changed by others {RACES} times in a row; try again")
