"""Things that are opened: ``x = await opening`` or ``async with opening as x``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed."""

    async def close(self) -> None:
        """Finish what was begun and let go of everything."""


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """Something to open. Nothing happens until it is awaited or entered."""

    __slots__ = ("_open", "_opened")

    def __init__(self, open_: Callable[[], Awaitable[T]]) -> None:
        self._open = open_
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
