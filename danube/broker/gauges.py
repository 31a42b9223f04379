"""Gauges that are read from the rooms every few seconds instead of being kept up to date."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from danube.core import telemetry
from danube.log.engine import LogEngine
from danube.log.roller import unrolled_bytes

if TYPE_CHECKING:
    from danube.broker.subscriptions import Subscriptions

PERIOD_S = 2.0
OPEN = telemetry.gauge("open_partitions", "Partitions that this broker has opened.")
CACHE = telemetry.gauge("tail_cache_bytes", "Frames kept in memory.")
STAGED = telemetry.gauge("staged_set_bytes", "Journal bytes of staged sets.")
IN_FLIGHT = telemetry.gauge("in_flight_bytes", "Bytes that wait for the journal's sync.")
UNROLLED = telemetry.gauge("unrolled_bytes", "Journal bytes not in any table yet.")
CONSUMERS = telemetry.gauge("consumers", "Connected consumers.")


class Gauges:
    """Sets the gauges on a period."""

    def __init__(self, engine: LogEngine, subscriptions: Subscriptions) -> None:
        self._engine = engine
        self._subscriptions = subscriptions

    async def run(self) -> None:
        """Refresh for ever."""
        while True:
            self.refresh()
            await asyncio.sleep(PERIOD_S)

    def refresh(self) -> None:
        """Read the rooms once."""
        found = self._engine.describe()
        OPEN.set(found["open_partitions"])
        CACHE.set(found["tail_cache_bytes"])
        STAGED.set(found["staged_bytes"])
        IN_FLIGHT.set(found["in_flight_bytes"])
        UNROLLED.set(sum(unrolled_bytes(topic) for topic in self._engine.topics.values()))
        CONSUMERS.set(self._subscriptions.consumer_count())
