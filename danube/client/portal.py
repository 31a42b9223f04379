"""The background event loop that the blocking twin runs on: one thread per process, while needed.

It works beside a running loop in the main thread (notebooks) and in forked workers: a child never
uses its parent's loop, whose thread it does not have.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from danube.core.errors import FailedPrecondition

T = TypeVar("T")

THREAD_NAME: Final = "danube-client"


class Portal:
    """An event loop in a thread of its own, entered from other threads."""

    def __init__(self) -> None:
        self.users = 0
        self.pid = os.getpid()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        # A daemon, so that an application that forgets close() can end.
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def inside(self) -> bool:
        """Whether this is the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            FailedPrecondition: called in a delivery callback, or in a child after a fork.
        """
        if self.inside or self.pid != os.getpid() or self._loop is None:
            coroutine.close()
            raise FailedPrecondition(
                "a blocking call inside of a callback, after a fork or after the end would wait "
                "for ever; use another thread, or connect again in the child process"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # no effect but on KeyboardInterrupt and its like
            raise

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._loop is not None and self._stop is not None and self.pid == os.getpid():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._loop = None

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_quietly)
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()


def _quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpc.aio wakes every loop of a process through one pipe; the losers of the race to read it
    # find it empty, which is harmless and would be logged each time.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


_lock = threading.Lock()
_portal: Portal | None = None


def acquire() -> Portal:
    """The process's portal, started if there is none."""
    global _portal
    with _lock:
        if _portal is None or _portal.pid != os.getpid():
            _portal = Portal()
        _portal.users += 1
        return _portal


def release(portal: Portal) -> None:
    """Stop the portal when nobody uses it any more."""
    global _portal
    with _lock:
        portal.users -= 1
        if portal.users > 0:
            return
        if _portal is portal:
            _portal = None
    portal.stop()
