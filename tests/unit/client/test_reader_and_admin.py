"""Reading by offset, and administration."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

import danube
from tests.unit.client.scripted_broker import ScriptedBroker
from tests.unit.client.test_consumer import TOPIC, filled


async def values(reader: danube.Reader) -> list[bytes]:
    return [value async for batch in reader for value in batch.values]


async def test_a_reader_reads_to_the_present_end(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 25)
    assert await values(client.reader(TOPIC)) == [b"%d" % n for n in range(25)]
    part = [message.offset async for message in client.reader(TOPIC, start=7, end=13).messages()]
    assert part == [7, 8, 9, 10, 11, 12]
    assert await values(client.reader(TOPIC, start="latest")) == []
    since = client.reader(TOPIC, start=datetime(2024, 1, 1, tzinfo=UTC))
    assert len(await values(since)) == 24


async def test_partitions_are_read_one_after_the_other(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 40, partitions=2)
    batches = [batch.range async for batch in client.reader(TOPIC)]
    assert [each.partition for each in batches] == [0, 0, 1, 1]
    assert len(await values(client.reader(TOPIC, partition=1))) == 20


async def test_a_broken_stream_goes_on_behind_the_last_message(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 50)
    broker.script.extend(["ok", "reset", "ok", "ok", "reset", "reset"])
    assert await values(client.reader(TOPIC)) == [b"%d" % n for n in range(50)]


async def test_a_follower_sees_what_is_published_later(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 10)
    async with client.reader(TOPIC, follow=True) as reader, client.producer(TOPIC) as producer:
        assert len(await anext(reader)) == 10
        waiting = asyncio.ensure_future(anext(reader))
        await producer.send(b"later")
        assert (await waiting).values == [b"later"]
        broker.reset_streams()
        waiting = asyncio.ensure_future(anext(reader))
        await producer.send(b"even later")
        assert (await waiting).values == [b"even later"]
    to_the_end = client.reader(TOPIC, start=7, end=11, follow=True)
    assert await values(to_the_end) == [b"7", b"8", b"9", b"later"]


async def test_a_topic_created_again_under_a_reader_is_another_topic(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    await filled(broker, client, 20)
    broker.script.extend(["ok", "reset"])
    async with client.reader(TOPIC) as reader:
        await anext(reader)
        broker.create(TOPIC)
        with pytest.raises(danube.TopicReplaced):
            await anext(reader)


async def test_impossible_readers_are_refused(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC, partitions=2)
    with pytest.raises(danube.InvalidRequest):
        client.reader(TOPIC, end=-1)
    with pytest.raises(danube.OffsetOutOfRange, match="above the durable offset 0"):
        await anext(client.reader(TOPIC, start=5))
    with pytest.raises(danube.InvalidRequest, match="follow one of them"):
        await anext(client.reader(TOPIC, follow=True))
    with pytest.raises(danube.InvalidRequest, match="no partition 7"):
        await anext(client.reader(TOPIC, partition=7))


async def test_topics_are_administered(broker: ScriptedBroker, client: danube.Client) -> None:
    for number in range(5):
        topic_id, created = await client.admin.create_topic(f"/default/t{number}")
        assert (len(topic_id), created) == (32, True)
    listed = await client.admin.list_topics()
    assert [each.name for each in listed] == [f"/default/t{n}" for n in range(5)]
    await client.admin.delete_topic("/default/t3", topic_id=listed[3].topic_id)
    with pytest.raises(danube.TopicNotFound):
        await client.admin.delete_topic("/default/t3")
    with pytest.raises(danube.InvalidName):
        await client.admin.create_topic("nonsense")
    steps = [step async for step in client.admin.verify("/default/t1")]
    assert (steps[-1].finished, steps[-1].finding, steps[-1].messages) == (True, False, 2)


async def test_a_transient_failure_of_a_request_is_tried_again(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    broker.lookup_errors.extend([danube.Unavailable("starting"), danube.DeadlineExceeded("slow")])
    assert (await client.topic(TOPIC)).name == TOPIC
    broker.lookup_errors.append(danube.FailedPrecondition("no"))
    with pytest.raises(danube.FailedPrecondition):
        await client.topic(TOPIC)
