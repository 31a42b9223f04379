"""The single record of each Spark sink; ``danube/log/decisions`` says what may be written to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from danube.core.errors import InvalidRequest
from danube.core.stores import Compare, Delete, MetadataStore, Put
from danube.metadata import keys
from danube.metadata.catalog.base import PAGE_RECORDS
from danube.metadata.records import SinkRecord

MAX_ID_CHARACTERS: Final = 500
"""Longest query id or sink name."""


class SinkRecords:
    """The family of sink records. Every write compares the revision that was read.

    Args:
        store: where the records lie.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, query_id: str, sink_name: str) -> SinkRecord | None:
        """The sink's record, with its revision."""
        key = sink_key(query_id, sink_name)
        found = await self._store.get(key)
        return (
            None if found is None else SinkRecord.from_bytes(key, found.value, found.mod_revision)
        )

    async def write(
        self, record: SinkRecord, before: SinkRecord | None, also: Sequence[Compare] = ()
    ) -> SinkRecord | None:
        """Replace ``before`` (None: create) if nobody has changed it and ``also`` holds.

        Returns the record with its new revision, or None when a comparison failed.
        """
        key = sink_key(record.query_id, record.sink_name)
        unchanged = Compare.unchanged(key, 0 if before is None else before.revision)
        result = await self._store.transact([unchanged, *also], [Put(key, record.to_bytes())])
        return replace(record, revision=result.revision) if result.succeeded else None

    async def remove(self, record: SinkRecord) -> bool:
        """Delete the record if nobody has changed it."""
        key = sink_key(record.query_id, record.sink_name)
        unchanged = Compare.unchanged(key, record.revision)
        return (await self._store.transact([unchanged], [Delete(key)])).succeeded

    async def page(
        self, start_after: tuple[str, str] | None = None, limit: int = 0
    ) -> list[SinkRecord]:
        """A page of records.

        Args:
            start_after: query id and sink name of the last one of the page before.
            limit: at most so many; 0 for a page of the default size.
        """
        after = "" if start_after is None else sink_key(*start_after)
        size = min(limit, PAGE_RECORDS) if limit > 0 else PAGE_RECORDS
        found = await self._store.range(keys.SINKS, start_after=after, limit=size)
        return [SinkRecord.from_bytes(i.key, i.value, i.mod_revision) for i in found]


def sink_key(query_id: str, sink_name: str) -> str:
    """Where a sink's record lies.

    Raises:
        InvalidRequest: an id that is empty or too long.
    """
    for what, text in (("query id", query_id), ("sink name", sink_name)):
        if not 0 < len(text) <= MAX_ID_CHARACTERS:
            raise InvalidRequest(
                f"a sink's {what} has 1 to {MAX_ID_CHARACTERS} characters, not {len(text)}"
            )
    return keys.sink(query_id, sink_name)
