"""One offset space over memory, journal and table: readers never see where one ends."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from danube.core.errors import DataLost
from danube.testing.brokers import LocalBroker
from tests.integration.broker.conftest import QUICK
from tests.integration.broker.raw import LATEST, Raw, Values, refusal

TOPIC = "/default/tiers"


def made(name: str, count: int, size: int = 20) -> Values:
    return [b"%s %d".ljust(size, b".") % (name.encode(), n) for n in range(count)]


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
