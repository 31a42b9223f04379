"""Requests that are wrong: the right class and status, a sentence, and nothing changed."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pyarrow as pa
import pytest

from danube.core.checksum import crc32c
from danube.core.errors import (
    AlreadyExists,
    DanubeError,
    InvalidFrame,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    OwnershipLost,
    ProducerFenced,
    SequenceGap,
    SubscriptionBusy,
    SubscriptionNotFound,
    TopicNotFound,
    TopicReplaced,
    Unavailable,
    Unsupported,
)
from danube.core.frames import Codec
from danube.core.offsets import OffsetRange
from danube.testing.brokers import LocalBroker
from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.broker.raw import Raw, RawProducer, eventually, failed, refusal

TOPIC = "/default/requests"
COUNT_AT = 4 + 1 + 2 + 1 + 1 + 1 + 16 + 4 + 8 + 4 + 8
"""Of the number of messages in a frame's header (danube/core/frames.py)."""

BODY_AT = COUNT_AT + 4 + 8 + 8 + 8 + 8
"""Of the body's length and checksum."""

BAD = grpc.StatusCode.INVALID_ARGUMENT
ABSENT = grpc.StatusCode.NOT_FOUND
FORBIDDEN = grpc.StatusCode.FAILED_PRECONDITION
OUTSIDE = grpc.StatusCode.OUT_OF_RANGE


async def opened(kind: Any, **fields: Any) -> AsyncIterator[Any]:
    yield kind(open=fields.pop("message")(**fields))


def publish_open(raw: Raw, **fields: Any) -> Any:
    return raw.batch.Publish(opened(pb.PublishRequest, message=pb.PublishOpen, **fields))


def subscribe_open(raw: Raw, **fields: Any) -> Any:
    return raw.batch.Subscribe(opened(pb.SubscribeRequest, message=pb.SubscribeOpen, **fields))


@pytest.mark.parametrize(
    "name",
    ["", "topic", "/", "/a", "/a/b/c", "//", "/a b/c", "/a/\n", "/a/" + "x" * 10_000, "/a/é/"],
)
async def test_a_malformed_topic_name_is_refused_by_every_call(raw: Raw, name: str) -> None:
    calls = [
        raw.admin.CreateTopic(
            pb.CreateTopicRequest(topic=name, options=pb.TopicOptions(reliable=True))
        ),
        raw.batch.Lookup(pb.LookupRequest(topic=name, create=True)),
        raw.batch.Read(pb.ReadRequest(topic=name)),
        raw.admin.DeleteTopic(pb.DeleteTopicRequest(topic=name)),
        raw.admin.Verify(pb.VerifyRequest(topic=name)),
        publish_open(raw, topic=name, producer_name="p"),
        subscribe_open(raw, topic=name, subscription="s", consumer_name="c"),
    ]
    for call in calls:
        (await refusal(call)).check(InvalidName, BAD)
    found = await raw.admin.ListTopics(pb.ListTopicsRequest())
    assert not found.topics


async def test_a_topic_that_does_not_exist_is_not_found_and_not_made(raw: Raw) -> None:
    calls = [
        raw.batch.Lookup(pb.LookupRequest(topic=TOPIC)),
        raw.batch.Read(pb.ReadRequest(topic=TOPIC)),
        raw.batch.Plan(pb.PlanRequest(ranges=[pb.TopicRange(topic=TOPIC)])),
        raw.batch.OffsetsForTime(pb.OffsetsForTimeRequest(topic=TOPIC)),
        raw.admin.DescribeTopic(pb.DescribeTopicRequest(topic=TOPIC)),
        raw.admin.DeleteTopic(pb.DeleteTopicRequest(topic=TOPIC)),
        raw.admin.Roll(pb.RollRequest(topic=TOPIC)),
        raw.admin.Verify(pb.VerifyRequest(topic=TOPIC)),
        publish_open(raw, topic=TOPIC, producer_name="p"),
        subscribe_open(raw, topic=TOPIC, subscription="s", consumer_name="c"),
    ]
    for call in calls:
        (await refusal(call)).check(TopicNotFound, ABSENT, "danube topics create")
    assert not (await raw.admin.ListTopics(pb.ListTopicsRequest())).topics


