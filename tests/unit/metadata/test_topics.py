"""Namespaces, topics and subscriptions in the catalog."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from danube.core.errors import (
    AlreadyExists,
    Corruption,
    InvalidName,
    InvalidRequest,
    NotFound,
    SubscriptionNotFound,
    TopicNotFound,
    TopicReplaced,
    UnsupportedFormat,
)
from danube.core.names import PartitionId, TopicName
from danube.metadata import keys
from danube.metadata.catalog import Catalog, SubscriptionRecord
from danube.metadata.memory import MemoryMetadata
from tests.clocks import ManualClock
from tests.unit.metadata.records import created, some_id, topic_record


async def test_a_created_topic_is_found_by_name_and_by_id(catalog: Catalog) -> None:
    record = await created(catalog, "/ns/t", retention_ms=5, retention_bytes=7)
    assert await catalog.topic(record.name) == record
    assert await catalog.topic_by_id(record.topic_id) == record


async def test_a_topic_that_is_not_there_is_none(catalog: Catalog) -> None:
    assert await catalog.topic(TopicName("ns", "t")) is None
    assert await catalog.topic_by_id(some_id(1)) is None


async def test_a_taken_name_is_refused_or_returned(catalog: Catalog) -> None:
    first = await created(catalog, "/ns/t")
    again = topic_record(catalog, "/ns/t", partitions=4, partitioned=True)
    with pytest.raises(AlreadyExists, match="/ns/t exists already"):
        await catalog.create_topic(again)
    assert await catalog.create_topic(again, if_not_exists=True) == (first, False)


async def test_of_many_creators_one_makes_the_topic_and_all_get_it(catalog: Catalog) -> None:
    results = await asyncio.gather(
        *(catalog.create_topic(topic_record(catalog, "/ns/t"), True) for _ in range(10))
    )
    assert len({record.topic_id for record, _ in results}) == 1
    assert sum(new for _, new in results) == 1


async def test_the_names_of_partitions_are_taken_by_their_topic(catalog: Catalog) -> None:
    await created(catalog, "/ns/t", partitions=2, partitioned=True)
    for name in ("/ns/t-part-0", "/ns/t-part-7"):
        with pytest.raises(AlreadyExists, match="partition of /ns/t"):
            await catalog.create_topic(topic_record(catalog, name))
    await created(catalog, "/ns/t-part-x")
    await created(catalog, "/ns/t-part-01")
    await created(catalog, "/other/t-part-0")


async def test_a_topic_named_like_a_partition_forbids_its_base(catalog: Catalog) -> None:
    record = await created(catalog, "/ns/t-part-3")
    partitioned = topic_record(catalog, "/ns/t", partitions=2, partitioned=True)
    with pytest.raises(AlreadyExists, match="/ns/t-part-3 has the name of a partition"):
        await catalog.create_topic(partitioned)
    await catalog.delete_topic(record)
    assert (await catalog.create_topic(partitioned))[1]


async def test_base_and_partition_created_at_once_do_not_both_come_to_be(
    catalog: Catalog, memory: MemoryMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = MemoryMetadata.transact
    other = topic_record(catalog, "/ns/t-part-0")

    async def raced(store: MemoryMetadata, *arguments: Any) -> Any:
        monkeypatch.setattr(MemoryMetadata, "transact", plain)
        await catalog.create_topic(other)
        return await plain(store, *arguments)

    monkeypatch.setattr(MemoryMetadata, "transact", raced)
    with pytest.raises(AlreadyExists, match="name of a partition"):
        await catalog.create_topic(topic_record(catalog, "/ns/t", partitions=2, partitioned=True))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"partitions": 0}, InvalidRequest, "partitions"),
        ({"partitions": 5000, "partitioned": True}, InvalidRequest, "partitions"),
        ({"partitions": 2}, InvalidRequest, "not partitioned"),
        ({"durability": "hope"}, InvalidRequest, "durability"),
        ({"retention_ms": 0}, InvalidRequest, "retention_ms"),
        ({"retention_bytes": -1}, InvalidRequest, "retention_bytes"),
        ({"max_message_bytes": 0}, InvalidRequest, "max_message_bytes"),
        ({"name": TopicName("n/s", "t")}, InvalidName, "/namespace/topic"),
        ({"name": TopicName("ns", "a.b")}, InvalidName, "letters"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    catalog: Catalog, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await catalog.create_topic(topic_record(catalog, "/ns/t", **changes))


async def test_a_namespace_comes_with_its_first_topic_unless_asked_otherwise(
    catalog: Catalog,
) -> None:
    assert await catalog.namespaces() == ["default", "system"]
    with pytest.raises(NotFound, match="'ns'"):
        await catalog.create_topic(topic_record(catalog, "/ns/t"), strict=True)
    await created(catalog, "/ns/t")
    assert await catalog.create_namespace("mine") is True
    assert await catalog.create_namespace("mine") is False
    assert await catalog.create_namespace("default") is False
    assert await catalog.namespaces() == ["default", "mine", "ns", "system"]
    await catalog.create_topic(topic_record(catalog, "/mine/t"), strict=True)
    with pytest.raises(InvalidName):
        await catalog.create_namespace("a b")


async def test_topics_are_listed_page_by_page(catalog: Catalog) -> None:
    names = [f"/ns/t{number}" for number in range(7)]
    for name in [*reversed(names), "/n/t", "/nsx/t"]:
        await created(catalog, name)
    found: list[TopicName] = []
    while page := await catalog.list_topics("ns", found[-1] if found else None, limit=3):
        found += [record.name for record in page]
    assert [str(name) for name in found] == names
    assert len(await catalog.list_topics()) == 9


async def test_a_deleted_topic_leaves_a_tombstone_and_frees_its_name(
    catalog: Catalog, clock: ManualClock, memory: MemoryMetadata
) -> None:
    record = await created(catalog, "/ns/t")
    claim = await catalog.claim(PartitionId(record.topic_id, 0), "b", "i")
    await catalog.raise_ceiling(claim, 100)
    await catalog.record_table(claim)
    await catalog.create_subscription(SubscriptionRecord(record.topic_id, "s", "shared", 1, ""))
    await catalog.delete_topic(record)
    assert await catalog.topic(record.name) is None
    assert await catalog.topic_by_id(record.topic_id) is None
    (stone,) = await catalog.deleted_topics()
    assert (stone.topic_id, stone.name) == (record.topic_id, record.name)
    assert stone.deleted_us == clock.now_us()
    assert await catalog.current(claim.partition) is None
    assert await catalog.list_subscriptions(record.topic_id) == []
    assert await catalog.table(record.topic_id) is True
    await catalog.forget_deleted(record.topic_id)
    assert await catalog.deleted_topics() == []
    assert [item.key for item in await memory.range(keys.ROOT)] == [keys.namespace("ns")]


async def test_a_topic_created_again_is_another_topic(catalog: Catalog) -> None:
    first = await created(catalog, "/ns/t")
    await catalog.delete_topic(first)
    second = await created(catalog, "/ns/t")
    assert second.topic_id != first.topic_id
    assert await catalog.topic_by_id(first.topic_id) is None
    with pytest.raises(TopicReplaced, match="deleted and created again"):
        await catalog.delete_topic(first)
    await catalog.delete_topic(second)
    with pytest.raises(TopicNotFound):
        await catalog.delete_topic(second)


async def test_a_deleted_topics_id_does_not_come_back(catalog: Catalog) -> None:
    record = await created(catalog, "/ns/t")
    await catalog.delete_topic(record)
    with pytest.raises(Exception, match="try again"):
        await catalog.create_topic(topic_record(catalog, "/ns/t", topic_id=record.topic_id))


async def test_subscriptions_are_created_found_listed_and_deleted(catalog: Catalog) -> None:
    topic = (await created(catalog, "/ns/t")).topic_id
    made = [
        SubscriptionRecord(topic, name, "shared", 5, "earliest") for name in ("a", "b.c", "d:e")
    ]
    for record in made:
        assert await catalog.create_subscription(record) == (record, True)
    other = SubscriptionRecord(topic, "a", "exclusive", 6, "latest")
    assert await catalog.create_subscription(other) == (made[0], False)
    with pytest.raises(AlreadyExists):
        await catalog.create_subscription(other, if_not_exists=False)
    assert await catalog.subscription(topic, "b.c") == made[1]
    assert await catalog.subscription(topic, "nobody") is None
    assert await catalog.list_subscriptions(topic) == made
    assert await catalog.list_subscriptions(topic, "a", limit=1) == made[1:2]
    await catalog.delete_subscription(topic, "a")
    with pytest.raises(SubscriptionNotFound, match="'a'"):
        await catalog.delete_subscription(topic, "a")


async def test_a_subscription_needs_its_topic_and_a_name(catalog: Catalog) -> None:
    with pytest.raises(TopicNotFound):
        await catalog.create_subscription(SubscriptionRecord(some_id(1), "s", "shared", 1, ""))
    with pytest.raises(InvalidName):
        await catalog.create_subscription(SubscriptionRecord(some_id(1), "a/b", "shared", 1, ""))


async def test_a_record_of_a_newer_version_is_refused(
    catalog: Catalog, memory: MemoryMetadata
) -> None:
    name = TopicName("ns", "t")
    await memory.put(keys.topic(name), b'{"v":2,"name":"/ns/t"}')
    with pytest.raises(UnsupportedFormat, match="newer Danube"):
        await catalog.topic(name)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"\xff", b"7"])
async def test_a_record_that_is_none_is_corruption(
    catalog: Catalog, memory: MemoryMetadata, value: bytes
) -> None:
    name = TopicName("ns", "t")
    await memory.put(keys.topic(name), value)
    with pytest.raises(Corruption, match="/danube/topics/ns/t"):
        await catalog.topic(name)
