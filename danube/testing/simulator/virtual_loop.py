"""An asyncio loop whose time is simulated: nothing waits, and one seed gives one schedule.

When no task can run, the loop first lets the outside do something (``idle``: the journal writes a
flush), and only when there is nothing to do either, time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from danube.testing.simulator.sources import SimClock


class Stuck(Exception):
    """Nothing can ever happen again, and the run is not over."""


class _Selector(selectors.SelectSelector):
    """Does not wait."""

    def __init__(self, idle: Callable[[bool], bool], clock: SimClock) -> None:
        super().__init__()
        self._idle = idle
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        waits = timeout is None or timeout > 0
        if self._idle(waits) or ready or not waits:
            return ready
        if timeout is None:
            raise Stuck("no task can run and no timer is set")
        # The clock counts whole microseconds: a timer nearer than one must not stay ahead for ever.
        self._clock.advance(max(timeout, 1e-6))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs on a ``SimClock``.

    Args:
        clock: moves when nothing else can happen.
        idle: called before every look for events with whether the loop would wait; returns
            whether it has done something. What it raises ends the run: a crash.
    """

    def __init__(self, clock: SimClock, idle: Callable[[bool], bool]) -> None:
        self._sim_clock = clock
        super().__init__(_Selector(idle, clock))
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._sim_clock.monotonic_s()

    def abandon(self) -> None:
        """Throw everything away, as the death of a process does: no task gets to clean up."""
        for task in asyncio.all_tasks(self):
            coroutine: Any = task.get_coro()
            vars_of: Any = task
            vars_of._log_destroy_pending = False
            try:
                coroutine.close()
            except BaseException:
                # It wanted to await in a finally; a dead process does not.
                continue
        self.close()
