"""Pins without a known outcome are resolved from the decisions, and staged sets do not stay.

A driver may vanish between its decision and the sink commits: nobody needs it to come back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from danube.core import telemetry
from danube.core.errors import DanubeError
from danube.log.decisions import Resolution
from danube.log.sinks import PartitionSinks
from danube.log.staging import Pin
from danube.log.topic import Owned, TopicLog

if TYPE_CHECKING:
    from danube.log.context import LogContext

LOG = telemetry.get_logger(__name__)
RESOLVED = telemetry.counter("resolved_pins", "Pins resolved without their driver.", ("outcome",))
FINISH_PERIOD_S = 30.0
"""How often decided batches that nobody has finished are looked for."""

EXPIRE_PERIOD_S = 3600.0
"""How often records of old batch writes are looked for."""

SETTLE_S = 1.0
"""A younger pin is left to the commit that is probably under way."""


class OpenPartitions(Protocol):
    """Who knows the open partitions."""

    def open_partitions(self) -> Iterator[tuple[TopicLog, Owned]]:
        """Every open partition."""


class PinResolver:
    """Looks at pins and old staged sets on a period."""

    def __init__(self, context: LogContext, source: OpenPartitions) -> None:
        self._context = context
        self._source = source

    async def run(self) -> None:
        """Finish what drivers left decided, resolve pins, and forget old batch writes, for ever."""
        finished_s = expired_s = -math.inf
        while True:
            now_s = self._context.clock.monotonic_s()
            if now_s - finished_s > FINISH_PERIOD_S:
                finished_s = now_s
                await self._quietly(self._context.sinks.finish_open)
            if now_s - expired_s > EXPIRE_PERIOD_S:
                expired_s = now_s
                await self._quietly(self._expire)
            await asyncio.sleep(self._context.settings.resolve_interval_s)
            await self.resolve()

    async def _expire(self) -> int:
        return await self._context.sinks.expire(self._context.clock.now_us())

    async def _quietly(self, work: Callable[[], Awaitable[int]]) -> None:
        try:
            await work()
        except Exception as error:
            # Whatever it is (a full disk under the metadata, too), the next look may do.
            expected = isinstance(error, (DanubeError, OSError))
            LOG.warning("sinks not looked after", error=str(error), exc_info=not expected)

    async def resolve(self) -> None:
        """One pass over all open partitions."""
        for topic, owned in self._source.open_partitions():
            try:
                for pin in owned.sinks.open_pins():
                    await self._resolve(owned.sinks, pin)
                now, ttl_s = self._context.clock.now_us(), self._context.settings.staged_ttl_s
                await owned.sinks.drop(owned.sinks.expired_sets(now, ttl_s))
            except Exception as error:
                # Whatever it is, other partitions' pins are resolved, and these the next time.
                expected = isinstance(error, (DanubeError, OSError))
                name = str(topic.record.name)
                LOG.warning(
                    "pins not resolved", topic=name, error=str(error), exc_info=not expected
                )

    async def _resolve(self, sinks: PartitionSinks, pin: Pin) -> None:
        age_s = (self._context.clock.now_us() - pin.pinned_us) / 1e6
        if age_s < SETTLE_S:
            return
        query, sink = str(pin.label["query"]), str(pin.label["sink"])
        batch = int(pin.label["batch"])
        found = await self._context.sinks.resolve(pin.commit_id, query, sink, batch)
        if found is Resolution.UNDECIDED and age_s > self._context.settings.pin_ttl_s:
            found = await self._context.sinks.abort_pin(pin.commit_id, query, sink, batch)
        if found is Resolution.DECIDED:
            await sinks.finish(pin.commit_id)
            RESOLVED.labels("finished").inc()
        elif found is Resolution.ABORTED:
            await sinks.unpin(pin.commit_id)
            RESOLVED.labels("aborted").inc()
