"""Publishing: batching, order, bounds, outcomes."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import danube
from danube import Delivery, MessageId, MessageRange
from danube.core.frames import Codec
from danube.core.names import partition_of
from tests.unit.client.scripted_broker import ScriptedBroker, batches_of

TOPIC = "/default/t"


async def test_send_tells_partition_and_offset(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        assert await producer.send(b"one", key="k", attributes={"a": "b"}) == MessageId(0, 0)
        assert await producer.send("two", timestamp_us=17) == MessageId(0, 1)
    rows = [row for batch in batches_of(topic.partitions[0]) for row in batch.records.to_pylist()]
    assert [row["value"] for row in rows] == [b"one", b"two"]
    assert [row["key"] for row in rows] == [b"k", None]
    assert [row["attributes"] for row in rows] == [[("a", "b")], None]
    assert rows[0]["producer"] == producer.name
    assert rows[1]["timestamp"].microsecond == 17


async def test_published_messages_share_frames_and_keep_their_order(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    values = [b"%d" % number for number in range(5000)]
    async with client.producer(TOPIC) as producer:
        for value in values:
            producer.publish(value)
        await producer.flush()
        counts = producer.counts
    assert topic.partitions[0].values() == values
    assert (counts.published, counts.delivered, counts.failed) == (5000, 5000, 0)
    assert len(broker.frames_seen) < 50


async def test_concurrent_sends_travel_together(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(100)))
    assert sorted(each.offset for each in ids) == list(range(100))
    assert len(broker.frames_seen) < 20


async def test_frames_stay_below_batch_bytes(broker: ScriptedBroker, client: danube.Client) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, batch_bytes=10_000) as producer:
        for _ in range(200):
            producer.publish(b"x" * 500, key="kk", attributes={"name": "text"})
        await producer.send_batch([b"y" * 700] * 200)
    assert all(frame.header.body_bytes <= 10_000 + 1500 for frame in broker.frames_seen)
    assert len(topic.partitions[0].values()) == 400


async def test_at_most_five_frames_are_in_flight(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    broker.script.extend(["hang"] * 5)
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        for _ in range(20):
            producer.publish(b"x")
        await broker.seen(5)
        # What would be sent besides would be there by the time a round trip is over.
        await client.topic(TOPIC)
        assert len(broker.frames_seen) == 5
        broker.reset_streams()
        await producer.flush()
        assert producer.counts.delivered == 20


async def test_keys_choose_partitions_as_danube_clients_do(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC, partitions=3)
    keys = [f"key-{number}" for number in range(50)]
    async with client.producer(TOPIC) as producer:
        ids = [await producer.send(b"v", key=key) for key in keys]
        await producer.send_batch([b"w"] * 50, keys=keys)
        await producer.send_batch(pa.table({"key": keys, "value": ["z"] * 50}))
    expected = [partition_of(key.encode(), 3) for key in keys]
    assert [each.partition for each in ids] == expected
    for number, partition in enumerate(topic.partitions):
        found = [
            key
            for batch in batches_of(partition)
            for key in batch.records.column("key").to_pylist()
        ]
        assert found == [k.encode() for k, p in zip(keys, expected, strict=True) if p == number] * 3


async def test_messages_without_a_key_visit_every_partition(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC, partitions=4)
    async with client.producer(TOPIC, batch_bytes=200) as producer:
        for _ in range(40):
            producer.publish(b"x" * 50)
        await producer.flush()
    assert all(partition.end > 0 for partition in topic.partitions)
    assert sum(partition.end for partition in topic.partitions) == 40


@pytest.mark.parametrize(
    "given",
    [
        [b"a", b"b", b"c"],
        ["a", "b", "c"],
        (value for value in (b"a", b"b", b"c")),
        pa.array([b"a", b"b", b"c"]),
        pa.record_batch({"value": pa.array(["a", "b", "c"])}),
        pa.table({"value": pa.chunked_array([[b"a"], [b"b", b"c"]])}),
    ],
    ids=["bytes", "text", "generator", "array", "record batch", "table"],
)
async def test_send_batch_takes_lists_iterables_and_arrow(
    broker: ScriptedBroker, client: danube.Client, given: Any
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        assert await producer.send_batch(given) == [MessageRange(0, 0, 3)]
    assert topic.partitions[0].values() == [b"a", b"b", b"c"]


async def test_send_batch_goes_behind_what_was_published_before(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, linger_ms=10_000) as producer:
        producer.publish(b"1")
        await producer.send_batch([b"2", b"3"])
        producer.publish(b"4")
    assert topic.partitions[0].values() == [b"1", b"2", b"3", b"4"]


async def test_an_empty_batch_sends_nothing(broker: ScriptedBroker, client: danube.Client) -> None:
    broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        assert await producer.send_batch([]) == []
        assert await producer.send_batch(iter(())) == []
        assert await producer.send_batch(pa.table({"value": pa.array([], pa.binary())})) == []
    assert broker.frames_seen == []


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_frames_are_compressed_on_demand(
    broker: ScriptedBroker, client: danube.Client, codec: Any
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, codec=codec) as producer:
        await producer.send_batch([b"same" * 100] * 100)
    assert broker.frames_seen[0].header.codec is Codec[codec.upper()]
    assert topic.partitions[0].values() == [b"same" * 100] * 100


async def test_too_large_messages_are_refused_before_they_are_sent(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    broker.max_message_bytes = 1000
    async with client.producer(TOPIC) as producer:
        with pytest.raises(danube.MessageTooLarge, match="split"):
            producer.publish(b"x" * 1001)
        with pytest.raises(danube.MessageTooLarge):
            await producer.send(b"x" * 600, attributes={"a": "x" * 500})
        with pytest.raises(danube.MessageTooLarge, match="message 1 "):
            await producer.send_batch([b"", b"x" * 1001])
    assert broker.frames_seen == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": 5},
        {"value": None},
        {"value": "\ud800"},
        {"value": b"", "key": 5},
        {"value": b"", "attributes": {"a": 1}},
        {"value": b"", "partition": 7},
        {"value": b"", "timestamp_us": 1 << 62},
    ],
)
async def test_other_types_are_refused_at_once(
    broker: ScriptedBroker, client: danube.Client, arguments: dict[str, Any]
) -> None:
    broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        with pytest.raises(danube.InvalidRequest):
            producer.publish(**arguments)


async def test_publish_stops_at_the_bound_and_send_waits_there(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    broker.script.append("hold")
    async with client.producer(TOPIC, buffer_bytes=10_000) as producer:
        published = 0
        while producer.outbox.used_bytes + 600 <= 10_000:
            producer.publish(b"x" * 500)
            published += 1
        with pytest.raises(danube.MemoryFull, match="flush"):
            producer.publish(b"x" * 1000)
        sending = asyncio.create_task(producer.send(b"y" * 500))
        batch = asyncio.create_task(producer.send_batch([b"z" * 400] * 100))
        await broker.held.wait()
        assert not sending.done()
        broker.released.set()
        await sending
        await batch
        assert producer.counts.delivered == published + 101
    assert len(topic.partitions[0].values()) == published + 101


async def test_outcomes_are_told_per_message_and_per_batch(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    batches: list[Delivery] = []
    single: list[Delivery] = []
    async with client.producer(TOPIC, on_delivery=batches.append) as producer:
        for _ in range(3):
            producer.publish(b"x")
        producer.publish(b"y", on_delivery=single.append)
        await producer.flush()
    assert [(each.offset, each.count, each.error) for each in batches] == [(0, 4, None)]
    assert [(each.offset, each.count) for each in single] == [(3, 1)]


async def test_a_callback_that_raises_stops_nothing(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)

    def fail(delivery: Delivery) -> None:
        raise RuntimeError("the application's own mistake")

    async with client.producer(TOPIC) as producer:
        producer.publish(b"x", on_delivery=fail)
        assert (await producer.send(b"y")).offset == 1


async def test_closing_sends_what_was_published_and_then_refuses_more(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    producer = await client.producer(TOPIC, linger_ms=10_000)
    producer.publish(b"last")
    await producer.close()
    await producer.close()
    assert topic.partitions[0].values() == [b"last"]
    with pytest.raises(danube.FailedPrecondition, match="closed"):
        producer.publish(b"too late")


async def test_closing_the_client_closes_its_producers(broker: ScriptedBroker) -> None:
    topic = broker.create(TOPIC)
    async with danube.connect(broker.url) as client:
        producer = await client.producer(TOPIC, linger_ms=10_000)
        producer.publish(b"last")
    assert topic.partitions[0].values() == [b"last"]
    assert [task for task in asyncio.all_tasks() if "producer" in task.get_name()] == []


async def test_a_topic_is_created_on_demand(broker: ScriptedBroker, client: danube.Client) -> None:
    with pytest.raises(danube.TopicNotFound):
        await client.producer(TOPIC)
    with pytest.raises(danube.InvalidName):
        await client.producer("no-slashes")
    async with client.producer(TOPIC, create=True, partitions=2) as producer:
        assert len(producer.topic.partitions) == 2
