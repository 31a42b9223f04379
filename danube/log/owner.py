"""This broker's partitions as participants of Spark batches.

The coordinator (``danube.log.decisions``) knows owners only by protocol; here is the one whose
partitions live in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from danube.core.errors import NotFound, Unavailable
from danube.core.names import PartitionId
from danube.core.stores import Compare
from danube.log.context import LogContext
from danube.log.decisions import Owner, SinkLabel
from danube.log.topic import Owned
from danube.metadata.catalog import LostPart, TopicRecord


class Partitions(Protocol):
    """Who opens partitions: the log engine."""

    context: LogContext

    async def partition(self, record: TopicRecord, number: int) -> Owned:
        """An open partition."""


class Owners:
    """Finds the owner of a partition. The engine is set once it exists."""

    engine: Partitions | None = None

    async def owner_of(self, partition: PartitionId) -> Owner:
        """The owner of a partition.

        Raises:
            TopicNotFound: the topic was deleted.
        """
        if self.engine is None:
            raise Unavailable("the broker is starting; try again")
        record = await self.engine.context.catalog.topic_by_id(partition.topic_id)
        if record is None:
            raise NotFound(f"topic {partition.topic_id} was deleted")
        return LocalOwner(self.engine, record, partition.partition)


class LocalOwner:
    """One partition of this broker as a participant."""

    def __init__(self, engine: Partitions, record: TopicRecord, number: int) -> None:
        self._engine = engine
        self._record = record
        self._number = number

    async def pin(self, commit_id: str, label: SinkLabel, sets: Sequence[str]) -> Sequence[Compare]:
        """Tie staged sets to a commit id, durably; returns what the decision must compare."""
        owned = await self._engine.partition(self._record, self._number)
        await owned.sinks.pin(commit_id, label.to_fields(), sets)
        return [self._engine.context.catalog.compare(owned.log.claim)]

    async def finish(self, commit_id: str) -> Sequence[LostPart]:
        """Give the pinned sets their offsets; what is not here went with a lost disk."""
        owned = await self._engine.partition(self._record, self._number)
        if await owned.sinks.finish(commit_id):
            return []
        return [LostPart(str(self._record.name), owned.log.partition, "sink")]

    async def unpin(self, commit_id: str) -> None:
        """Drop the sets of an aborted commit id."""
        owned = await self._engine.partition(self._record, self._number)
        await owned.sinks.unpin(commit_id)

    async def drop(self, sets: Sequence[str]) -> None:
        """Drop sets that no commit id holds."""
        owned = await self._engine.partition(self._record, self._number)
        await owned.sinks.drop(sets)
