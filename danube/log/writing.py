"""The way from the event loop into the journal: ordered, bounded, answered after the sync."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from danube.core import telemetry
from danube.core.errors import MemoryFull, StorageFailed
from danube.journal.envelope import Entry, EntryKind, Position

if TYPE_CHECKING:
    from danube.journal.journal import Journal

LOG = telemetry.get_logger(__name__)
Done = Callable[[Sequence[Position] | BaseException], None]


class JournalWriter:
    """Submits entries from the event loop and brings their outcome back to it.

    The order of ``submit`` calls is the order in the journal, and outcomes arrive in that order,
    so offsets may be assigned at submission.
    """

    def __init__(self, journal: Journal, max_in_flight_bytes: int) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._limit = max_in_flight_bytes
        self._in_flight = 0
        self._failure: BaseException | None = None
        self._drained = asyncio.Event()
        self._outcomes: deque[tuple[int, Done, Sequence[Position] | BaseException]] = deque()
        self._woken = False

    @property
    def in_flight_bytes(self) -> int:
        """Bytes handed over and not yet synced."""
        return self._in_flight

    def admit(self, size: int) -> None:
        """Check, before offsets are assigned, that ``size`` more bytes are within the budget.

        Raises:
            MemoryFull: too much is waiting for the disk.
            StorageFailed: the journal has failed; the broker is about to end.
        """
        if self._failure is not None:
            raise StorageFailed(f"the journal has failed: {self._failure}")
        if not self.has_room(size):
            raise MemoryFull(
                f"{self._in_flight} bytes wait for the journal's disk; send more slowly or raise "
                "log.max_in_flight_bytes"
            )

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes are within the budget; one frame always is."""
        return not self._in_flight or self._in_flight + size <= self._limit

    async def room(self, size: int, timeout_s: float = 10.0) -> None:
        """Wait until ``size`` more bytes are within the budget: back-pressure for streams.

        Raises:
            MemoryFull: no room within ``timeout_s`` seconds.
        """
        if self.has_room(size):
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.has_room(size):
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            self.admit(size)

    def submit(self, entries: Sequence[Entry], done: Done) -> None:
        """Hand entries over; ``done`` runs in the event loop after the sync or the failure.

        Raises:
            DiskFull: no room for messages (state frames use the reserve).
        """
        size = sum(len(entry.body) + len(entry.header) for entry in entries)

        def written(outcome: Sequence[Position] | BaseException) -> None:
            self._outcomes.append((size, done, outcome))
            self._wake()

        self._journal.submit(entries, written)
        self._in_flight += size

    def _wake(self) -> None:
        """In the writing thread: one wake-up of the loop for all outcomes of a flush."""
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            # The loop is closed: the process is on its way out and nobody waits any more.
            return

    def _settle(self) -> None:
        """In the loop: bring outcomes to who waits, in the journal's order."""
        # Before looking: an outcome that comes after the last look finds it so and wakes again.
        self._woken = False
        while self._outcomes:
            size, done, outcome = self._outcomes.popleft()
            self._in_flight -= size
            self._drained.set()
            if isinstance(outcome, BaseException):
                self._failure = outcome
            try:
                done(outcome)
            except Exception as error:
                LOG.error("an outcome was not taken", exc_info=error)

    def submit_future(self, entries: Sequence[Entry]) -> asyncio.Future[Sequence[Position]]:
        """Like ``submit``, as a future with the positions."""
        future: asyncio.Future[Sequence[Position]] = self._loop.create_future()

        def done(outcome: Sequence[Position] | BaseException) -> None:
            if future.cancelled():
                return
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(entries, done)
        return future


def state_entry(topic_id: bytes, partition: int, epoch: int, body: bytes) -> Entry:
    """A state frame, which may use the disk's reserve."""
    return Entry(
        kind=EntryKind.STATE,
        body=body,
        topic_id=topic_id,
        partition=partition,
        epoch=epoch,
        essential=True,
    )
