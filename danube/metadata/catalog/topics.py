"""Namespaces and topics: created, found, listed, deleted down to a tombstone."""

from __future__ import annotations

from typing import Final

from danube.core.errors import (
    AlreadyExists,
    InvalidName,
    InvalidRequest,
    NotFound,
    TopicNotFound,
    TopicReplaced,
)
from danube.core.names import TopicId, TopicName
from danube.core.stores import Compare, Delete, KeyValue, Put
from danube.metadata import keys
from danube.metadata.catalog.base import RACES, CatalogBase, contended, revision_of
from danube.metadata.records import DeletedTopic, TopicRecord

DEFAULT_NAMESPACE: Final = "default"
SYSTEM_NAMESPACE: Final = "system"
ALWAYS_THERE: Final = (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE)
DURABILITIES: Final = ("disk", "object", "memory")

MAX_PARTITIONS: Final = 4_096
"""Partitions of one topic."""


class Topics(CatalogBase):
    """The families of namespaces and topics."""

    def new_topic_id(self) -> TopicId:
        """An id that no topic has had."""
        return TopicId(self._ids.random_bytes(16))

    # -- namespaces ------------------------------------------------------------------------

    async def namespaces(self) -> list[str]:
        """Every namespace, sorted."""
        found = await self.store.range(keys.NAMESPACES)
        names = {item.value.decode() for item in found} | set(ALWAYS_THERE)
        return sorted(names)

    async def create_namespace(self, name: str) -> bool:
        """Create a namespace; whether it was not there.

        Raises:
            InvalidName: not a namespace's name.
        """
        TopicName.parse(f"/{name}/x")
        if name in ALWAYS_THERE:
            return False
        key = keys.namespace(name)
        return await self._applied([Compare.absent(key)], [Put(key, name.encode())]) is not None

    # -- finding ---------------------------------------------------------------------------

    async def topic(self, name: TopicName) -> TopicRecord | None:
        """The topic of that name."""
        return _topic(await self.store.get(keys.topic(name)))

    async def topic_by_id(self, topic_id: TopicId) -> TopicRecord | None:
        """The topic with that id; None when it never was or was deleted."""
        found = await self.store.get(keys.topic_id(topic_id))
        if found is None:
            return None
        record = await self.topic(TopicName.parse(found.value.decode()))
        return record if record is not None and record.topic_id == topic_id else None

    async def list_topics(
        self, namespace: str | None = None, start_after: TopicName | None = None, limit: int = 0
    ) -> list[TopicRecord]:
        """A page of topics by name, of one namespace or of all.

        Args:
            namespace: None for all.
            start_after: the last name of the page before.
            limit: at most so many; 0 for a page of the default size.
        """
        after = "" if start_after is None else keys.topic(start_after)
        found = await self._page(keys.topics_of(namespace), after, limit)
        return [TopicRecord.from_bytes(item.key, item.value) for item in found]

    # -- creating --------------------------------------------------------------------------

    async def create_topic(
        self, record: TopicRecord, if_not_exists: bool = False, *, strict: bool = False
    ) -> tuple[TopicRecord, bool]:
        """Create a topic; returns it and whether it is new.

        Args:
            record: with a fresh topic id (``new_topic_id``).
            if_not_exists: return the topic that has the name instead of failing.
            strict: fail when the namespace does not exist instead of creating it.

        Raises:
            AlreadyExists: the name is taken, by a topic or by a partition of one.
            InvalidName, InvalidRequest: the record cannot be.
            NotFound: with ``strict``, no such namespace.
        """
        check_topic(record)
        for _ in range(RACES):
            existing = await self.store.get(keys.topic(record.name))
            found = _topic(existing)
            if found is not None and if_not_exists:
                return found, False
            if found is not None:
                raise AlreadyExists(f"topic {record.name} exists already")
            compares, operations = await self._creation(record, strict)
            if await self._applied(compares, operations) is not None:
                return record, True
        raise contended(f"topic {record.name}")

    async def _creation(
        self, record: TopicRecord, strict: bool
    ) -> tuple[list[Compare], list[Put | Delete]]:
        name, by_id = keys.topic(record.name), keys.topic_id(record.topic_id)
        # A deleted topic's id must not come back: its table's objects may still be there.
        compares = [Compare.absent(key) for key in (name, by_id, keys.deleted(record.topic_id))]
        operations: list[Put | Delete] = [
            Put(name, record.to_bytes()),
            Put(by_id, str(record.name).encode()),
        ]
        operations += await self._missing_namespace(record.name.namespace, strict)
        if record.partitioned:
            compares.append(await self._no_such_partition_names(record.name))
        split = record.name.split_partition()
        if split is not None:
            compares.append(await self._not_a_partition(record.name, split[0]))
            operations.append(Put(keys.partition_names_guard(split[0]), b""))
        return compares, operations

    async def _missing_namespace(self, name: str, strict: bool) -> list[Put]:
        key = keys.namespace(name)
        if name in ALWAYS_THERE or await self.store.get(key) is not None:
            return []
        if strict:
            raise NotFound(f"there is no namespace {name!r}; create it first")
        return [Put(key, name.encode())]

    async def _no_such_partition_names(self, base: TopicName) -> Compare:
        """The partitions' names must be free, and stay free until the topic is there."""
        guard = keys.partition_names_guard(base)
        revision = revision_of(await self.store.get(guard))
        after = ""
        while page := await self._page(keys.partition_names_of(base), after, 0):
            for item in page:
                other = TopicRecord.from_bytes(item.key, item.value).name
                if other.split_partition() is not None:
                    raise AlreadyExists(
                        f"topic {other} has the name of a partition of {base}; delete it or "
                        "choose another name"
                    )
            after = page[-1].key
        return Compare.unchanged(guard, revision)

    async def _not_a_partition(self, name: TopicName, base: TopicName) -> Compare:
        found = await self.store.get(keys.topic(base))
        record = _topic(found)
        if record is not None and record.partitioned:
            raise AlreadyExists(f"{name} is the name of a partition of {base}; choose another name")
        return Compare.unchanged(keys.topic(base), revision_of(found))

    # -- deleting --------------------------------------------------------------------------

    async def delete_topic(self, record: TopicRecord) -> None:
        """Delete a topic: its name is free, its owners lose their claims, a tombstone stays.

        Raises:
            TopicNotFound: it is gone already.
            TopicReplaced: another topic has the name by now.
        """
        for _ in range(RACES):
            found = await self.store.get(keys.topic(record.name))
            current = _topic(found)
            if found is None or current is None:
                raise TopicNotFound(f"topic {record.name} does not exist")
            if current.topic_id != record.topic_id:
                raise TopicReplaced(
                    f"topic {record.name} was deleted and created again: its id is "
                    f"{current.topic_id}, not {record.topic_id}"
                )
            if await self._bury(found, current):
                await self.clear_deleted(current.topic_id)
                return
        raise contended(f"topic {record.name}")

    async def _bury(self, found: KeyValue, record: TopicRecord) -> bool:
        stone = DeletedTopic(record.topic_id, record.name, record.partitions, self._clock.now_us())
        compares = [Compare.unchanged(found.key, found.mod_revision)]
        operations: list[Put | Delete] = [
            Delete(found.key),
            Delete(keys.topic_id(record.topic_id)),
            Put(keys.deleted(record.topic_id), stone.to_bytes()),
        ]
        return await self._applied(compares, operations) is not None

    async def clear_deleted(self, topic_id: TopicId) -> None:
        """Remove a deleted topic's claims, epochs, ceilings and subscriptions; idempotent."""
        for prefix in (
            keys.claims_of(topic_id),
            keys.subscriptions_of(topic_id),
            keys.ceilings_of(topic_id),
            keys.epochs_of(topic_id),
        ):
            await self._delete_all(prefix)

    async def deleted_topics(
        self, start_after: TopicId | None = None, limit: int = 0
    ) -> list[DeletedTopic]:
        """A page of tombstones by topic id: topics whose table objects are to be removed."""
        after = "" if start_after is None else keys.deleted(start_after)
        found = await self._page(keys.DELETED, after, limit)
        return [DeletedTopic.from_bytes(item.key, item.value) for item in found]

    async def was_deleted(self, topic_id: TopicId) -> bool:
        """Whether there is a tombstone of that topic."""
        return await self.store.get(keys.deleted(topic_id)) is not None

    async def forget_deleted(self, topic_id: TopicId) -> None:
        """Remove a tombstone, after the table's objects are gone."""
        await self.clear_deleted(topic_id)
        await self.store.transact(
            [], [Delete(keys.table(topic_id)), Delete(keys.deleted(topic_id))]
        )


def check_topic(record: TopicRecord) -> None:
    """Raise InvalidName or InvalidRequest for a topic that cannot be."""
    if TopicName.parse(str(record.name)) != record.name:
        raise InvalidName(f"{record.name} is not a topic name; write it as /namespace/topic")
    if not 1 <= record.partitions <= MAX_PARTITIONS:
        raise InvalidRequest(
            f"{record.name} has 1 to {MAX_PARTITIONS} partitions, not {record.partitions}"
        )
    if not record.partitioned and record.partitions != 1:
        raise InvalidRequest(f"{record.name} is not partitioned and so has one partition")
    if record.durability not in DURABILITIES:
        raise InvalidRequest(
            f"{record.name} cannot have durability {record.durability!r}; "
            f"choose one of {', '.join(DURABILITIES)}"
        )
    for what, value in (
        ("max_message_bytes", record.max_message_bytes),
        ("retention_ms", record.retention_ms),
        ("retention_bytes", record.retention_bytes),
    ):
        if value is not None and value < 1:
            raise InvalidRequest(f"{what} of {record.name} must be at least 1, not {value}")


def _topic(found: KeyValue | None) -> TopicRecord | None:
    return None if found is None else TopicRecord.from_bytes(found.key, found.value)
