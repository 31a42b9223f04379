"""Consuming: iteration, batches, acks, credit, and what broken streams do to all of them."""

from __future__ import annotations

import asyncio

import pytest

import danube
from danube.core.errors import DiskFull
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_broker import ScriptedBroker, Topic

TOPIC = "/default/t"


async def filled(
    broker: ScriptedBroker, client: danube.Client, count: int, *, partitions: int = 1
) -> Topic:
    """A topic with ``count`` messages in frames of ten, of one partition after the other."""
    topic = broker.create(TOPIC, partitions)
    async with client.producer(TOPIC) as producer:
        for number in range(0, count, 10):
            values = [b"%d" % n for n in range(number, min(number + 10, count))]
            keys = [f"key-{value.decode()}" for value in values]
            partition = number // 10 % partitions
            await producer.send_batch(values, keys=keys, partition=partition)
    return topic


async def test_messages_come_in_order_with_all_they_have(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 25)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        seen = []
        async for message in consumer:
            seen.append(message)
            if len(seen) == 25:
                break
    assert [message.value for message in seen] == [b"%d" % n for n in range(25)]
    assert [message.offset for message in seen] == list(range(25))
    last = seen[-1]
    assert (last.topic, last.message_id, last.key) == (TOPIC, danube.MessageId(0, 24), b"key-24")
    assert (last.text, last.attributes, last.redelivery_count) == ("24", {}, 0)
    assert last.producer.startswith("producer-")
    assert last.timestamp.tzinfo is not None
    assert last.append_time.year == 2023


async def test_breaking_out_of_an_iteration_loses_nothing(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 20)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        seen = []
        for _ in range(4):
            async for message in consumer:
                seen.append(message.offset)
                if len(seen) % 5 == 0:
                    break
    assert seen == list(range(20))


