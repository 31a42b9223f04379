"""One offset space over memory, journal and table: readers never see where one ends."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import grpc
import pytest

from danube.core.errors import DataLost, Unavailable
from danube.lake.table import TopicTable
from danube.testing.brokers import LocalBroker
from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.broker.conftest import QUICK
from tests.integration.broker.raw import LATEST, Raw, Values, eventually, refusal

TOPIC = "/default/tiers"


def made(name: str, count: int, size: int = 20) -> Values:
    return [b"%s %d".ljust(size, b".") % (name.encode(), n) for n in range(count)]


def segments_of(broker: LocalBroker) -> list[Path]:
    return sorted((broker.data_dir / "journal").glob("*.segment"))


async def test_what_a_sink_committed_is_read_after_its_roll_while_older_messages_are_cached(
    raw: Raw,
) -> None:
    topic_id = await raw.create(TOPIC)
    await raw.publish(TOPIC, made("published", 3))
    staged = await raw.stage(TOPIC, topic_id, made("staged", 3))
    await raw.commit([staged])
    await raw.publish(TOPIC, made("later", 3))
    before = await raw.read(TOPIC)
    await raw.roll(TOPIC)
    assert await raw.read(TOPIC) == before
    async with raw.consumer(TOPIC, "s") as consumer:
        assert await consumer.messages(9) == before


@pytest.mark.parametrize("cache_bytes", [0, 30_000, 1_000_000])
async def test_reads_that_cross_tiers_while_rolling_return_what_was_sent(
    tmp_path: Path, cache_bytes: int
) -> None:
    settings = {**QUICK, "log.tail_cache_bytes": cache_bytes, "journal.checkpoint_segments": 1}
    chance = random.Random(cache_bytes)
    sent: list[bytes] = []
    async with LocalBroker(tmp_path / "data", settings) as broker, Raw(broker.url) as raw:
        topic_id = await raw.create(TOPIC)
        for batch_id in range(12):
            values = made(f"batch {batch_id}", chance.randrange(1, 60), size=2_000)
            if batch_id % 3 == 2:
                staged = await raw.stage(TOPIC, topic_id, values, batch_id=batch_id, chunk=7)
                await raw.commit([staged], batch_id)
            else:
                await raw.publish(TOPIC, values)
            sent += values
            if batch_id % 4 == 1:
                await raw.roll(TOPIC)
            start = chance.randrange(len(sent))
            end = chance.randrange(start + 1, len(sent) + 1)
            assert await raw.read(TOPIC, start, end) == list(enumerate(sent))[start:end]
        assert await raw.read(TOPIC) == list(enumerate(sent))
        assert await raw.findings(TOPIC) == []


async def test_segments_are_recycled_under_readers_that_never_see_a_gap(tmp_path: Path) -> None:
    settings = {
        **QUICK,
        "log.tail_cache_bytes": 0,
        "journal.checkpoint_segments": 1,
        "journal.spare_segments": 1,
    }
    sent: list[bytes] = []
    async with LocalBroker(tmp_path / "data", settings) as broker, Raw(broker.url) as raw:
        await raw.create(TOPIC)
        async with raw.consumer(TOPIC, "s") as consumer, raw.producer(TOPIC) as producer:
            seen: list[tuple[int, bytes]] = []
            for number in range(40):
                values = made(f"frame {number}", 20, size=10_000)
                await producer.send(values)
                sent += values
                seen += await consumer.messages(20)
                if number % 5 == 4:
                    await raw.roll(TOPIC)
            assert seen == list(enumerate(sent))
        # 8 MB went through segments of 1 MB.
        await eventually(lambda: len(segments_of(broker)) < 6)
        assert await raw.read(TOPIC) == seen


async def test_a_crash_without_a_roll_loses_nothing(broker: LocalBroker, raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("one", 100))
    await raw.roll(TOPIC)
    await raw.publish(TOPIC, made("two", 100))
    before = await raw.read(TOPIC)
    await broker.crash()
    await broker.start()
    assert await raw.read(TOPIC) == before
    info = await raw.where(TOPIC)
    assert (info.rolled_offset, info.durable_offset, list(info.lost)) == (100, 200, [])


async def test_a_graceful_stop_rolls_everything_and_releases_what_it_owned(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC, 2)
    for partition in (0, 1):
        await raw.publish(TOPIC, made("value", 50), partition)
    async with raw.consumer(TOPIC, "s", 1, start=LATEST):
        pass
    await broker.stop()
    # Nothing un-rolled is in the journal any more: the table alone is enough.
    shutil.rmtree(broker.data_dir / "journal")
    await broker.start()
    for partition in (0, 1):
        info = await raw.where(TOPIC, partition)
        assert (info.rolled_offset, info.log_start_offset) == (info.durable_offset, 0)
        found = await raw.read(TOPIC, 0, 50, partition)
        assert [value for _, value in found] == made("value", 50)


async def test_a_clean_restart_goes_on_at_the_next_offset(broker: LocalBroker, raw: Raw) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("one", 10))
    await broker.stop()
    await broker.start()
    assert await raw.publish(TOPIC, made("two", 10)) == 10
    assert list((await raw.where(TOPIC)).lost) == []
    assert await raw.findings(TOPIC) == []


async def test_a_journal_lost_before_the_first_roll_costs_a_recorded_range(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("lost", 10))
    await broker.crash()
    shutil.rmtree(broker.data_dir / "journal")
    await broker.start()
    (lost,) = (await raw.where(TOPIC)).lost
    assert (lost.start, await raw.publish(TOPIC, made("new", 10))) == (0, lost.end)
    await broker.crash()
    await broker.start()
    assert list((await raw.where(TOPIC)).lost) == [lost]
    assert await raw.findings(TOPIC) == []


async def test_a_takeover_that_fails_half_way_still_knows_that_the_journal_was_lost(
    broker: LocalBroker, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("lost", 10))
    await broker.crash()
    shutil.rmtree(broker.data_dir / "journal")
    await broker.start()

    def away(*_: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as failing:
        failing.setattr(TopicTable, "fence", away)
        found = await refusal(raw.batch.Lookup(pb.LookupRequest(topic=TOPIC)))
        found.check(Unavailable, grpc.StatusCode.UNAVAILABLE, "away")
    (lost,) = (await raw.where(TOPIC)).lost
    assert (lost.start, await raw.publish(TOPIC, made("new", 10))) == (0, lost.end)


async def test_a_takeover_that_fails_half_way_and_crashes_still_reuses_no_offset(
    broker: LocalBroker, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("lost", 10))
    await broker.crash()
    shutil.rmtree(broker.data_dir / "journal")
    await broker.start()

    def away(*_: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as failing:
        failing.setattr(TopicTable, "fence", away)
        await refusal(raw.batch.Lookup(pb.LookupRequest(topic=TOPIC)))
    await broker.crash()
    await broker.start()
    (lost,) = (await raw.where(TOPIC)).lost
    assert (lost.start, await raw.publish(TOPIC, made("new", 10))) == (0, lost.end)


async def test_a_lost_journal_costs_a_recorded_range_and_never_an_offset_twice(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("rolled", 10))
    await raw.roll(TOPIC)
    await raw.publish(TOPIC, made("lost", 10))
    await broker.crash()
    shutil.rmtree(broker.data_dir / "journal")
    await broker.start()
    info = await raw.where(TOPIC)
    (lost,) = info.lost
    assert lost.start == 10
    assert lost.end >= 20
    first = await raw.publish(TOPIC, made("new", 10))
    assert first == lost.end == info.durable_offset

    found = await refusal(raw.batch.Read(pb.ReadRequest(topic=TOPIC, start=0, end=first + 10)))
    found.check(DataLost, grpc.StatusCode.DATA_LOSS, "[10, ")
    values = [value for _, value in await raw.read(TOPIC, skip_lost=True)]
    assert values == [*made("rolled", 10), *made("new", 10)]
    async with raw.consumer(TOPIC, "s") as consumer:
        assert [value for _, value in await consumer.messages(20)] == values
    # It is recorded once, whatever comes after.
    await broker.crash()
    await broker.start()
    assert list((await raw.where(TOPIC)).lost) == [lost]
    assert await raw.findings(TOPIC) == []


async def test_an_answered_ack_survives_a_crash_and_everything_else_comes_again(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("value", 20))
    async with raw.consumer(TOPIC, "s") as consumer:
        await consumer.messages(20)
        assert (await consumer.ack(0, 5)).cursor == 5
        assert (await consumer.ack(8, 12)).cursor == 5
        await broker.crash()
    await broker.start()
    left = [*range(5, 8), *range(12, 20)]
    async with raw.consumer(TOPIC, "s") as consumer:
        assert consumer.opened.cursor == 5
        assert [offset for offset, _ in await consumer.messages(len(left))] == left


async def test_a_journal_checkpoint_carries_everything_that_older_segments_said(
    broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    async with raw.producer(TOPIC, name="p") as producer:
        frame = producer.frame(made("value", 10))
        await producer.post(frame)
        await producer.receipt()
        epoch = producer.opened.producer_epoch
    staged = await raw.stage(TOPIC, topic_id, made("staged", 10))
    async with raw.consumer(TOPIC, "s") as consumer:
        await consumer.messages(10)
        await consumer.ack(0, 7)
    committed = await raw.stage(TOPIC, topic_id, made("committed", 10), sink="other")
    await raw.commit([committed], sink="other")
    # The first segment goes: what it said is only in the checkpoint from now on.
    await raw.roll(TOPIC)
    for _ in range(3):
        await broker.engine.checkpoints.write()
        for _ in range(4):
            await raw.publish(TOPIC, made("filler", 1, size=200_000))
    await broker.crash()
    await broker.start()
    async with raw.producer(TOPIC, name="p", epoch=epoch) as producer:
        await producer.post(frame)
        assert (await producer.receipt()).duplicate
    async with raw.consumer(TOPIC, "s") as consumer:
        assert consumer.opened.cursor == 7
    await raw.commit([staged])
    again = await raw.commit([committed], sink="other")
    assert again.already_committed
    values = [value for _, value in await raw.read(TOPIC)]
    assert values.count(made("staged", 10)[0]) == values.count(made("committed", 10)[0]) == 1
    assert await raw.findings(TOPIC) == []


async def test_many_partitions_share_one_journal_and_keep_apart(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC, 8)
    for round_ in range(3):
        for partition in range(8):
            await raw.publish(TOPIC, made(f"{partition}-{round_}", 5), partition)
        await (raw.roll(TOPIC) if round_ == 1 else broker.crash())
        if round_ != 1:
            await broker.start()
    for partition in range(8):
        found = await raw.read(TOPIC, partition=partition)
        expected = [v for round_ in range(3) for v in made(f"{partition}-{round_}", 5)]
        assert found == list(enumerate(expected))
    assert await raw.findings(TOPIC) == []


async def test_one_who_listens_and_fails_keeps_no_producer_waiting(
    broker: LocalBroker, raw: Raw
) -> None:
    await raw.create(TOPIC)
    await raw.publish(TOPIC, made("first", 1))
    ((_, owned),) = list(broker.engine.open_partitions())

    def fails() -> None:
        raise RuntimeError("a listener's own fault")

    owned.log.on_durable(fails)
    async with asyncio.timeout(10):
        assert await raw.publish(TOPIC, made("second", 1)) == 1
