"""The offset ceiling: offsets that may be handed out are reserved ahead in metadata.

After an unclean stop whose tail cannot be proved, a successor starts above the ceiling, so no
offset that somebody may have seen is ever used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from danube.metadata.catalog import Claim

if TYPE_CHECKING:
    from danube.log.context import LogContext


class Ceiling:
    """One partition's reservation, raised in large steps by a transaction on the claim."""

    def __init__(self, context: LogContext, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self._reserved = 0
        self._lock = asyncio.Lock()

    async def reserve(self, needed: Callable[[], int]) -> None:
        """Return once offsets below ``needed()`` are reserved; at once when they are already.

        Raises:
            OwnershipLost: the claim is no longer this broker's.
        """
        while needed() > self._reserved:
            async with self._lock:
                if needed() <= self._reserved:
                    continue
                target = needed() + self._context.settings.ceiling_step_offsets
                await self._context.catalog.raise_ceiling(self._claim, target)
                self._reserved = target
