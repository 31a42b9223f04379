"""Disks that fill up, fail or lie: nothing that was acknowledged is lost, and nobody is misled."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from danube.broker.main import EXIT_STORAGE
from danube.cli.main import app
from danube.core.errors import Corruption, DiskFull, StorageFailed
from danube.journal.files import File, OsFiles
from danube.log.sinks import PartitionSinks
from danube.log.staging import StagedSet
from danube.testing.brokers import BrokerProcess, LocalBroker
from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.broker.conftest import QUICK
from tests.integration.broker.raw import Raw, eventually, failed, frame_of, refusal

TOPIC = "/default/disks"
OTHER = "/default/others"


class SmallDisk(OsFiles):
    """A disk whose free space is what we say."""

    free = 2**40

    def free_bytes(self, path: Path) -> int:
        return self.free


@pytest.fixture
def disk(local: LocalBroker) -> SmallDisk:
    """The disk under ``local``; to be asked for before the broker starts."""
    disk = SmallDisk()
    local.settings["journal.disk_reserve_bytes"] = "1000000"

    def put_in(broker: object) -> None:
        broker.files = disk  # type: ignore[attr-defined]

    local.prepare = put_in
    return disk


async def test_a_full_disk_refuses_messages_takes_acks_rolls_and_heals(
    disk: SmallDisk, local: LocalBroker
) -> None:
    async with local, Raw(local.url) as raw:
        topic_id = await raw.create(TOPIC)
        await raw.publish(TOPIC, [b"before"] * 10)
        async with raw.consumer(TOPIC, "s") as consumer:
            await consumer.messages(10)
            disk.free = 10_000
            # The journal looks now and then; it is told by a full segment at the latest.
            local.engine.context.journal._started()._look_at_free_space()
            async with raw.producer(TOPIC) as producer:
                error = failed(await producer.send([b"no"]))
                assert isinstance(error, DiskFull)
                assert "free some space" in str(error)
            found = await refusal(raw.stage(TOPIC, topic_id, [b"no"]))
            found.check(DiskFull, grpc.StatusCode.RESOURCE_EXHAUSTED)
            assert (await consumer.ack(0, 10)).cursor == 10
            await raw.roll(TOPIC)
            assert (await raw.where(TOPIC)).rolled_offset == 10
            disk.free = 2**40
            assert await raw.publish(TOPIC, [b"after"]) == 10
        assert local.engine.context.staged.used_bytes == 0


class GatedDisk(OsFiles):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.open_gate.set()

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        file = super().open(path, create=create, write=write)
        return GatedFile(file, self.open_gate) if write or create else file


class GatedFile:
    """One file of it."""

    def __init__(self, file: File, gate: threading.Event) -> None:
        self._file = file
        self._gate = gate

    def fdatasync(self) -> None:
        assert self._gate.wait(60)
        self._file.fdatasync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def gated(local: LocalBroker) -> Iterator[GatedDisk]:
    """The disk under ``local``; let through at the end, whatever has happened."""
    disk = GatedDisk()

    def put_in(broker: object) -> None:
        broker.files = disk  # type: ignore[attr-defined]

    local.prepare = put_in
    yield disk
    disk.open_gate.set()


async def test_until_the_sync_nothing_is_answered_delivered_read_or_rolled(
    gated: GatedDisk, broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    await raw.publish(TOPIC, [b"durable"] * 5)
    staged = await raw.stage(TOPIC, topic_id, [b"staged"] * 5)
    async with raw.consumer(TOPIC, "s") as consumer, raw.producer(TOPIC) as producer:
        await consumer.messages(5)
        gated.open_gate.clear()
        try:
            waiting: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(item)
                for item in (
                    producer.send([b"pending"] * 5),
                    consumer.ack(0, 5),
                    raw.commit([staged]),
                    raw.stage(TOPIC, topic_id, [b"more"]),
                )
            ]
            writer = broker.engine.context.writer
            await eventually(lambda: writer.in_flight_bytes > 0)
            await raw.roll(TOPIC)
            # Enough round trips for anything that does not wait for the disk.
            for _ in range(20):
                info = await raw.where(TOPIC)
                assert (info.durable_offset, info.rolled_offset) == (5, 5)
                assert [item.done() for item in waiting] == [False] * 4
            assert _decided(await raw.admin.ListSinks(pb.ListSinksRequest())) == [-1]
            assert len(await raw.read(TOPIC)) == 5
        finally:
            gated.open_gate.set()
        receipt, acked, committed, again = await asyncio.gather(*waiting)
        assert receipt.base_offset in (5, 10)
        assert (acked.cursor, committed.already_committed, again.count) == (5, False, 1)
    assert len(await raw.read(TOPIC)) == 15


def _decided(found: pb.ListSinksResponse) -> list[int]:
    return [item.last_batch_id for item in found.sinks]


async def test_a_journal_checkpoint_behind_the_end_of_a_staged_set_knows_it_as_whole(
    gated: GatedDisk, broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    completing = asyncio.Event()
    complete = PartitionSinks.complete_set

    async def held(self: PartitionSinks, staged: StagedSet) -> None:
        gated.open_gate.clear()
        completing.set()
        await complete(self, staged)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PartitionSinks, "complete_set", held)
        staging = asyncio.ensure_future(raw.stage(TOPIC, topic_id, [b"staged"] * 5))
        await completing.wait()
    writing = asyncio.ensure_future(broker.engine.checkpoints.write())
    await asyncio.sleep(0)
    gated.open_gate.set()
    await writing
    staged = await staging
    await broker.crash()
    await broker.start()
    await raw.commit([staged])
    assert len(await raw.read(TOPIC)) == 5


async def test_a_set_dropped_while_its_frames_are_on_their_way_is_given_back_once(
    gated: GatedDisk, broker: LocalBroker, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    topic_id = await raw.create(TOPIC)
    call = raw.batch.Stage()
    label = pb.SinkLabel(query_id="q", sink_name="s", run_id="r")
    opening = pb.StageOpen(label=label, topic=TOPIC, topic_id=topic_id, set_id="ab" * 16)
    frame = frame_of([b"staged"] * 5, topic_id=topic_id).to_bytes()
    budget = broker.engine.context.staged
    await call.write(pb.StageRequest(open=opening))
    await call.write(pb.StageRequest(frame=frame))
    await eventually(lambda: budget.used_bytes == len(frame))
    await eventually(lambda: broker.engine.context.writer.in_flight_bytes == 0)
    gated.open_gate.clear()
    await call.write(pb.StageRequest(frame=frame))
    await eventually(lambda: budget.used_bytes == 2 * len(frame))
    in_flight = broker.engine.context.writer.in_flight_bytes
    call.cancel()
    await eventually(lambda: broker.engine.context.writer.in_flight_bytes > in_flight)
    gated.open_gate.set()
    await eventually(lambda: broker.engine.context.writer.in_flight_bytes == 0)
    assert budget.used_bytes == 0
    assert not [item for item in caplog.records if item.levelname == "ERROR"]


FAILING_DISK = """
import os, sys
from pathlib import Path
from typing import Any
from danube.broker.main import run
from danube.broker.settings import BrokerSettings
from danube.core.settings import load
from danube.journal.files import OsFile

