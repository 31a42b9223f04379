"""Subscriptions as descriptors; where they stand is in the journal."""

from __future__ import annotations

from danube.core.errors import AlreadyExists, SubscriptionNotFound, TopicNotFound
from danube.core.names import TopicId, check_name
from danube.core.stores import Compare, Put
from danube.metadata import keys
from danube.metadata.catalog.base import RACES, CatalogBase, contended, revision_of
from danube.metadata.records import SubscriptionRecord


class Subscriptions(CatalogBase):
    """The family of subscriptions."""

    async def create_subscription(
        self, record: SubscriptionRecord, if_not_exists: bool = True
    ) -> tuple[SubscriptionRecord, bool]:
        """Create a subscription; returns the one that has the name and whether it is new.

        Raises:
            InvalidName: not a subscription's name.
            TopicNotFound: the topic is gone.
            AlreadyExists: it exists, and ``if_not_exists`` is False.
        """
        check_name(record.name, "subscription")
        by_id = keys.topic_id(record.topic_id)
        key = keys.subscription(record.topic_id, record.name)
        for _ in range(RACES):
            topic, existing = await self.store.get_many([by_id, key])
            if topic is None:
                raise TopicNotFound(f"topic {record.topic_id} does not exist")
            if existing is not None:
                if not if_not_exists:
                    raise AlreadyExists(f"subscription {record.name} exists already")
                return SubscriptionRecord.from_bytes(key, existing.value), False
            # The topic must still be there: nothing would ever remove this record otherwise.
            compares = [Compare.unchanged(by_id, revision_of(topic)), Compare.absent(key)]
            if await self._applied(compares, [Put(key, record.to_bytes())]) is not None:
                return record, True
        raise contended(f"subscription {record.name}")

    async def subscription(self, topic_id: TopicId, name: str) -> SubscriptionRecord | None:
        """The topic's subscription of that name."""
        key = keys.subscription(topic_id, name)
        found = await self.store.get(key)
        return None if found is None else SubscriptionRecord.from_bytes(key, found.value)

    async def list_subscriptions(
        self, topic_id: TopicId, start_after: str = "", limit: int = 0
    ) -> list[SubscriptionRecord]:
        """A page of the topic's subscriptions.

        Args:
            topic_id: of the topic.
            start_after: the last name of the page before.
            limit: at most so many; 0 for a page of the default size.
        """
        after = keys.subscription(topic_id, start_after) if start_after else ""
        found = await self._page(keys.subscriptions_of(topic_id), after, limit)
        return [SubscriptionRecord.from_bytes(item.key, item.value) for item in found]

    async def delete_subscription(self, topic_id: TopicId, name: str) -> None:
        """Delete a subscription.

        Raises:
            SubscriptionNotFound: there is none of that name.
        """
        if not await self.store.delete(keys.subscription(topic_id, name)):
            raise SubscriptionNotFound(f"there is no subscription {name!r} on topic {topic_id}")