async def test_topics_that_cannot_be_made_are_refused(raw: Raw) -> None:
    await raw.create(TOPIC)
    for options, kind, code in (
        ({"durability": "quorum"}, Unsupported, grpc.StatusCode.UNIMPLEMENTED),
        ({"max_message_bytes": 2**30}, InvalidRequest, BAD),
    ):
        (await refusal(raw.create("/default/other", **options))).check(kind, code)
    (await refusal(raw.create(TOPIC))).check(AlreadyExists, grpc.StatusCode.ALREADY_EXISTS, TOPIC)
    (await refusal(raw.create("/default/many", 2**31))).check(InvalidRequest, BAD)
    await raw.create("/default/parted", 3)
    taken = await refusal(raw.create("/default/parted-part-1"))
    assert isinstance(taken.error, AlreadyExists | InvalidName)


async def test_subscriptions_that_cannot_be_are_refused(raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x"] * 3)
    wrong: list[tuple[dict[str, Any], type[DanubeError], grpc.StatusCode]] = [
        ({"subscription": ""}, InvalidName, BAD),
        ({"consumer_name": "\x00"}, InvalidName, BAD),
        ({"partition": 5}, InvalidRequest, BAD),
        ({"type": pb.SPARK}, InvalidRequest, BAD),
        ({"start": pb.StartPosition(offset=99)}, InvalidRequest, BAD),
        ({"topic_id": "nonsense"}, InvalidName, BAD),
        ({"topic_id": "00" * 16}, TopicReplaced, FORBIDDEN),
        ({"type": pb.KEY_SHARED}, Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    ]
    for fields, kind, code in wrong:
        given = {"topic": TOPIC, "subscription": "s", "consumer_name": "c", **fields}
        (await refusal(subscribe_open(raw, **given))).check(kind, code)
    assert not (await raw.admin.ListSubscriptions(pb.ListSubscriptionsRequest())).subscriptions
    async with raw.consumer(TOPIC, "s"):
        other = {"topic": TOPIC, "subscription": "s", "consumer_name": "another"}
        (await refusal(subscribe_open(raw, **other))).check(SubscriptionBusy, FORBIDDEN)
        shared = await refusal(subscribe_open(raw, **other, type=pb.SHARED))
        assert shared.code is FORBIDDEN
        request = pb.DeleteSubscriptionRequest(topic=TOPIC, subscription="s")
        busy = await refusal(raw.admin.DeleteSubscription(request))
        busy.check(SubscriptionBusy, FORBIDDEN, "stop them")
    unknown = pb.ResetSubscriptionRequest(
        topic=TOPIC, subscription="u", position=pb.StartPosition(earliest=True)
    )
    (await refusal(raw.admin.ResetSubscription(unknown))).check(SubscriptionNotFound, ABSENT)


async def test_offsets_outside_of_the_log_are_refused_with_what_there_is(raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x"] * 10)
    for start, end in ((11, 12), (11, 0), (2**63, 0), (2**64 - 1, 2**64 - 1), (0, 11)):
        call = raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=start, end=end))
        (await refusal(call)).check(OffsetOutOfRange, OUTSIDE)
    backwards = raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=5, end=2))
    (await refusal(backwards)).check(InvalidRequest, BAD)
    plan = pb.PlanRequest(ranges=[pb.TopicRange(topic=TOPIC, start=0, end=11)])
    (await refusal(raw.batch.Plan(plan))).check(OffsetOutOfRange, OUTSIDE, "10")
    late = pb.ReadRequest(topic=TOPIC, start=0, end=11, wait_ms=50)
    found = await refusal(raw.batch.Read(late))
    assert found.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_acks_of_what_was_never_delivered_change_nothing(raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x"] * 10)
    async with raw.consumer(TOPIC, "s") as consumer:
        assert len(await consumer.messages(10)) == 10
        assert (await consumer.ack(50, 60)).cursor == 0
        assert (await consumer.ack(2**62, 2**63 - 1)).cursor == 0
        assert isinstance(failed(await consumer.ack(0, 2**64 - 1)), InvalidRequest)
        backwards = failed(await consumer.ack(0, 0))
        assert backwards is None or isinstance(backwards, InvalidRequest)
        assert (await consumer.ack(3, 10)).cursor == 0
        assert (await consumer.ack(0, 2**62)).cursor == 10


async def test_a_stream_that_does_not_begin_with_open_is_refused(raw: Raw) -> None:
    async def nothing() -> AsyncIterator[Any]:
        return
        yield

    async def frame() -> AsyncIterator[Any]:
        yield pb.PublishRequest(frame=b"x")

    async def credit() -> AsyncIterator[Any]:
        yield pb.SubscribeRequest(credit=pb.Credit(bytes=1))

    for call in (
        raw.batch.Publish(nothing()),
        raw.batch.Publish(frame()),
        raw.batch.Subscribe(nothing()),
        raw.batch.Subscribe(credit()),
    ):
        (await refusal(call)).check(InvalidRequest, BAD, "open")


def other_columns(producer: RawProducer) -> bytes:
    """A frame whose body is another table's, with a header that fits it."""
    records = pa.record_batch({"colour": pa.array([b"red"] * 5, pa.binary())})
    body = records.serialize().to_pybytes()
    good = producer.frame([b"value"] * 5, 0)
    return forged(good.header_bytes, body)


def lying_count(producer: RawProducer) -> bytes:
    """A header that says six of five messages."""
    good = producer.frame([b"value"] * 5, 0)
    return forged(good.header_bytes, bytes(good.body), count=6)


def forged(header: bytes, body: bytes, count: int = 5) -> bytes:
    """A header for another body, with every checksum right."""
    made = bytearray(header)
    struct.pack_into("<I", made, COUNT_AT, count)
    struct.pack_into("<II", made, BODY_AT, len(body), crc32c(body))
    struct.pack_into("<I", made, len(made) - 4, crc32c(bytes(made[:-4])))
    return bytes(made) + body


def flipped(producer: RawProducer, at: int) -> bytes:
    data = bytearray(producer.frame([b"value"] * 5, 0).to_bytes())
    data[at] ^= 0x40
    return bytes(data)


def bomb(producer: RawProducer) -> bytes:
    values = [b"\0" * 250_000] * 400
    return producer.frame(values, 0, codec=Codec.ZSTD).to_bytes()


HOSTILE: dict[str, tuple[Any, type[DanubeError]]] = {
    "nothing": (lambda p: b"", InvalidFrame),
    "noise": (lambda p: os.urandom(500), InvalidFrame),
    "cut short": (lambda p: p.frame([b"v"], 0).to_bytes()[:-3], InvalidFrame),
    "too long": (lambda p: p.frame([b"v"], 0).to_bytes() + b"x", InvalidFrame),
    "flipped header": (lambda p: flipped(p, 40), InvalidFrame),
    "flipped body": (lambda p: flipped(p, 200), InvalidFrame),
    "other columns": (other_columns, InvalidFrame),
    "a lying count": (lying_count, InvalidFrame),
    "expands to 100 MB": (bomb, InvalidRequest),
    "another topic": (lambda p: p.frame([b"v"], 0, topic_id="11" * 16), TopicReplaced),
    "another partition": (lambda p: p.frame([b"v"], 0, partition=3), OwnershipLost),
    "another producer": (lambda p: p.frame([b"v"], 0, producer=7), InvalidFrame),
    "an old epoch": (lambda p: p.frame([b"v"], 0, epoch=1), ProducerFenced),
    "a gap": (lambda p: p.frame([b"v"], 10), SequenceGap),
    "a message too large": (lambda p: p.frame([b"v" * 300_000], 0), MessageTooLarge),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_frame_that_must_not_get_in_is_refused_and_appends_nothing(
    raw: Raw, case: str
) -> None:
    make, kind = HOSTILE[case]
    await raw.create(TOPIC, max_message_bytes=256 * 1024)
    async with raw.producer(TOPIC) as producer:
        await producer.post(make(producer))
        error = failed(await producer.receipt())
        assert isinstance(error, kind), error
        assert str(error)
        # Whatever comes behind a refused frame is refused as well: the order is kept.
        assert failed(await producer.send([b"next"], 0)) is not None
    assert (await raw.where(TOPIC)).durable_offset == 0
    assert await raw.publish(TOPIC, [b"good"]) == 0


async def test_a_frame_above_the_limit_never_reaches_the_broker_in_full(raw: Raw) -> None:
    await raw.create(TOPIC)
    async with raw.producer(TOPIC) as producer:
        await producer.post(producer.frame([b"v" * 200_000] * 5))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await producer.receipt()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await raw.where(TOPIC)).durable_offset == 0


async def test_a_frame_sent_again_after_a_lost_reply_is_there_once(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC)
    async with raw.producer(TOPIC, name="one") as producer:
        await producer.send([b"a"] * 3)
        doubtful = producer.frame([b"b"] * 3)
        await producer.post(doubtful)
        await producer.receipt()
        epoch = producer.opened.producer_epoch
        await broker.crash()
    await broker.start()
    async with raw.producer(TOPIC, name="one", epoch=epoch) as producer:
        await producer.post(doubtful)
        again = await producer.receipt()
        assert (again.base_offset, again.duplicate) == (3, True)
        await producer.post(producer.frame([b"c"] * 3, 6))
        assert (await producer.receipt()).base_offset == 6
    assert [v for _, v in await raw.read(TOPIC)] == [b"a"] * 3 + [b"b"] * 3 + [b"c"] * 3


async def test_a_duplicate_of_a_frame_in_flight_waits_for_it(raw: Raw) -> None:
    await raw.create(TOPIC)
    async with raw.producer(TOPIC) as producer:
        frame = producer.frame([b"v"] * 4)
        for _ in range(3):
            await producer.post(frame)
        receipts = [await producer.receipt() for _ in range(3)]
    assert [r.base_offset for r in receipts] == [0, 0, 0]
    assert [r.duplicate for r in receipts] == [False, True, True]
    assert (await raw.where(TOPIC)).durable_offset == 4


async def test_a_producer_of_the_same_name_fences_the_first(raw: Raw) -> None:
    await raw.create(TOPIC)
    async with raw.producer(TOPIC, name="n") as first:
        await first.send([b"1"])
        async with raw.producer(TOPIC, name="n") as second:
            assert second.opened.producer_epoch > first.opened.producer_epoch
            assert (await second.send([b"2"])).base_offset == 1
            error = failed(await first.send([b"3"]))
            assert isinstance(error, ProducerFenced)
    assert [v for _, v in await raw.read(TOPIC)] == [b"1", b"2"]


async def test_a_topic_deleted_and_made_again_ends_streams_of_the_old_one(raw: Raw) -> None:
    old = await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"old"] * 3)
    reader = raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=0, end=0))
    assert (await reader.read()).base_offset == 0
    async with raw.producer(TOPIC) as producer, raw.consumer(TOPIC, "s") as consumer:
        await consumer.messages(3)
        await raw.delete(TOPIC)
        new = await raw.create(TOPIC)
        assert new != old
        (await refusal(reader.read())).check(TopicNotFound, ABSENT, "deleted")
        (await refusal(consumer.next())).check(TopicNotFound, ABSENT, "deleted")
        error = failed(await producer.send([b"late"]))
        assert isinstance(error, TopicNotFound | TopicReplaced)
    for call in (
        raw.batch.Read(pb.ReadRequest(topic=TOPIC, topic_id=old)),
        publish_open(raw, topic=TOPIC, topic_id=old, producer_name="p"),
        subscribe_open(raw, topic=TOPIC, topic_id=old, subscription="s", consumer_name="c"),
    ):
        (await refusal(call)).check(TopicReplaced, FORBIDDEN, "created again", new)
    assert (await raw.where(TOPIC)).durable_offset == 0
    assert await raw.publish(TOPIC, [b"new"]) == 0
    assert [v for _, v in await raw.read(TOPIC)] == [b"new"]
    assert not (await raw.admin.ListSubscriptions(pb.ListSubscriptionsRequest())).subscriptions