async def test_acks_move_the_cursor_and_are_answered(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = await filled(broker, client, 25)
    cursors = topic.partitions[0].cursors
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = await consumer.receive_batch()
        await batch.ack()
        assert cursors["s"].offset == 10
        async for message in consumer:
            if message.offset == 12:
                continue
            await consumer.ack(message)
            if message.offset == 15:
                break
        assert cursors["s"].offset == 12
        await consumer.ack(danube.MessageId(0, 12))
        assert cursors["s"].offset == 16
        await consumer.ack(danube.MessageRange(0, 16, 25))
    assert cursors["s"].offset == 25


async def test_acks_that_are_not_awaited_travel_together(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = await filled(broker, client, 1000)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        async for message in consumer:
            answer = consumer.ack(message)
            if message.offset == 999:
                await answer
                break
        assert topic.partitions[0].cursors["s"].offset == 1000
    assert len(broker.acks_seen) < 200


async def test_closing_waits_for_acks(broker: ScriptedBroker, client: danube.Client) -> None:
    topic = await filled(broker, client, 10)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        (await consumer.receive_batch()).ack()
    assert topic.partitions[0].cursors["s"].offset == 10


async def test_batches_are_lists_and_arrow_without_a_copy(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 10)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = await consumer.receive_batch(4)
        rest = await consumer.receive_batch(100)
    assert (batch.start, batch.end, len(batch)) == (0, 4, 4)
    assert batch.values == [b"0", b"1", b"2", b"3"]
    assert batch.keys == [b"key-0", b"key-1", b"key-2", b"key-3"]
    assert batch.records.column("value").to_pylist() == batch.values
    assert rest.range == danube.MessageRange(0, 4, 10)
    buffers = [each.records.column("value").buffers()[2] for each in (batch, rest)]
    assert buffers[0] is not None
    assert buffers[1] is not None
    assert buffers[0].address == buffers[1].address


async def test_waiting_for_a_batch_ends_with_an_empty_one(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    async with client.subscribe(TOPIC, "s") as consumer:
        batch = await consumer.receive_batch(timeout_s=0.01)
        assert not batch
        assert batch.values == []
        await batch.ack()
        assert await consumer.receive(timeout_s=0.01) is None
        with pytest.raises(danube.InvalidRequest):
            await consumer.receive_batch(0)


async def test_a_new_subscription_starts_where_it_was_told(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 20)
    async with (
        client.subscribe(TOPIC, "latest") as latest,
        client.subscribe(TOPIC, "middle", start=13) as middle,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"new")
        assert (await latest.receive_batch()).values == [b"new"]
        assert (await middle.receive_batch()).start == 13


async def test_all_partitions_are_merged(broker: ScriptedBroker, client: danube.Client) -> None:
    topic = await filled(broker, client, 90, partitions=3)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        seen: list[danube.MessageId] = []
        while len(seen) < 90:
            batch = await consumer.receive_batch()
            seen.extend(message.message_id for message in batch)
            await batch.ack()
    assert sorted(seen) == [danube.MessageId(p, o) for p in range(3) for o in range(30)]
    assert [each.cursors["s"].offset for each in topic.partitions] == [30, 30, 30]


async def test_rejected_messages_come_again(broker: ScriptedBroker, client: danube.Client) -> None:
    topic = await filled(broker, client, 10)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = await consumer.receive_batch()
        await consumer.nack(danube.MessageRange(0, 3, 5))
        again = await consumer.receive_batch()
        assert (again.start, again.end, again.redelivery_count) == (3, 5, 1)
        assert next(iter(again)).redelivery_count == 1
        await batch.ack()
        assert topic.partitions[0].cursors["s"].offset == 10


async def test_no_more_is_fetched_ahead_than_allowed(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        await producer.send_batch([b"x" * 10_000] * 30)
    async with client.subscribe(TOPIC, "s", start="earliest", prefetch_bytes=50_000) as consumer:
        seen = 0
        while seen < 30:
            batch = await consumer.receive_batch()
            seen += len(batch)
            handed_out = sum(len(frame.to_bytes()) for frame in broker.frames_seen[:seen])
            assert sum(broker.credit_granted) <= handed_out + 50_000
    assert broker.credit_granted[0] == 50_000


async def test_what_was_fetched_ahead_comes_once_after_a_reset_stream(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = await filled(broker, client, 30)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        first = await consumer.receive_batch()
        await first.ack()
        broker.reset_streams()
        # By then the broken stream was noticed; what it had brought is not handed out any more.
        await broker.subscribed(2)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"30")
        seen: list[int] = []
        while 30 not in seen:
            batch = await consumer.receive_batch()
            seen.extend(range(batch.start, batch.end))
    assert seen == list(range(10, 31))
    assert [each.topic_id for each in broker.subscribes] == [str(topic.topic_id)] * 2


async def test_an_ack_whose_answer_was_lost_is_sent_again_before_credit(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = await filled(broker, client, 10)
    for step in ("lose-reply", "reset"):
        broker.ack_script.append(step)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = await consumer.receive_batch()
        await batch.ack()
        assert topic.partitions[0].cursors["s"].offset == 10
        assert not await consumer.receive_batch(timeout_s=0.05)
    assert len(broker.acks_seen) == 3


async def test_an_ack_that_the_broker_refuses_says_why(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 10)
    broker.ack_script.append(DiskFull("no room"))
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = await consumer.receive_batch()
        with pytest.raises(DiskFull):
            await batch.ack()
        await batch.ack()


async def test_old_acks_do_not_follow_a_reset_of_the_subscription(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = await filled(broker, client, 20)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        await (await consumer.receive_batch()).ack()
        batch = await consumer.receive_batch()
        broker.ack_script.append("reset")
        acking = batch.ack()
        topic.partitions[0].cursors["s"].acked.remove(0, 20)
        with pytest.raises(danube.FailedPrecondition, match="reset"):
            await acking
        assert (await consumer.receive_batch()).start == 0
    assert topic.partitions[0].cursors["s"].offset == 0


async def test_an_exclusive_subscription_has_one_consumer(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    async with client.subscribe(TOPIC, "s"):
        with pytest.raises(danube.SubscriptionBusy):
            await client.subscribe(TOPIC, "s")
    async with client.subscribe(TOPIC, "s"):
        pass


async def test_a_topic_created_again_under_a_consumer_is_another_topic(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 10)
    async with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = await consumer.receive_batch()
        broker.create(TOPIC)
        broker.reset_streams()
        with pytest.raises(danube.TopicReplaced, match="created again"):
            await consumer.receive_batch()
        with pytest.raises(danube.TopicReplaced):
            await batch.ack()
        with pytest.raises(danube.TopicReplaced):
            async for _ in consumer:
                pass


async def test_an_unknown_topic_or_name_is_refused_at_once(client: danube.Client) -> None:
    with pytest.raises(danube.TopicNotFound):
        await client.subscribe("/default/nothing", "s")
    with pytest.raises(danube.InvalidName):
        client.subscribe(TOPIC, "not a name")


async def test_closing_ends_an_iteration_that_waits(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    consumer = await client.subscribe(TOPIC, "s")

    async def iterate() -> list[danube.Message]:
        return [message async for message in consumer]

    waiting = asyncio.create_task(iterate())
    await asyncio.sleep(0)
    await consumer.close()
    assert await waiting == []
    with pytest.raises(danube.FailedPrecondition, match="closed"):
        await consumer.ack(danube.MessageId(0, 0))
    await consumer.close()


async def test_a_slow_application_stops_the_fetching_and_no_message(
    broker: ScriptedBroker,
) -> None:
    async with danube.connect(broker.url, settings=QUICK) as client:
        await filled(broker, client, 500)
        async with client.subscribe(TOPIC, "s", start="earliest", prefetch_bytes=1) as consumer:
            seen: list[bytes] = []
            while len(seen) < 500:
                batch = await consumer.receive_batch(7)
                seen.extend(batch.values)
    assert seen == [b"%d" % n for n in range(500)]