sick, sync = Path(sys.argv[2]), OsFile.fdatasync

def fdatasync(self):
    if sick.exists():
        raise OSError(5, "Input/output error")
    sync(self)

OsFile.fdatasync = fdatasync
flags = {"broker.data_dir": sys.argv[1], "broker.listen": "127.0.0.1:0"}
sys.exit(run(load(BrokerSettings, None, {}, {**flags, "broker.metrics_listen": ""})))
"""


class FailingBroker(BrokerProcess):
    """A broker whose syncs fail from the moment on that a file appears."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", FAILING_DISK, str(self.data_dir), str(self.sick)]

    @property
    def sick(self) -> Path:
        return self.data_dir.parent / "sick"


async def test_a_failing_sync_ends_the_process_and_acknowledges_nothing(tmp_path: Path) -> None:
    with FailingBroker(tmp_path / "data") as process:
        async with Raw(process.url) as raw:
            await raw.create(TOPIC)
            await raw.publish(TOPIC, [b"kept"] * 5)
            async with raw.producer(TOPIC) as producer:
                process.sick.touch()
                await producer.post(producer.frame([b"in doubt"]))
                try:
                    error = failed(await producer.receipt())
                except grpc.aio.AioRpcError as gone:
                    assert gone.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
                else:
                    assert isinstance(error, StorageFailed)
        assert process.wait() == EXIT_STORAGE
    assert "disk failed" in process.said()
    process.sick.unlink()
    async with LocalBroker(process.data_dir) as broker, Raw(broker.url) as raw:
        values = [value for _, value in await raw.read(TOPIC)]
        assert values in ([b"kept"] * 5, [*[b"kept"] * 5, b"in doubt"])
        assert not (await raw.where(TOPIC)).lost


