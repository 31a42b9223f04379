"""Bounded threads for blocking work, behind a seam that the simulator replaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Workers(Protocol):
    """Where blocking calls run."""

    async def lake(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Writing and committing tables: few and long."""

    async def read(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Reading journal and tables for consumers: own threads, so that rolls cannot starve."""

    def close(self) -> None:
        """Wait for what runs and end the threads."""


class ThreadWorkers:
    """Two named thread pools."""

    def __init__(self, *, lake_threads: int, read_threads: int) -> None:
        self._lake = ThreadPoolExecutor(lake_threads, "danube-lake")
        self._read = ThreadPoolExecutor(read_threads, "danube-read")

    async def lake(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._lake, lambda: function(*args, **kwargs))

    async def read(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._read, lambda: function(*args, **kwargs))

    def close(self) -> None:
        self._lake.shutdown(wait=True)
        self._read.shutdown(wait=True)


class InlineWorkers:
    """Runs everything at once in the event loop: deterministic, for the simulator."""

    async def lake(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    async def read(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    def close(self) -> None:
        return None
