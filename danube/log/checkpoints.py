"""Journal checkpoints: all live state written again, so that older segments can be recycled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from danube.core import telemetry
from danube.core.errors import DanubeError
from danube.journal.envelope import Entry

if TYPE_CHECKING:
    from danube.log.context import LogContext

LOG = telemetry.get_logger(__name__)
ENTRIES_AT_ONCE = 1_000
"""State entries per submission; the event loop serves others in between."""


class CheckpointSource(Protocol):
    """Who knows the live state."""

    def checkpoint_entries(self) -> Iterator[Entry]:
        """The entries of one journal checkpoint."""


class JournalCheckpoints:
    """Writes a journal checkpoint whenever the journal says that one is due."""

    def __init__(self, context: LogContext, source: CheckpointSource) -> None:
        self._context = context
        self._source = source
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()
        loop = asyncio.get_running_loop()

        def due() -> None:
            loop.call_soon_threadsafe(self._due.set)

        context.journal.on_checkpoint_due = due

    async def run(self) -> None:
        """Write journal checkpoints for ever, as they fall due."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.write()
            except Exception as error:
                # Whatever it is: without checkpoints no segment is ever free, so the next is tried.
                expected = isinstance(error, (DanubeError, OSError))
                LOG.error("journal checkpoint failed", error=str(error), exc_info=not expected)

    async def write(self) -> None:
        """Write one now. Appends go on meanwhile: every state frame is idempotent."""
        async with self._writing:
            journal = self._context.journal
            journal.begin_checkpoint()
            source = self._source.checkpoint_entries()
            while chunk := list(islice(source, ENTRIES_AT_ONCE)):
                await self._context.writer.submit_future(chunk)
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            loop = asyncio.get_running_loop()

            def done(outcome: object) -> None:
                loop.call_soon_threadsafe(settle, outcome)

            def settle(outcome: object) -> None:
                if ended.cancelled():
                    return
                if isinstance(outcome, BaseException):
                    ended.set_exception(outcome)
                else:
                    ended.set_result(None)

            journal.end_checkpoint(done)
            await ended
