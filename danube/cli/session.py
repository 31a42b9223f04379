"""A client for the length of one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from danube.client.client import Client

T = TypeVar("T")

ADMIN_PATIENCE_S: Final = 5.0
"""How long administrative commands try to reach a broker."""

DATA_PATIENCE_S: Final = 120.0
"""How long producing and consuming bear a broker that is away: a restart takes less."""


def with_client(
    service_url: str,
    action: Callable[[Client], Awaitable[T]],
    *,
    patience_s: float = ADMIN_PATIENCE_S,
) -> T:
    """Connect, run ``action`` with the client, close, and return what it returned.

    Raises:
        DanubeError: no broker answers, or what ``action`` raised.
    """
    from danube.client.client import connect
    from danube.client.settings import ClientSettings

    settings = ClientSettings(connect_timeout_s=ADMIN_PATIENCE_S, retry_timeout_s=patience_s)

    async def session() -> T:
        async with connect(service_url, settings=settings) as client:
            return await action(client)

    return asyncio.run(session())
