"""What a subscription wants done: fetch, deliver, make its cursor durable, end a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from danube.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stored frame, or the part of one, that was fetched: offsets [start, end).

    ``bytes`` is what sending it costs of a consumer's credit, however little of it is meant.
    ``frame`` is the fetcher's: it comes back with every ``Deliver`` of the chunk, and is let go
    when nothing of the chunk is left to deliver.
    """

    start: int
    end: int
    bytes: int
    frame: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read [start, end), about ``max_bytes`` but at least a frame, and answer under this id.

    The answer is ``fetched`` or ``fetch_failed``. One is outstanding at a time, but for those that
    a reset made void.
    """

    fetch_id: int
    start: int
    end: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send these messages, all of one fetched chunk, to a consumer."""

    consumer_id: int
    chunk: Chunk
    spans: tuple[OffsetRange, ...]
    redelivery_count: int


@dataclass(frozen=True, slots=True)
class CursorMoved:
    """The cursor changed: make it durable before an acknowledgement is answered."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End a consumer's stream; the subscription has forgotten it already."""

    consumer_id: int
    reason: str


Decision = Fetch | Deliver | CursorMoved | Disconnect
"""Carried out in the order of the list they come in."""
