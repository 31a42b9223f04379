"""Starts that must be refused, each with a sentence that says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from danube.core.errors import (
    Corruption,
    DanubeError,
    FailedPrecondition,
    InvalidSettings,
    UnsupportedFormat,
)
from danube.testing.brokers import BrokerProcess, LocalBroker
from tests.integration.broker.conftest import QUICK
from tests.integration.broker.raw import Raw

TOPIC = "/default/starts"


async def refused(broker: LocalBroker, kind: type[DanubeError], *words: str) -> None:
    """Start it; it must not, and must be startable again afterwards."""
    with pytest.raises(kind) as raised:
        await broker.start()
    assert type(raised.value) is kind
    for word in words:
        assert word in str(raised.value)


async def fill(broker: LocalBroker) -> None:
    """A data directory with messages in the journal."""
    async with broker, Raw(broker.url) as raw:
        await raw.create(TOPIC)
        await raw.publish(TOPIC, [b"x"] * 10)
        await broker.crash()


async def test_a_port_in_use_is_refused_before_anything_is_touched(
    broker: LocalBroker, tmp_path: Path
) -> None:
    second = LocalBroker(tmp_path / "second", {**QUICK, "broker.listen": broker.url})
    await refused(second, InvalidSettings, broker.url, "--listen")
    assert not (tmp_path / "second").exists()


async def test_a_directory_in_use_is_refused(broker: LocalBroker) -> None:
    second = LocalBroker(broker.data_dir, QUICK)
    await refused(second, FailedPrecondition, str(broker.data_dir), "stop it")


async def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "thesis.txt").write_text("mine")
    await refused(LocalBroker(data, QUICK), InvalidSettings, str(data), "empty")
    assert [item.name for item in data.iterdir()] == ["thesis.txt"]


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    await refused(LocalBroker(tmp_path / "data", QUICK), InvalidSettings, str(tmp_path / "data"))


async def test_a_directory_of_a_newer_format_is_refused(local: LocalBroker) -> None:
    await fill(local)
    marker = local.data_dir / "danube.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 99}))
    await refused(local, UnsupportedFormat, "99", "upgrade")


async def test_a_damaged_marker_is_refused_with_how_to_restore_it(local: LocalBroker) -> None:
    await fill(local)
    (local.data_dir / "danube.json").write_text("{")
    await refused(local, InvalidSettings, "danube.json", "restore")


async def test_the_journal_of_another_broker_is_refused(local: LocalBroker, tmp_path: Path) -> None:
    await fill(local)
    other = LocalBroker(tmp_path / "other", QUICK)
    await fill(other)
    shutil.rmtree(other.data_dir / "journal")
    shutil.copytree(local.data_dir / "journal", other.data_dir / "journal")
    await refused(other, InvalidSettings, "belongs to broker")


async def test_a_journal_without_its_metadata_is_refused_and_kept(local: LocalBroker) -> None:
    await fill(local)
    metadata = local.data_dir / "metadata.sqlite"
    aside = local.data_dir.parent / "aside"
    aside.mkdir()
    for item in local.data_dir.glob("metadata.sqlite*"):
        item.rename(aside / item.name)
    await refused(local, Corruption, str(metadata), "restore")
    for item in aside.iterdir():
        item.rename(local.data_dir / item.name)
    async with LocalBroker(local.data_dir, QUICK) as again, Raw(again.url) as raw:
        assert len(await raw.read(TOPIC)) == 10


async def test_limits_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    for settings, word in (
        ({"log.max_frame_bytes": 65536}, "log.max_message_bytes"),
        ({"journal.segment_bytes": 1024 * 1024}, "journal.segment_bytes"),
    ):
        await refused(LocalBroker(tmp_path / "data", settings), InvalidSettings, word)


async def test_a_listen_address_that_others_reach_needs_a_word(tmp_path: Path) -> None:
    settings = {**QUICK, "broker.listen": "0.0.0.0:0"}
    await refused(LocalBroker(tmp_path / "data", settings), InvalidSettings, "--insecure")


async def test_a_refused_start_is_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").touch()
    process = BrokerProcess(tmp_path / "data")
    with pytest.raises(RuntimeError, match="not a broker's data directory"):
        process.start()
    assert "Traceback" not in process.said()
