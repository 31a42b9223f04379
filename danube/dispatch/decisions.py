"""What a subscription wants done: fetch messages, deliver them, make its cursor durable."""

from __future__ import annotations

from dataclasses import dataclass

from danube.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stored frame, or the part of one, that was fetched: offsets [start, end) and its size."""

    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read [start, end), about ``max_bytes``, and answer with ``fetched`` under this id."""

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


Decision = Fetch | Deliver | CursorMoved
