"""Pauses between attempts: doubling, with jitter, up to a time without progress."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from danube.client.settings import ClientSettings
from danube.core.errors import DanubeError, StorageFailed
from danube.wire.status import is_retryable

T = TypeVar("T")


def is_transient(error: DanubeError) -> bool:
    """Whether the same may work later. A broker whose disk failed ends, and another one starts."""
    return is_retryable(error) or isinstance(error, StorageFailed)


class Backoff:
    """How long to pause next, and whether it is time to give up."""

    __slots__ = ("_attempt", "_max_s", "_min_s", "_since", "_timeout_s")

    def __init__(self, settings: ClientSettings) -> None:
        self._min_s = settings.retry_min_ms / 1000
        self._max_s = settings.retry_max_ms / 1000
        self._timeout_s = settings.retry_timeout_s
        self._attempt = 0
        self._since: float | None = None

    def progress(self) -> None:
        """Something worked: start again with short pauses and the whole time."""
        self._attempt = 0
        self._since = None

    def pause_s(self) -> float | None:
        """Seconds to wait before the next attempt; None when the time is up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._timeout_s - now
        if left <= 0:
            return None
        longest = min(self._max_s, self._min_s * 2 ** min(self._attempt, 20))
        self._attempt += 1
        return min(left, random.uniform(longest / 2, longest))


async def retrying(
    settings: ClientSettings,
    attempt: Callable[[], Awaitable[T]],
    sleep: Callable[[float], Awaitable[None]],
) -> T:
    """Await ``attempt()``; after a transient error pause and try again, for ``retry_timeout_s``.

    Raises:
        DanubeError: the first error that waiting cannot help, or the last one when time is up.
    """
    backoff = Backoff(settings)
    while True:
        try:
            return await attempt()
        except DanubeError as error:
            pause_s = backoff.pause_s() if is_transient(error) else None
            if pause_s is None:
                raise
        await sleep(pause_s)
