"""What runs in the background for ever goes on after a failure, of whatever kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from danube.broker import upkeep as broker_upkeep
from danube.broker.upkeep import BrokerUpkeep
from danube.core.errors import ResourceExhausted, Unavailable
from danube.journal.envelope import Entry
from danube.log.checkpoints import JournalCheckpoints
from danube.log.resolver import PinResolver
from tests.clocks import ManualClock

ERRORS = [
    Unavailable("away"),
    ResourceExhausted("too much waits"),
    OSError(28, "full"),
    KeyError(0),
]


class Journal:
    """Says when a checkpoint is due; the first that begins fails."""

    on_checkpoint_due: Callable[[], None]

    def __init__(self, error: Exception) -> None:
        self._errors = [error]
        self.ended = asyncio.Event()

    def begin_checkpoint(self) -> None:
        if self._errors:
            raise self._errors.pop()

    def end_checkpoint(self, done: Callable[[object], None]) -> None:
        self.ended.set()
        done([])


class NoState:
    def checkpoint_entries(self) -> Iterator[Entry]:
        return iter(())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_a_failed_journal_checkpoint_is_not_the_last(error: Exception) -> None:
    journal = Journal(error)
    checkpoints = JournalCheckpoints(cast(Any, SimpleNamespace(journal=journal)), NoState())
    task = asyncio.create_task(checkpoints.run())
    for _ in range(2):
        journal.on_checkpoint_due()
        await asyncio.sleep(0.01)
    await asyncio.wait_for(journal.ended.wait(), 5)
    task.cancel()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_upkeep_goes_on_after_a_pass_that_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 0
    second = asyncio.Event()

    async def run_once(self: BrokerUpkeep) -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise error
        second.set()

    monkeypatch.setattr(broker_upkeep, "PERIOD_S", 0.0)
    monkeypatch.setattr(BrokerUpkeep, "run_once", run_once)
    task = asyncio.create_task(BrokerUpkeep.__new__(BrokerUpkeep).run())
    await asyncio.wait_for(second.wait(), 5)
    task.cancel()


class Sinks:
    """A partition's sinks, whose pins cannot be looked at if there is an error."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.looked = 0

    def open_pins(self) -> list[Any]:
        self.looked += 1
        if self._error is not None:
            raise self._error
        return []

    def expired_sets(self, now_us: int, ttl_s: float) -> list[str]:
        return []

    async def drop(self, sets: list[str]) -> None:
        return None


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_pins_of_other_partitions_are_resolved_when_one_fails(error: Exception) -> None:
    both = [Sinks(error), Sinks(None)]
    topic = SimpleNamespace(record=SimpleNamespace(name="/default/t"))
    source = SimpleNamespace(
        open_partitions=lambda: iter([(topic, SimpleNamespace(sinks=sinks)) for sinks in both])
    )
    context = SimpleNamespace(clock=ManualClock(), settings=SimpleNamespace(staged_ttl_s=60.0))
    await PinResolver(cast(Any, context), cast(Any, source)).resolve()
    assert [sinks.looked for sinks in both] == [1, 1]
