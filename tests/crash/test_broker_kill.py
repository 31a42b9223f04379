"""kill -9 of a real broker under load, again and again: every promise, after every kill."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

from tests.crash.beliefs import Beliefs, hold
from tests.crash.forking import Forge, ForkedBroker
from tests.crash.load import PARTITIONS, TOPIC, Load
from tests.integration.broker.raw import Raw

SETTINGS: Final = {
    # Everything happens often: segments fill, roll and are recycled, reads leave the memory.
    "journal.segment_bytes": 1024 * 1024,
    "journal.flush_bytes": 256 * 1024,
    "journal.checkpoint_segments": 2,
    "journal.spare_segments": 1,
    "journal.disk_reserve_bytes": 0,
    "log.max_frame_bytes": 512 * 1024,
    "log.max_message_bytes": 256 * 1024,
    "log.tail_cache_bytes": 64 * 1024,
    "log.roll_age_s": 0.4,
    "log.resolve_interval_s": 0.1,
    "lake.checkpoint_interval_count": 5,
}
ROUNDS: Final = 20
LONG_WORLDS: Final = 10
"""So many times twenty rounds, each on a fresh directory, in the long run."""


async def check(raw: Raw, beliefs: Beliefs) -> None:
    """Everything that was promised before now is there, once, at its offset."""
    promised = {number: dict(found) for number, found in beliefs.promised.items()}
    committed = set(beliefs.committed)
    for number in range(PARTITIONS):
        info = await raw.where(TOPIC, number)
        hold(not info.lost, f"ranges of partition {number} were lost: {info.lost}")
        found = await raw.read(TOPIC, beliefs.checked[number], info.durable_offset, number)
        for offset, value in found:
            beliefs.saw(number, offset, value)
        beliefs.check_read(number, info.durable_offset, promised.get(number, {}))
    beliefs.check_committed(committed)
    findings = await raw.findings(TOPIC)
    hold(not findings, f"log and table differ: {findings}")


async def kill_and_check(broker: ForkedBroker, beliefs: Beliefs, delay_s: float) -> None:
    """One round."""
    await asyncio.sleep(delay_s)
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    async with Raw(broker.url) as raw:
        await check(raw, beliefs)


async def finish(broker: ForkedBroker, beliefs: Beliefs) -> None:
    """Once more from the first offset on, now that the table holds everything."""
    await asyncio.to_thread(broker.stop)
    await asyncio.to_thread(broker.start)
    beliefs.checked.clear()
    async with Raw(broker.url) as raw:
        await check(raw, beliefs)
        for number in range(PARTITIONS):
            info = await raw.where(TOPIC, number)
            hold(info.rolled_offset == info.durable_offset, "the stop has not rolled everything")
            beliefs.check_seen("alone", number, info.durable_offset)
            beliefs.check_seen("together", number, info.durable_offset)


async def kill_again_and_again(broker: ForkedBroker, rounds: int, chance: random.Random) -> None:
    """Load and kills on a fresh data directory."""
    beliefs = Beliefs()
    async with Raw(broker.url) as raw:
        topic_id = await raw.create(TOPIC, PARTITIONS)
    load = Load(broker.url, beliefs, chance)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(load.run(topic_id))
        for _ in range(rounds):
            await kill_and_check(broker, beliefs, chance.uniform(0.02, 0.3))
            hold(not running.done(), "the load has stopped")
        load.stopping.set()
        await running
    await finish(broker, beliefs)
    messages = sum(map(len, beliefs.values.values()))
    print(f"{messages} messages, {load.batches} batches, {load.reconnects} reconnects")
    hold(load.batches > 0 and load.reconnects > 0, "there was no load to speak of")


@pytest.mark.timeout(3600)
async def test_killed_under_load_again_and_again_it_keeps_every_promise(
    tmp_path: Path, long_run: bool
) -> None:
    with Forge() as forge:
        for number in range(LONG_WORLDS if long_run else 1):
            seed = random.randrange(2**32)
            print(f"seed {seed}")
            with ForkedBroker(tmp_path / f"data-{number}", forge, SETTINGS) as broker:
                await kill_again_and_again(broker, ROUNDS, random.Random(seed))