async def test_a_deleted_topic_stays_deleted_over_a_crash_and_frees_the_journal(
    broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x" * 1000] * 100)
    await raw.stage(TOPIC, topic_id, [b"y"] * 10)
    await raw.delete(TOPIC)
    await broker.crash()
    await broker.start()
    (await refusal(raw.where(TOPIC))).check(TopicNotFound, ABSENT)
    engine = broker.engine
    await eventually(lambda: engine.context.staged.used_bytes == 0)
    await eventually(lambda: engine.describe()["partitions"] == 0)


async def test_a_reset_moves_a_consumer_that_is_connected(raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"%d" % n for n in range(10)])
    async with raw.consumer(TOPIC, "s") as consumer:
        await consumer.messages(10)
        await consumer.ack(0, 10)
        request = pb.ResetSubscriptionRequest(
            topic=TOPIC, subscription="s", position=pb.StartPosition(offset=4)
        )
        await raw.admin.ResetSubscription(request)
        (await refusal(consumer.next())).check(
            Unavailable, grpc.StatusCode.UNAVAILABLE, "subscribe again"
        )
    async with raw.consumer(TOPIC, "s") as consumer:
        assert [offset for offset, _ in await consumer.messages(6)] == list(range(4, 10))


async def test_a_nack_brings_messages_back_with_their_count(raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"%d" % n for n in range(10)])
    async with raw.consumer(TOPIC, "s") as consumer:
        await consumer.messages(10)
        await consumer.post_ack(nacked=[OffsetRange(2, 5)])
        deliveries = [await consumer.next() for _ in range(2)]
        (again,) = [item.delivery for item in deliveries if item.HasField("delivery")]
        assert [(s.start, s.end) for s in again.spans] == [(2, 5)]
        assert again.redelivery_count == 1
