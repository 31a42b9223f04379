"""The brokers that tests are given: ours and our users'."""

from __future__ import annotations

from pathlib import Path

import pytest

import danube
from danube.core.errors import FailedPrecondition, InvalidSettings
from danube.testing.brokers import BrokerProcess, LocalBroker, is_running

TOPIC = "/default/brokers"


async def test_a_local_broker_serves_a_client_on_the_same_loop() -> None:
    async with LocalBroker() as broker, danube.connect(broker.url) as client:
        await client.admin.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"hello")).offset == 0
        data_dir = broker.data_dir
        assert data_dir.exists()
    assert not data_dir.exists(), "a temporary directory stays behind"
    with pytest.raises(FailedPrecondition, match="start it first"):
        _ = broker.broker


def test_a_local_broker_serves_blocking_code_from_a_thread(tmp_path: Path) -> None:
    for offset in (0, 1):
        with (
            LocalBroker(tmp_path / "data") as broker,
            danube.blocking.connect(broker.url) as client,
        ):
            if not offset:
                client.admin.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                assert producer.send(b"hello").offset == offset


def test_a_local_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(InvalidSettings), LocalBroker(tmp_path / "data"):
        raise AssertionError("it has started")


def test_a_broker_process_keeps_its_port_over_a_kill_and_ends_in_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        url, killed = process.url, process.kill()
        assert not is_running(killed)
        with pytest.raises(RuntimeError, match="not running"):
            _ = process.pid
        process.start()
        assert (process.url, process.pid != killed) == (url, True)
        assert process.resident_bytes() > 0
        pid = process.pid
    assert not is_running(pid)
    assert process.said().count("danube broker ready") == 2
