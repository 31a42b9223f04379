"""Asking several owners at once, and again while some of them are away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from danube.core.clock import Clock
from danube.core.errors import DanubeError, OwnershipLost, Unavailable

PARALLEL_OWNERS: Final = 64
"""Owners asked at the same time for one batch."""

FIRST_WAIT_S: Final = 0.02
LONGEST_WAIT_S: Final = 1.0

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


class Patience:
    """Waits between attempts, longer each time, until the time-out."""

    def __init__(self, clock: Clock, timeout_s: float, sleep: Sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._timeout_s = timeout_s
        self._deadline_s = clock.monotonic_s() + timeout_s
        self._next_s = FIRST_WAIT_S
        self.is_over = False

    async def wait(self, reason: DanubeError | None, state: str) -> None:
        """Wait a little.

        Raises:
            Unavailable: the time-out has passed; ``state`` says what is done and what is not.
        """
        if self._clock.monotonic_s() >= self._deadline_s:
            self.is_over = True
            because = "its owners kept changing" if reason is None else str(reason)
            raise Unavailable(
                f"{state} after {self._timeout_s:g} s: {because}; try again, or restart the "
                "query: it goes on where this one stopped"
            ) from reason
        await self._sleep(self._next_s)
        self._next_s = min(2 * self._next_s, LONGEST_WAIT_S)


async def all_outcomes(work: Iterable[Callable[[], Awaitable[T]]]) -> list[T | DanubeError]:
    """The outcome of each, a few at a time; errors of ours are outcomes too."""
    slots = asyncio.Semaphore(PARALLEL_OWNERS)

    async def one(item: Callable[[], Awaitable[T]]) -> T | DanubeError:
        async with slots:
            try:
                return await item()
            except DanubeError as error:
                return error

    return await asyncio.gather(*(one(item) for item in work))


def is_passing(outcome: object) -> bool:
    """Whether the outcome is an error that asking again, of whoever owns it then, may cure."""
    return isinstance(outcome, (Unavailable, OwnershipLost))


def raise_first(outcomes: Iterable[object]) -> None:
    """Raise an error among the outcomes, one that will not pass by itself if there is one."""
    errors = [item for item in outcomes if isinstance(item, DanubeError)]
    if errors:
        raise min(errors, key=is_passing)
