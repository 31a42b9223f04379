"""A scripted broker and a client of it, with pauses short enough for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import danube
from danube.client.settings import ClientSettings
from tests.unit.client.scripted_broker import ScriptedBroker

QUICK = ClientSettings(
    connect_timeout_s=10,
    request_timeout_s=5,
    retry_timeout_s=10,
    retry_min_ms=1,
    retry_max_ms=5,
    linger_ms=1,
)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    await scripted.start()
    yield scripted
    scripted.released.set()
    await scripted.stop()


@pytest.fixture
async def client(broker: ScriptedBroker) -> AsyncIterator[danube.Client]:
    async with danube.connect(broker.url, settings=QUICK) as connected:
        yield connected
