"""Brokers in this process, with everything small so that every tier is met."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from danube.testing.brokers import LocalBroker
from tests.integration.broker.raw import Raw

QUICK = {
    "journal.disk_reserve_bytes": 0,
    "journal.segment_bytes": 1024 * 1024,
    "journal.flush_bytes": 256 * 1024,
    "journal.idle_flush_ms": 20,
    "log.max_frame_bytes": 512 * 1024,
    "log.max_message_bytes": 256 * 1024,
    "log.roll_age_s": 3600,
    "log.resolve_interval_s": 0.05,
    "broker.drain_timeout_s": 2,
}
"""Settings of most tests: nothing rolls unless the test says so."""


@pytest.fixture
def local(tmp_path: Path) -> LocalBroker:
    """A broker that is not started yet."""
    return LocalBroker(tmp_path / "data", QUICK)


@pytest.fixture
async def broker(local: LocalBroker) -> AsyncIterator[LocalBroker]:
    """A running broker."""
    await local.start()
    yield local
    await local.stop()


@pytest.fixture
async def raw(broker: LocalBroker) -> AsyncIterator[Raw]:
    """A channel to the running broker; it finds it again after a restart."""
    async with Raw(broker.url) as connected:
        yield connected
