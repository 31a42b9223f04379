"""What publish and subscribe streams share: opening, deadlines and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from danube.core.errors import DanubeError, DeadlineExceeded, Unavailable
from danube.wire.status import danube_errors

_LOCAL_FAILURE: Final = "Internal error from Core"
END_OF_STREAM: Final[Any] = vars(grpc.aio)["EOF"]


class Deadline:
    """A deadline for the next answer on a stream; it can be moved and taken off."""

    __slots__ = ("_seconds", "_timeout")

    def __init__(self, timeout: asyncio.Timeout, seconds: float) -> None:
        self._timeout = timeout
        self._seconds = seconds

    def start(self) -> None:
        """An answer is due from now on."""
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def stop(self) -> None:
        """No answer is due."""
        self._timeout.reschedule(None)

    @property
    def running(self) -> bool:
        """Whether an answer is due."""
        return self._timeout.when() is not None


@asynccontextmanager
async def answered_in_time(seconds: float, doing: str) -> AsyncIterator[Deadline]:
    """A block in which answers may be given a deadline.

    Raises:
        DeadlineExceeded: a started deadline passed.
    """
    try:
        async with asyncio.timeout(None) as timeout:
            yield Deadline(timeout, seconds)
    except TimeoutError:
        raise DeadlineExceeded(f"{doing}: no answer within {seconds:g} s") from None


async def next_response(call: Any, doing: str, *, end: Callable[[], bool] | None = None) -> Any:
    """The next response, or None at an end of the stream that ``end()`` expects.

    Raises:
        Unavailable: the broker ended the stream.
        grpc.RpcError: it ended it with an error.
    """
    response = await call.read()
    if response is not END_OF_STREAM:
        return response
    code = await call.code()
    if code is grpc.StatusCode.OK and end is not None and end():
        return None
    raise Unavailable(f"{doing}: the broker ended the stream ({code.name})")


async def write(call: Any, request: Any) -> bool:
    """Send a request; False when the stream is over (whoever reads it learns why)."""
    try:
        await call.write(request)
    except (grpc.RpcError, asyncio.InvalidStateError):
        return False
    return True


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """A task group's error, if it is a single one."""
    return group.exceptions[0] if len(group.exceptions) == 1 else group


@contextmanager
def stream_errors(doing: str) -> Iterator[None]:
    """Turn grpc's errors on a stream into ours.

    A write to a stream that has just ended makes grpc.aio forget the status it ended with and say
    INTERNAL instead: that is a broken connection, and the next one tells why.
    """
    try:
        with danube_errors(doing):
            yield
    except DanubeError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError) and cause.details() == _LOCAL_FAILURE:
            raise Unavailable(f"{doing}: the broker ended the stream") from None
        raise


async def wait_event(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait for an event and clear it, or until the time has passed."""
    if timeout_s is None:
        await event.wait()
    else:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_s, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()
    event.clear()
