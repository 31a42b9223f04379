"""From names in requests to open partitions: looked up, checked against the topic id, claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from danube.core.errors import InvalidRequest, TopicNotFound, TopicReplaced, Unsupported
from danube.core.names import TopicName
from danube.log.engine import LogEngine
from danube.log.topic import Owned, TopicLog
from danube.metadata.catalog import Catalog, TopicRecord
from danube.wire import translate


class Topics:
    """Finds topics and opens their partitions."""

    def __init__(self, engine: LogEngine) -> None:
        self.engine = engine

    async def record(self, name: str, topic_id: str = "") -> TopicRecord:
        """The topic's record.

        A partition's wire name (``/ns/topic-part-3``) is not a topic of its own here; requests
        of the batch service carry base name and number.

        Raises:
            InvalidName: not a topic name.
            TopicNotFound: no such topic.
            TopicReplaced: the name now belongs to another topic than ``topic_id``.
        """
        wanted = translate.optional_topic_id(topic_id)
        parsed = TopicName.parse(name)
        record = await self.engine.context.catalog.topic(parsed)
        if record is None:
            if wanted is not None:
                raise TopicReplaced(f"{name} with topic id {wanted} was deleted")
            raise TopicNotFound(f"there is no topic {name}; create it with `danube topics create`")
        if wanted is not None and record.topic_id != wanted:
            raise TopicReplaced(
                f"{name} was deleted and created again: it is topic {record.topic_id} now, not "
                f"{wanted}; open it anew if that is what you want"
            )
        return record

    async def open(
        self, name: str, topic_id: str, number: int
    ) -> tuple[TopicRecord, TopicLog, Owned]:
        """A reliable topic's partition, open for use.

        Raises:
            Unsupported: the topic is not reliable, so it has no log.
            InvalidRequest: no such partition.
        """
        record = await self.record(name, topic_id)
        if not record.reliable:
            raise Unsupported(
                f"{name} is non-reliable: its messages are never stored, so they have no offsets "
                "to read, plan or stage; create a reliable topic for that"
            )
        translate.partition_number(number, record.partitions)
        owned = await self.engine.partition(record, number)
        return record, await self.engine.topic(record), owned


async def all_topics(catalog: Catalog) -> AsyncIterator[TopicRecord]:
    """Every topic, page by page."""
    after: TopicName | None = None
    while page := await catalog.list_topics(None, start_after=after):
        for record in page:
            yield record
        after = page[-1].name


def require(present: bool, what: str) -> None:
    """Refuse a request that lacks a part it needs.

    Raises:
        InvalidRequest: it is absent.
    """
    if not present:
        raise InvalidRequest(f"the request has no {what}")
