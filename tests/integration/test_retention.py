"""Retention through a real broker: whole files go, readers and cursors follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import danube
from danube.core.errors import OffsetOutOfRange
from danube.log.topic import TopicLog
from danube.testing.brokers import LocalBroker

TOPIC = "/default/kept"
FILES = 5
ROWS = 100


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    async with LocalBroker(tmp_path / "data", {"log.roll_age_s": 3600.0}) as broker:
        yield broker


async def publish_files(client: danube.Client) -> None:
    """Five rolls of a hundred messages: five Parquet files."""
    producer = await client.producer(TOPIC)
    for number in range(FILES):
        await producer.send_batch([f"{number}-{row}" * 50 for row in range(ROWS)])
        await client.admin.roll(TOPIC)
    await producer.close()


async def log_start(client: danube.Client) -> int:
    return (await client.admin.describe_topic(TOPIC)).partitions[0].log_start_offset


async def verified(client: danube.Client) -> bool:
    return not [line async for line in client.admin.verify(TOPIC) if line.finding]


async def test_the_oldest_files_go_once_the_topic_is_large_enough_without_them(
    broker: LocalBroker,
) -> None:
    async with await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_bytes=1)
        await publish_files(client)
        await broker.broker.upkeep.run_once()
        assert await log_start(client) == (FILES - 1) * ROWS
        assert await verified(client)


async def test_what_is_older_than_the_topic_keeps_goes(broker: LocalBroker) -> None:
    async with await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_ms=1)
        await publish_files(client)
        await broker.broker.upkeep.run_once()
        assert await log_start(client) == FILES * ROWS
        assert await verified(client)


async def test_until_every_subscription_has_acknowledged_a_file_stays(
    broker: LocalBroker,
) -> None:
    async with await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_until_acked=True)
        await publish_files(client)
        for name in ("quick", "slow"):
            await client.admin.create_subscription(TOPIC, name, start="earliest")
        await client.admin.reset_subscription(TOPIC, "quick", FILES * ROWS)
        await broker.broker.upkeep.run_once()
        assert await log_start(client) == 0
        await client.admin.reset_subscription(TOPIC, "slow", 2 * ROWS + 1)
        await broker.broker.upkeep.run_once()
        assert await log_start(client) == 2 * ROWS


async def test_a_reader_below_the_log_start_is_told_and_a_consumer_goes_on_from_there(
    broker: LocalBroker,
) -> None:
    async with await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_bytes=1)
        await client.admin.create_subscription(TOPIC, "behind", start="earliest")
        await publish_files(client)
        await broker.broker.upkeep.run_once()
        with pytest.raises(OffsetOutOfRange, match=r"start within"):
            async for _ in client.reader(TOPIC, partition=0, start=0, end=ROWS):
                pass
        consumer = await client.subscribe(TOPIC, "behind", type="exclusive")
        batch = await consumer.receive_batch(ROWS, 10.0)
        assert batch.values[0].startswith(b"4-0")
        await consumer.close()


async def test_a_consumer_goes_on_from_the_new_log_start_before_upkeep_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"log.roll_age_s": 3600.0, "log.tail_cache_bytes": 0}
    broker = LocalBroker(tmp_path / "data", options)
    async with broker, await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_bytes=1)
        await client.admin.create_subscription(TOPIC, "behind", start="earliest")
        await publish_files(client)
        with monkeypatch.context() as late:
            late.setattr(TopicLog, "trimmed", lambda *_: None)
            await broker.broker.upkeep.run_once()
        assert await log_start(client) == 0
        consumer = await client.subscribe(TOPIC, "behind", type="exclusive")
        batch = await consumer.receive_batch(ROWS, 10.0)
        assert batch.values[0].startswith(b"4-0")
        await consumer.close()


async def test_a_plan_starts_at_the_new_log_start_before_upkeep_tells_it(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_bytes=1)
        await publish_files(client)
        with monkeypatch.context() as late:
            late.setattr(TopicLog, "trimmed", lambda *_: None)
            await broker.broker.upkeep.run_once()
        (topic,) = broker.broker.engine.topics.values()
        plan = topic.plan(0, 0, FILES * ROWS)
        assert [(x.start, x.end, x.kind) for x in plan.lost] == [(0, 4 * ROWS, "retention")]


async def test_the_log_start_survives_a_restart(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "data", {"log.roll_age_s": 3600.0})
    async with broker, await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_bytes=1)
        await publish_files(client)
        await broker.broker.upkeep.run_once()
    async with broker, await danube.connect(broker.url) as client:
        assert await log_start(client) == (FILES - 1) * ROWS


async def test_objects_of_files_that_left_the_table_stay_for_the_readers_that_are_at_them(
    broker: LocalBroker, tmp_path: Path
) -> None:
    async with await danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC, retention_bytes=1)
        await publish_files(client)
        await broker.broker.upkeep.run_once()
        assert len(list((tmp_path / "data" / "lake").rglob("*.parquet"))) >= FILES
