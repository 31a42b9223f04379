"""Blocking calls to the batch service, for code without an event loop: Spark's Python workers.

Workers are forked from a daemon and reused over many tasks, so channels are made on first use in
the process that uses them and kept in module globals. gRPC's threads do not survive a fork: a
channel made before one is never used after it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, cast

import grpc

from danube.core.errors import DanubeError, DiskFull, MemoryFull, OwnershipLost, Unavailable
from danube.wire._generated import DanubeBatch_pb2_grpc as pb_grpc
from danube.wire.channels import channel_options, target_of
from danube.wire.memory import keep_freed_blocks
from danube.wire.status import error_of

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 20.0
"""Deadline of one attempt of a unary call."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0

PASSING: Final[tuple[type[DanubeError], ...]] = (Unavailable, OwnershipLost, MemoryFull, DiskFull)
"""What goes away by itself: a broker that is away or moved, or that is full for the moment."""

_log = logging.getLogger("danube.wire")
_lock = threading.Lock()
_channels: dict[str, grpc.Channel] = {}
_owner_pid = 0


def batch_stub(url: str) -> pb_grpc.BatchServiceStub:
    """The batch service at ``url`` (host:port), over a channel this process keeps."""
    global _owner_pid
    with _lock:
        if _owner_pid != os.getpid():
            # Inherited over a fork: belongs to the parent, must not even be closed here.
            _channels.clear()
            _owner_pid = os.getpid()
        channel = _channels.get(url)
        if channel is None:
            keep_freed_blocks()
            channel = grpc.insecure_channel(target_of(url), options=channel_options())
            _channels[url] = channel
    return pb_grpc.BatchServiceStub(channel)


def close_channels() -> None:
    """Close every channel this process made: for tests and for a worker that ends."""
    with _lock:
        for channel in _channels.values():
            channel.close()
        _channels.clear()


def translated(call: Callable[[], T]) -> T:
    """``call()`` with gRPC's errors as those of danube/core/errors.py, without their traceback."""
    try:
        return call()
    except grpc.RpcError as error:
        raise error_of(error) from None


def translated_stream(responses: Iterable[T]) -> Iterator[T]:
    """``responses`` with gRPC's errors translated; cancels the call when it is left early."""
    try:
        yield from responses
    except grpc.RpcError as error:
        raise error_of(error) from None
    finally:
        cast(Any, responses).cancel()


class Patience:
    """How long to go on trying while a broker is away: pauses that grow, until a time-out.

    Args:
        timeout_s: from the first failure on; progress (:meth:`progressed`) starts it again.
        retry_on: classes of errors that pass by themselves.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        retry_on: tuple[type[DanubeError], ...] = PASSING,
    ) -> None:
        self._timeout_s = timeout_s
        self._retry_on = retry_on
        self._give_up_at: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def progressed(self) -> None:
        """Something came back: a later failure has the whole time-out again."""
        self._give_up_at = None
        self._pause_s = FIRST_PAUSE_S

    def remaining_s(self) -> float:
        """Seconds until it gives up; the whole time-out when nothing has failed yet."""
        if self._give_up_at is None:
            return self._timeout_s
        return max(0.0, self._give_up_at - time.monotonic())

    def attempt_timeout_s(self) -> float:
        """Deadline for the next attempt, seconds."""
        if self._give_up_at is None:
            return CALL_TIMEOUT_S
        return min(CALL_TIMEOUT_S, max(1.0, self.remaining_s()))

    def wait(self, error: DanubeError, what: str) -> None:
        """Pause after ``error``.

        Raises:
            DanubeError: ``error``'s class, once the time is over or when waiting cannot help.
        """
        if not isinstance(error, self._retry_on):
            raise error
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + self._timeout_s
            _log.warning("%s: %s; trying again for %g s", what, error, self._timeout_s)
        if self.remaining_s() <= self._pause_s:
            raise type(error)(
                f"{what} failed for {self._timeout_s:g} s and was given up: {error}"
            ) from None
        time.sleep(self._pause_s * random.uniform(0.7, 1.0))
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)


def retrying(what: str, patience: Patience, call: Callable[[float], T]) -> T:
    """``call(deadline in seconds)`` until it succeeds or ``patience`` ends.

    Args:
        what: the work in words, for the message: "looking up /default/events at host:port".
        patience: which errors pass, and for how long.
        call: one attempt; must be safe to repeat.

    Raises:
        DanubeError: the last error, translated.
    """
    while True:
        try:
            return translated(lambda: call(patience.attempt_timeout_s()))
        except DanubeError as error:
            patience.wait(error, what)
