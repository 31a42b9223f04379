"""Publishing over broken streams: nothing twice, nothing lost in silence."""

from __future__ import annotations

import asyncio

import pytest

import danube
from danube.client.settings import ClientSettings
from danube.core.errors import DiskFull, InvalidFrame, OwnershipLost
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_broker import ScriptedBroker

TOPIC = "/default/t"


def quick(**changes: float) -> ClientSettings:
    return ClientSettings(**{**QUICK.model_dump(), **changes})


async def test_a_lost_reply_neither_loses_nor_duplicates(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    broker.script.extend(["ok", "lose-reply", "lose-reply", "reset"])
    async with client.producer(TOPIC) as producer:
        ids = [await producer.send(b"%d" % number) for number in range(5)]
    assert [each.offset for each in ids] == [0, 1, 2, 3, 4]
    assert topic.partitions[0].values() == [b"0", b"1", b"2", b"3", b"4"]


async def test_many_frames_in_flight_survive_many_resets_in_order(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    broker.script.extend(["ok", "lose-reply", "ok", "ok", "reset", "lose-reply", "ok"] * 10)
    values = [b"%d" % number for number in range(60)]
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        for value in values:
            producer.publish(value)
        await producer.flush()
        assert producer.counts.delivered == 60
    assert topic.partitions[0].values() == values
    epochs = {opened.producer_epoch for opened in broker.opens[1:]}
    assert epochs == {broker.frames_seen[0].header.producer_epoch}


async def test_a_repeated_frame_has_the_same_sequence_and_bytes(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    broker.script.append("lose-reply")
    told: list[danube.Delivery] = []
    async with client.producer(TOPIC, on_delivery=told.append) as producer:
        await producer.send(b"once")
    first, second = broker.frames_seen
    assert first.to_bytes() == second.to_bytes()
    assert told[0].duplicate


@pytest.mark.parametrize("error", [DiskFull("full"), OwnershipLost("moved"), None])
async def test_transient_refusals_are_tried_again(
    broker: ScriptedBroker, client: danube.Client, error: danube.DanubeError | None
) -> None:
    topic = broker.create(TOPIC)
    broker.script.extend([error or danube.Unavailable("starting")] * 3)
    async with client.producer(TOPIC) as producer:
        assert (await producer.send(b"x")).offset == 0
    assert topic.partitions[0].values() == [b"x"]
    assert broker.lookups > 1


async def test_a_broker_that_forgot_the_producer_gets_known_refusals_in_a_fresh_epoch(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        assert (await producer.send(b"0")).offset == 0
        broker.script.append("forget")
        # None of these was on a stream that broke: they are known to be refused.
        ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(1, 9)))
    assert [each.offset for each in ids] == list(range(1, 9))
    assert topic.partitions[0].values() == [b"%d" % n for n in range(9)]
    epochs = [frame.header.producer_epoch for frame in broker.frames_seen]
    assert epochs[-1] > epochs[0]


async def test_a_frame_in_doubt_is_reported_as_outcome_unknown(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"0")
        broker.script.extend(["lose-reply", "forget"])
        with pytest.raises(danube.OutcomeUnknown, match="resend_in_doubt"):
            await producer.send(b"1")
        assert (await producer.send(b"2")).offset == 2
        counts = producer.counts
    assert (counts.delivered, counts.failed, counts.in_doubt) == (2, 1, 1)
    assert topic.partitions[0].values() == [b"0", b"1", b"2"]


async def test_a_frame_in_doubt_is_sent_again_if_asked_for(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, resend_in_doubt=True) as producer:
        await producer.send(b"0")
        broker.script.extend(["lose-reply", "forget"])
        assert (await producer.send(b"1")).offset == 2
    assert topic.partitions[0].values() == [b"0", b"1", b"1"]


async def test_frames_behind_one_in_doubt_are_kept_in_order(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, batch_bytes=1, max_in_flight=1) as producer:
        await producer.send(b"0")
        broker.script.extend(["lose-reply", "forget"])
        results = await asyncio.gather(
            *(producer.send(b"%d" % n) for n in range(1, 6)), return_exceptions=True
        )
    assert isinstance(results[0], danube.OutcomeUnknown)
    assert not any(isinstance(each, BaseException) for each in results[1:])
    assert topic.partitions[0].values() == [b"%d" % n for n in range(6)]


async def test_a_refused_frame_fails_alone(broker: ScriptedBroker, client: danube.Client) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        broker.script.extend(["ok", InvalidFrame("odd")])
        results = await asyncio.gather(
            *(producer.send(b"%d" % n) for n in range(5)), return_exceptions=True
        )
    assert isinstance(results[1], InvalidFrame)
    assert [each for each in results if isinstance(each, BaseException)] == [results[1]]
    assert topic.partitions[0].values() == [b"0", b"2", b"3", b"4"]


async def test_a_missing_receipt_is_noticed_by_its_deadline(broker: ScriptedBroker) -> None:
    topic = broker.create(TOPIC)
    broker.script.append("hang")
    async with (
        danube.connect(broker.url, settings=quick(request_timeout_s=0.5)) as client,
        client.producer(TOPIC) as producer,
    ):
        assert (await producer.send(b"x")).offset == 0
    assert topic.partitions[0].values() == [b"x"]
    assert len(broker.frames_seen) > 1


async def test_a_fenced_producer_stops(broker: ScriptedBroker, client: danube.Client) -> None:
    broker.create(TOPIC)
    first = await client.producer(TOPIC, name="same")
    await first.send(b"0")
    async with client.producer(TOPIC, name="same") as second:
        await second.send(b"1")
        broker.reset_streams()
        # It may have left before the broken stream was noticed.
        with pytest.raises((danube.ProducerFenced, danube.OutcomeUnknown)):
            await first.send(b"2")
        with pytest.raises(danube.ProducerFenced):
            first.publish(b"3")
        assert (await second.send(b"4")).offset == 2


async def test_a_topic_created_again_under_a_producer_is_another_topic(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    producer = await client.producer(TOPIC)
    await producer.send(b"0")
    replaced = broker.create(TOPIC)
    broker.reset_streams()
    with pytest.raises((danube.TopicReplaced, danube.OutcomeUnknown), match="created again"):
        await producer.send(b"1")
    with pytest.raises(danube.TopicReplaced, match="created again"):
        producer.publish(b"2")
    assert replaced.partitions[0].values() == []


async def test_a_deleted_topic_ends_its_producers(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    producer = await client.producer(TOPIC)
    await producer.send(b"0")
    del broker.topics[TOPIC]
    broker.reset_streams()
    with pytest.raises((danube.TopicNotFound, danube.OutcomeUnknown)):
        await producer.send(b"1")
    with pytest.raises(danube.TopicNotFound):
        producer.publish(b"2")


async def test_giving_up_takes_as_long_as_was_set_and_tells_everything(
    broker: ScriptedBroker,
) -> None:
    broker.create(TOPIC)
    told: list[danube.Delivery] = []
    async with danube.connect(broker.url, settings=quick(retry_timeout_s=0.2)) as client:
        producer = await client.producer(
            TOPIC, on_delivery=told.append, batch_bytes=1, max_in_flight=1
        )
        await producer.send(b"0")
        broker.lookup_errors.extend([danube.Unavailable("away")] * 10_000)
        broker.script.append("lose-reply")
        producer.publish(b"in doubt")
        await broker.seen(2)
        producer.publish(b"not sent")
        await producer.flush()
        broker.lookup_errors.clear()
        assert (await producer.send(b"again")).offset == 2
    kinds = [type(delivery.error) for delivery in told[1:3]]
    assert kinds[0] is danube.OutcomeUnknown
    assert issubclass(kinds[1], danube.Unavailable)


async def test_a_failure_nobody_was_told_is_raised_by_flush(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    broker.script.append(InvalidFrame("odd"))
    async with client.producer(TOPIC) as producer:
        producer.publish(b"x")
        with pytest.raises(InvalidFrame):
            await producer.flush()
        await producer.flush()


async def test_a_partly_failed_batch_names_what_was_stored(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    broker.create(TOPIC)
    broker.script.extend(["ok", InvalidFrame("odd")])
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        with pytest.raises(InvalidFrame) as caught:
            await producer.send_batch([b"0", b"1", b"2"])
    assert caught.value.__notes__ == [
        "stored all the same: MessageRange(partition=0, start=0, end=2)"
    ]


async def test_a_broker_that_is_not_there_is_said_so(broker: ScriptedBroker) -> None:
    url = broker.url
    await broker.stop()
    with pytest.raises(danube.Unavailable, match=url):
        await danube.connect(url, settings=quick(connect_timeout_s=0.2))


async def test_a_broker_that_comes_back_is_found_again(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"0")
        port = int(broker.url.rpartition(":")[2])
        await broker.stop()
        sending = asyncio.create_task(producer.send(b"1"))
        await broker.start(port)
        assert (await sending).offset == 1
    assert topic.partitions[0].values() == [b"0", b"1"]


async def test_cancelling_a_send_leaves_the_producer_usable(
    broker: ScriptedBroker, client: danube.Client
) -> None:
    topic = broker.create(TOPIC)
    broker.script.append("hold")
    async with client.producer(TOPIC) as producer:
        sending = asyncio.create_task(producer.send(b"0"))
        await broker.held.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        broker.released.set()
        assert (await producer.send(b"1")).offset == 1
    assert topic.partitions[0].values() == [b"0", b"1"]
