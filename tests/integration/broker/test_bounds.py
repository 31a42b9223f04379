"""Nothing grows without bound, and who is slow stops nobody else."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import grpc
import pytest

from danube.core.errors import MemoryFull, ResourceExhausted
from danube.core.offsets import OffsetRange
from danube.testing.brokers import BrokerProcess, LocalBroker
from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.broker.conftest import QUICK
from tests.integration.broker.raw import PLENTY, Raw, eventually, failed, refusal

TOPIC = "/default/bounds"
MIB = 1024 * 1024


async def test_a_consumer_that_never_reads_stops_nobody(raw: Raw) -> None:
    await raw.create(TOPIC)
    rows = [b"x" * 20_000] * 20
    async with (
        raw.consumer(TOPIC, "deaf", credit=PLENTY),
        raw.consumer(TOPIC, "keen") as keen,
        raw.producer(TOPIC) as producer,
    ):
        for _ in range(30):
            await producer.send(rows)
        assert len(await keen.messages(600)) == 600


async def test_in_a_shared_subscription_a_consumer_without_credit_gets_nothing(raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x"] * 100)
    async with (
        raw.consumer(TOPIC, "s", kind=pb.SHARED, credit=0),
        raw.consumer(TOPIC, "s", kind=pb.SHARED) as other,
    ):
        assert len(await other.messages(100)) == 100


async def test_what_waits_for_deaf_consumers_stays_within_the_outbox_budget(
    broker: LocalBroker, raw: Raw
) -> None:
    broker.settings["dispatch.outbox_bytes"] = str(MIB)
    await broker.stop()
    await broker.start()
    await raw.create(TOPIC)
    for _ in range(20):
        await raw.publish(TOPIC, [b"x" * 40_000] * 10)
    async with raw.consumer(TOPIC, "a"), raw.consumer(TOPIC, "b"):
        ports = [p for d in broker.broker.subscriptions._live.values() for p in d.ports.values()]
        assert len(ports) == 2
        await eventually(lambda: any(port.queued_bytes for port in ports))
        # Whoever reads gets everything meanwhile: the deaf ones have had the time for it too.
        async with raw.consumer(TOPIC, "c") as reading:
            assert len(await reading.messages(200)) == 200
        # A share each, and the frame that was under way when it was used up.
        assert sum(port.queued_bytes for port in ports) <= MIB + 2 * 500_000


async def test_a_subscription_with_its_window_full_waits_for_acks(
    broker: LocalBroker, raw: Raw
) -> None:
    broker.settings["dispatch.max_unacked_messages"] = "1000"
    await broker.stop()
    await broker.start()
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x"] * 2500)
    async with raw.consumer(TOPIC, "s") as consumer:
        assert len(await consumer.messages(1000)) == 1000
        await consumer.post_ack()
        assert (await consumer.next()).HasField("acknowledged"), "delivered beyond the window"
        await consumer.post_ack([OffsetRange(0, 600)])
        found = 0
        while found < 600:
            item = await consumer.next()
            found += sum(s.end - s.start for s in item.delivery.spans)
        assert found == 600


async def test_a_hundred_thousand_unacknowledged_messages_are_acknowledged_at_once(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC)
    for _ in range(10):
        await raw.publish(TOPIC, [b"x"] * 10_000)
    async with raw.consumer(TOPIC, "s") as consumer:
        assert len(await consumer.messages(100_000)) == 100_000
        (delivery,) = broker.broker.subscriptions._live.values()
        assert delivery.machine.unacked_messages == 100_000
        assert (await consumer.ack(0, 100_000)).cursor == 100_000


async def test_publishers_faster_than_the_disk_wait_and_lose_nothing(
    broker: LocalBroker, raw: Raw
) -> None:
    broker.settings |= {"log.max_in_flight_bytes": str(MIB), "journal.queue_bytes": str(2 * MIB)}
    await broker.stop()
    await broker.start()
    await raw.create(TOPIC)
    rows = [b"x" * 40_000] * 10
    writer = broker.engine.context.writer
    highest = 0

    async def publish(number: int) -> None:
        nonlocal highest
        async with raw.producer(TOPIC, name=f"p{number}") as producer:
            for _ in range(10):
                error = failed(await producer.send(rows))
                assert error is None, error
                highest = max(highest, writer.in_flight_bytes)

    await asyncio.gather(*(publish(number) for number in range(8)))
    assert highest <= MIB + 500_000
    assert (await raw.where(TOPIC)).durable_offset == 800


async def test_producers_beyond_the_table_are_refused_unless_others_are_idle(
    broker: LocalBroker, raw: Raw
) -> None:
    broker.settings["log.max_producers_count"] = "20"
    await broker.stop()
    await broker.start()
    await raw.create(TOPIC)
    for number in range(20):
        async with raw.producer(TOPIC, name=f"p{number}") as producer:
            assert failed(await producer.send([b"x"])) is None
    # All of them have just written: none may be forgotten.
    found = await refusal(_open_another(raw))
    found.check(ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED, "log.max_producers_count")


async def _open_another(raw: Raw) -> None:
    async with raw.producer(TOPIC, name="one-more"):
        pass


async def test_producers_that_never_wrote_make_room(broker: LocalBroker, raw: Raw) -> None:
    broker.settings["log.max_producers_count"] = "20"
    await broker.stop()
    await broker.start()
    await raw.create(TOPIC)
    async with raw.producer(TOPIC, name="writer") as producer:
        frame = producer.frame([b"x"])
        await producer.post(frame)
        await producer.receipt()
        epochs: dict[str, int] = {}
        for number in range(60):
            async with raw.producer(TOPIC, name=f"idle-{number % 30}") as idle:
                epoch = idle.opened.producer_epoch
                assert epoch > epochs.get(idle.name, 0), "an epoch was handed out twice"
                epochs[idle.name] = epoch
        await producer.post(frame)
        assert (await producer.receipt()).duplicate


async def test_more_reads_than_there_is_memory_for_wait_their_turn(
    broker: LocalBroker, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.settings["dispatch.max_reads_count"] = "2"
    monkeypatch.setattr("danube.broker.reading.SLOT_WAIT_S", 0.2)
    await broker.stop()
    await broker.start()
    await raw.create(TOPIC)
    for _ in range(30):
        await raw.publish(TOPIC, [b"x" * 40_000] * 10)
    deaf = [raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=0, end=300)) for _ in range(2)]
    for call in deaf:
        assert (await call.read()).base_offset == 0
    # Whoever waits too long is told so; followers that wait for news hold nothing.
    found = await refusal(raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=0, end=300)))
    found.check(MemoryFull, grpc.StatusCode.RESOURCE_EXHAUSTED, "max_reads_count")
    for call in deaf:
        call.cancel()
    assert len(await raw.read(TOPIC)) == 300


@pytest.mark.timeout(1200)
async def test_streams_opened_and_dropped_leave_the_broker_as_it_was(
    broker: LocalBroker, raw: Raw, long_run: bool
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"x" * 100] * 10)
    count = 10_000 if long_run else 300

    async def churn(rounds: int) -> None:
        for number in range(rounds):
            async with raw.producer(TOPIC, name=f"p{number % 50}"):
                pass
            async with raw.consumer(TOPIC, "s", kind=pb.SHARED) as consumer:
                await consumer.delivery()
            reader = raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=0, end=0))
            await reader.read()
            reader.cancel()

    await churn(20)
    await eventually(lambda: not broker.broker.subscriptions._live)
    gc.collect()
    tasks, listeners = len(asyncio.all_tasks()), len(_listeners(broker))
    state = broker.engine.describe()
    await churn(count // 3)
    await eventually(lambda: not broker.broker.subscriptions._live)
    await eventually(lambda: len(_listeners(broker)) == listeners)
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
    assert broker.broker.subscriptions.consumer_count() == 0
    assert {**broker.engine.describe(), "in_flight_bytes": 0} == {**state, "in_flight_bytes": 0}


def _listeners(broker: LocalBroker) -> list[object]:
    (topic,) = broker.engine.topics.values()
    return list(topic.partitions[0].log._listeners)


async def test_a_broker_under_load_that_nobody_reads_stays_within_its_budget(
    tmp_path: Path,
) -> None:
    settings = {
        **QUICK,
        "log.tail_cache_bytes": 8 * MIB,
        "log.roll_bytes": MIB,
        "log.roll_age_s": 0.2,
        "dispatch.outbox_bytes": 8 * MIB,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        async with Raw(process.url) as raw:
            await raw.create(TOPIC)
            rows = [b"x" * 40_000] * 10
            async with raw.producer(TOPIC) as producer:
                for _ in range(20):
                    await producer.send(rows)
                before = process.resident_bytes()
                async with raw.consumer(TOPIC, "a"), raw.consumer(TOPIC, "b"):
                    for _ in range(200):
                        await producer.send(rows)
                    # 80 MB went through; what stays is bounded by the settings above.
                    assert process.resident_bytes() - before < 60 * MIB
