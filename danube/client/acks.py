"""Acknowledgements of one partition, gathered while the previous request is on its way.

One request at a time: whatever is acknowledged meanwhile becomes the next one. That batches by
itself, the more the busier it is, and costs an idle consumer no waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from danube.core.errors import DanubeError, FailedPrecondition
from danube.core.offsets import OffsetRange, RangeSet
from danube.core.telemetry import get_logger
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.translate import spans_of

log = get_logger(__name__)


MAX_RANGES: Final = 5000
"""Acked ranges in one message, and nacked ones: a broker takes 10 000 together, more are split."""


@dataclass(slots=True)
class _Request:
    """What is sent together. ``done`` is shared by all who wait for any of it."""

    done: asyncio.Future[None]
    acked: RangeSet = field(default_factory=RangeSet)
    nacked: RangeSet = field(default_factory=RangeSet)
    parts: deque[pb.Acknowledge] = field(default_factory=deque)

    def split(self) -> None:
        """Make the messages it takes, each within the bound."""
        acked, nacked = spans_of(self.acked), spans_of(self.nacked)
        for start in range(0, max(len(acked), len(nacked)), MAX_RANGES):
            end = start + MAX_RANGES
            self.parts.append(pb.Acknowledge(acked=acked[start:end], nacked=nacked[start:end]))


class AckBuffer:
    """Collects acks and nacks, and knows which are answered. Of the loop's thread only."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._gathering: _Request | None = None
        self._sent: _Request | None = None
        self._request_id = 0
        self._on_stream = False
        self._cursor = 0
        self._tail: tuple[int, int] | None = None

    def ack(self, start: int, end: int) -> asyncio.Future[None]:
        """Offsets [start, end) are done. Resolves when the broker has it safe."""
        request = self._open()
        tail = self._tail
        if tail is not None and tail[1] == start:
            # One message after the other, the usual case: no set operation each.
            self._tail = (tail[0], end)
        else:
            self._spill(request)
            self._tail = (start, end)
        return request.done

    def nack(self, ranges: Sequence[OffsetRange]) -> asyncio.Future[None]:
        """These are to be delivered again. Resolves when the broker knows."""
        request = self._open()
        self._spill(request)
        for offsets in ranges:
            request.nacked.add(offsets.start, offsets.end)
            request.acked.remove(offsets.start, offsets.end)
        return request.done

    def _open(self) -> _Request:
        if self._gathering is None:
            self._gathering = _Request(self._loop.create_future())
            # An application need not await an ack: then a failure is logged, not raised by asyncio.
            self._gathering.done.add_done_callback(_looked_at)
            self._wake()
        return self._gathering

    def _spill(self, request: _Request) -> None:
        if self._tail is not None:
            request.acked.add(*self._tail)
            request.nacked.remove(*self._tail)
            self._tail = None

    # --- the stream's side ----------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether everything is answered."""
        return self._gathering is None and self._sent is None

    @property
    def awaiting_answer(self) -> bool:
        """Whether a request is on its way on the present stream."""
        return self._on_stream

    def opened(self, cursor: int) -> None:
        """A stream begins with the subscription at ``cursor``: send again what has no answer.

        A cursor that went back was reset by somebody. Then old acks would skip what the reset
        wants delivered again: they fail.
        """
        self._on_stream = False
        if cursor < self._cursor:
            self.fail(
                FailedPrecondition(
                    f"the subscription was reset from {self._cursor} to {cursor} meanwhile; its "
                    "messages come again"
                )
            )
        self._cursor = cursor

    def next_request(self) -> pb.Acknowledge | None:
        """What to send now; None while a request is on its way or there is nothing."""
        if self._on_stream:
            return None
        if self._sent is None:
            if self._gathering is None:
                return None
            self._spill(self._gathering)
            self._sent, self._gathering = self._gathering, None
            self._sent.split()
        self._on_stream = True
        self._request_id += 1
        part = self._sent.parts[0]
        part.request_id = self._request_id
        return part

    def answered(self, request_id: int, cursor: int, error: DanubeError | None) -> None:
        """The broker's answer to a request."""
        if request_id != self._request_id or self._sent is None:
            return
        self._on_stream = False
        self._sent.parts.popleft()
        if error is None:
            self._cursor = max(self._cursor, cursor)
            if self._sent.parts:
                return
        request, self._sent = self._sent, None
        _settle(request, error)

    def fail(self, error: DanubeError) -> None:
        """Nobody will answer any more."""
        for request in (self._sent, self._gathering):
            if request is not None:
                _settle(request, error)
        self._sent = self._gathering = self._tail = None
        self._on_stream = False


def _settle(request: _Request, error: DanubeError | None) -> None:
    if request.done.done():
        return
    if error is None:
        request.done.set_result(None)
    else:
        request.done.set_exception(error)


def _looked_at(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("an acknowledgement failed", error=str(error))
