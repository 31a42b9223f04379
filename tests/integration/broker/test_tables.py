"""Tables that somebody touched: their topic stops with a clear error, the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from danube.core.errors import Corruption, ForeignCommit
from danube.testing.brokers import LocalBroker
from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.broker.raw import Raw, RawConsumer, failed, refusal

TOPIC = "/default/tables"
OTHER = "/default/others"


async def rolled(raw: Raw, count: int = 3) -> None:
    """Two topics with a few Delta commits each."""
    for topic in (TOPIC, OTHER):
        await raw.create(topic)
        for number in range(count):
            await raw.publish(topic, [b"%d" % number] * 10)
            await raw.roll(topic)


async def table_of(raw: Raw, topic: str = TOPIC) -> Path:
    found = await raw.admin.DescribeTopic(pb.DescribeTopicRequest(topic=topic))
    return Path(found.table_uri.removeprefix("file://"))


async def others_go_on(raw: Raw) -> None:
    before = (await raw.where(OTHER)).durable_offset
    assert await raw.publish(OTHER, [b"on"]) == before
    await raw.roll(OTHER)
    assert len(await raw.read(OTHER)) == before + 1


def foreign_commit(table: Path) -> None:
    """What any Delta writer does."""
    rows = pa.table(
        {"value": pa.array([b"mine"], pa.binary()), "partition": pa.array([0], "int32")}
    )
    write_deltalake(table.as_posix(), rows, mode="append", schema_mode="merge")


async def test_a_foreign_commit_stops_its_topic_and_tells_everybody(raw: Raw) -> None:
    await rolled(raw)
    async with raw.consumer(TOPIC, "s") as consumer, raw.producer(TOPIC) as producer:
        await consumer.messages(30)
        await producer.send([b"un-rolled"])
        foreign_commit(await table_of(raw))
        found = await refusal(raw.roll(TOPIC))
        found.check(ForeignCommit, grpc.StatusCode.FAILED_PRECONDITION, TOPIC)
        error = failed(await producer.send([b"refused"]))
        assert isinstance(error, ForeignCommit)
        told = await refusal(_until_the_end(consumer))
        told.check(ForeignCommit, grpc.StatusCode.FAILED_PRECONDITION, TOPIC)
    await others_go_on(raw)


async def _until_the_end(consumer: RawConsumer) -> None:
    while True:
        await consumer.next()


@pytest.mark.parametrize("damage", ["torn", "missing"])
async def test_a_torn_or_missing_delta_commit_stops_its_topic_and_no_other(
    broker: LocalBroker, raw: Raw, damage: str
) -> None:
    await rolled(raw)
    table = await table_of(raw)
    await broker.crash()
    commit = sorted((table / "_delta_log").glob("*.json"))[2]
    if damage == "torn":
        commit.write_bytes(commit.read_bytes()[:40])
    else:
        commit.unlink()
    await broker.start()
    found = await refusal(raw.where(TOPIC))
    found.check(Corruption, grpc.StatusCode.DATA_LOSS, commit.stem.lstrip("0"))
    await others_go_on(raw)


async def test_a_missing_table_stops_its_topic_and_no_other(broker: LocalBroker, raw: Raw) -> None:
    await rolled(raw)
    table = await table_of(raw)
    await broker.crash()
    table.rename(table.parent / "aside")
    await broker.start()
    found = await refusal(raw.where(TOPIC))
    found.check(Corruption, grpc.StatusCode.DATA_LOSS, "restore it")
    await others_go_on(raw)
    (table.parent / "aside").rename(table)
    assert len(await raw.read(TOPIC)) == 30


@pytest.mark.parametrize("damage", ["torn", "missing", "pointer torn"])
async def test_a_broken_delta_checkpoint_costs_nothing(
    broker: LocalBroker, raw: Raw, damage: str
) -> None:
    await rolled(raw)
    topic = next(t for t in broker.engine.topics.values() if str(t.record.name) == TOPIC)
    assert topic.table is not None
    await broker.engine.context.workers.lake(topic.table.checkpoint)
    log = (await table_of(raw)) / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    await broker.crash()
    if damage == "torn":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    elif damage == "missing":
        checkpoint.unlink()
    else:
        (log / "_last_checkpoint").write_text(json.dumps({"version": 3})[:5])
    await broker.start()
    assert len(await raw.read(TOPIC)) == 30
    assert await raw.publish(TOPIC, [b"more"]) == 30
    await raw.roll(TOPIC)
    assert await raw.findings(TOPIC) == []


async def test_a_data_file_that_went_missing_is_found_by_verify(
    broker: LocalBroker, raw: Raw
) -> None:
    await rolled(raw)
    files = sorted((await table_of(raw)).rglob("*.parquet"))
    files[0].unlink()
    assert await raw.findings(TOPIC)
    assert await raw.findings(OTHER) == []