# -- damage ------------------------------------------------------------------------------------


def flip(data_dir: Path, needle: bytes) -> Path:
    """Change one byte of ``needle`` where it lies in the journal."""
    for path in sorted((data_dir / "journal").glob("*.segment")):
        data = bytearray(path.read_bytes())
        at = data.find(needle)
        if at >= 0:
            data[at] ^= 0x01
            path.write_bytes(data)
            return path
    raise AssertionError(f"{needle!r} is not in the journal")


async def damaged(local: LocalBroker, needle: Callable[[Path], bytes]) -> Path:
    """Three frames on one topic, one on another, and a byte of the second frame flipped."""
    async with local, Raw(local.url) as raw:
        await raw.create(TOPIC)
        await raw.create(OTHER)
        for name in (b"first", b"second", b"third"):
            await raw.publish(TOPIC, [name + b" value"] * 10)
        await raw.publish(OTHER, [b"other"] * 10)
        await local.crash()
    return flip(local.data_dir, needle(local.data_dir))


async def test_a_damaged_body_stops_its_topic_and_no_other(local: LocalBroker) -> None:
    await damaged(local, lambda _: b"second value")
    local.settings["broker.listen"] = "127.0.0.1:0"
    async with local, Raw(local.url) as raw:
        assert len(await raw.read(OTHER)) == 10
        assert await raw.publish(OTHER, [b"more"]) == 10
        async with raw.producer(OTHER):
            pass
        call = raw.batch.Publish(_opening(TOPIC))
        found = await refusal(call)
        found.check(Corruption, grpc.StatusCode.DATA_LOSS, "segment", "danube journal repair")
        found = await refusal(raw.read(TOPIC))
        assert found.code is grpc.StatusCode.DATA_LOSS


async def test_a_repair_heals_a_damaged_body_with_a_recorded_lost_range(
    local: LocalBroker,
) -> None:
    await damaged(local, lambda _: b"second value")
    repaired = CliRunner().invoke(app, ["journal", "repair", str(local.data_dir)])
    assert repaired.exit_code == 0, repaired.output
    local.settings["broker.listen"] = "127.0.0.1:0"
    async with local, Raw(local.url) as raw:
        await eventually(lambda: raw.where(TOPIC))
        info = await raw.where(TOPIC)
        assert any(lost.start <= 10 and lost.end >= 20 for lost in info.lost), info
        values = [value for _, value in await raw.read(TOPIC, skip_lost=True)]
        assert values[:10] == [b"first value"] * 10
        assert b"second value" not in values
        first = await raw.publish(TOPIC, [b"after"])
        assert first >= 30
        assert await raw.findings(TOPIC) == []
        assert len(await raw.read(OTHER)) == 10


def header_of(topic_id: str) -> Callable[[Path], bytes]:
    def needle(_: Path) -> bytes:
        return bytes.fromhex(topic_id)

    return needle


async def test_a_damaged_envelope_stops_the_broker_with_file_and_byte(local: LocalBroker) -> None:
    async with local, Raw(local.url) as raw:
        topic_id = await raw.create(TOPIC)
        for name in (b"first", b"second", b"third"):
            await raw.publish(TOPIC, [name + b" value"] * 10)
        await local.crash()
    path = flip(local.data_dir, bytes.fromhex(topic_id))
    local.settings["broker.listen"] = "127.0.0.1:0"
    with pytest.raises(Corruption) as raised:
        await local.start()
    assert path.name in str(raised.value)
    assert "byte" in str(raised.value)
    assert "danube journal repair" in str(raised.value)
    before = path.read_bytes()
    repaired = CliRunner().invoke(app, ["journal", "repair", str(local.data_dir)])
    assert repaired.exit_code == 0, repaired.output
    assert before in [item.read_bytes() for item in local.data_dir.rglob("*") if item.is_file()]
    async with LocalBroker(local.data_dir, QUICK) as again, Raw(again.url) as raw:
        info = await raw.where(TOPIC)
        assert info.lost
        # The next start proves its journal, which knows nothing of the range that was skipped.
        await again.crash()
        await again.start()
        assert await raw.where(TOPIC) == info
        assert await raw.publish(TOPIC, [b"after"]) == info.durable_offset >= 30
        assert await raw.findings(TOPIC) == []


def _opening(topic: str) -> Iterator[object]:
    yield pb.PublishRequest(open=pb.PublishOpen(topic=topic, producer_name="p"))
