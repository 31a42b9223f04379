"""The client against a real broker process, through kill -9 as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import danube
from danube.client.settings import ClientSettings
from danube.testing.brokers import BrokerProcess

SETTINGS = ClientSettings(retry_min_ms=10, retry_max_ms=200, retry_timeout_s=60)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests that do not kill it."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One to kill."""
    process = BrokerProcess(tmp_path / "data")
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[danube.Client]:
    async with danube.connect(broker.url, settings=SETTINGS) as connected:
        yield connected


async def everything(consumer: danube.Consumer) -> None:
    async for _ in consumer:
        pass


async def restart(process: BrokerProcess) -> None:
    await asyncio.to_thread(process.kill)
    await asyncio.to_thread(process.start)


async def test_what_is_published_is_what_is_consumed_and_read(client: danube.Client) -> None:
    topic = "/default/round-trip"
    await client.admin.create_topic(topic, partitions=3)
    keys = [f"key-{number % 50}" for number in range(3000)]
    async with client.producer(topic, codec="zstd") as producer:
        for number in range(1000):
            producer.publish(b"%d" % number, key=keys[number], attributes={"n": str(number)})
        await producer.flush()
        await producer.send_batch([b"%d" % n for n in range(1000, 2000)], keys=keys[1000:2000])
        arrow = pa.table({"value": [str(n) for n in range(2000, 3000)], "key": keys[2000:]})
        ranges = await producer.send_batch(arrow)
        assert sum(each.end - each.start for each in ranges) == 1000
        assert producer.counts.delivered == 3000
    by_key: dict[bytes | None, list[int]] = {}
    async with client.subscribe(topic, "all", start="earliest") as consumer:
        seen = 0
        async for message in consumer:
            by_key.setdefault(message.key, []).append(int(message.value))
            consumer.ack(message)
            seen += 1
            if seen == 3000:
                break
    for key, numbers in by_key.items():
        assert key is not None
        assert numbers == [n for n in range(3000) if keys[n].encode() == key]
    (info,) = await client.admin.list_subscriptions(topic)
    assert (info.name, info.lag_messages) == ("all", 0)
    assert sum([len(batch) async for batch in client.reader(topic)]) == 3000


async def test_two_consumers_share_a_subscription(client: danube.Client) -> None:
    topic = "/default/shared"
    await client.admin.create_topic(topic)
    seen: list[bytes] = []
    async with (
        client.subscribe(topic, "s", type="shared", start="earliest") as one,
        client.subscribe(topic, "s", type="shared", start="earliest") as two,
        client.producer(topic, batch_bytes=200) as producer,
    ):
        for number in range(400):
            producer.publish(b"%d" % number)
        await producer.flush()

        async def work(consumer: danube.Consumer) -> None:
            while len(seen) < 400:
                batch = await consumer.receive_batch(timeout_s=0.2)
                seen.extend(batch.values)
                await batch.ack()

        await asyncio.gather(work(one), work(two))
    assert sorted(map(int, seen)) == list(range(400))


async def test_the_brokers_errors_arrive_as_what_they_are(client: danube.Client) -> None:
    topic = "/default/errors"
    with pytest.raises(danube.TopicNotFound):
        await client.producer(topic)
    await client.admin.create_topic(topic)
    with pytest.raises(danube.AlreadyExists):
        await client.admin.create_topic(topic)
    with pytest.raises(danube.SubscriptionNotFound):
        await client.admin.delete_subscription(topic, "nobody")
    with pytest.raises(danube.OutOfRange):
        await anext(client.reader(topic, start=100, end=200))
    async with client.subscribe(topic, "only-one"):
        with pytest.raises(danube.SubscriptionBusy):
            await client.subscribe(topic, "only-one")


async def test_a_topic_created_again_ends_consumers_and_producers_of_the_old_one(
    client: danube.Client,
) -> None:
    topic = "/default/again"
    await client.admin.create_topic(topic)
    producer = await client.producer(topic)
    consumer = await client.subscribe(topic, "s", start="earliest")
    await producer.send(b"old")
    await client.admin.delete_topic(topic)
    await client.admin.create_topic(topic)
    with pytest.raises((danube.TopicReplaced, danube.TopicNotFound)):
        await everything(consumer)
    with pytest.raises((danube.TopicReplaced, danube.TopicNotFound, danube.OutcomeUnknown)):
        await producer.send(b"lost")
    assert [len(batch) async for batch in client.reader(topic)] == []


async def test_publishing_goes_on_over_kills_without_loss_or_repetition(
    mortal: BrokerProcess,
) -> None:
    topic = "/default/kills"
    async with danube.connect(mortal.url, settings=SETTINGS) as client:
        await client.admin.create_topic(topic, partitions=2)
        failed: list[danube.Delivery] = []
        delivered = 0

        def told(delivery: danube.Delivery) -> None:
            nonlocal delivered
            if delivery.error is None:
                delivered += delivery.count
            else:
                failed.append(delivery)

        async with client.producer(topic, batch_bytes=2000, on_delivery=told) as producer:
            for number in range(3000):
                producer.publish(b"%d" % number, key=b"%d" % (number % 7))
                if number in (1000, 2000):
                    await restart(mortal)
                if number % 20 == 0:
                    await asyncio.sleep(0)
            await producer.flush()
        values: list[bytes] = []
        async for batch in client.reader(topic, skip_lost=True):
            values.extend(batch.values)
    assert not failed
    assert delivered == 3000
    assert sorted(map(int, values)) == list(range(3000))


async def test_a_consumer_goes_on_behind_its_acks_after_a_kill(mortal: BrokerProcess) -> None:
    topic = "/default/goes-on"
    async with danube.connect(mortal.url, settings=SETTINGS) as client:
        await client.admin.create_topic(topic)
        async with client.producer(topic, batch_bytes=500) as producer:
            await producer.send_batch([b"%d" % number for number in range(500)])
        async with client.subscribe(topic, "s", start="earliest") as consumer:
            acked: set[int] = set()
            while len(acked) < 200:
                batch = await consumer.receive_batch(10)
                await batch.ack()
                acked.update(range(batch.start, batch.end))
            await restart(mortal)
            again: set[int] = set()
            while len(acked | again) < 500:
                batch = await consumer.receive_batch(timeout_s=60)
                assert batch
                again.update(range(batch.start, batch.end))
                await batch.ack()
    # What was fetched ahead was thrown away and came again; what was acknowledged did not.
    assert acked | again == set(range(500))
    assert not acked & again
