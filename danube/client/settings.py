"""What can be set about a client, each with its unit."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from danube.core.limits import MAX_IN_FLIGHT_FRAMES, MIB, TARGET_FRAME_BYTES
from danube.core.settings import Settings

CodecName = Literal["none", "lz4", "zstd"]
"""How a producer compresses its frames."""


class ClientSettings(Settings):
    """Deadlines and bounds of one client; producers and consumers start from them."""

    connect_timeout_s: float = Field(10.0, gt=0)
    """How long ``connect`` waits for a broker."""

    request_timeout_s: float = Field(30.0, gt=0)
    """Deadline of one request, and of one receipt or answer on a stream."""

    retry_timeout_s: float = Field(120.0, ge=0)
    """How long transient failures are tried again without any progress."""

    retry_min_ms: float = Field(50.0, gt=0)
    """First pause between attempts; it doubles, with jitter."""

    retry_max_ms: float = Field(2000.0, gt=0)
    """Longest pause between attempts."""

    linger_ms: float = Field(5.0, ge=0)
    """How long ``publish`` lets a batch fill. ``send`` does not wait for others."""

    batch_bytes: int = Field(TARGET_FRAME_BYTES, ge=1)
    """Up to where a frame is filled."""

    max_in_flight_frames: int = Field(MAX_IN_FLIGHT_FRAMES, ge=1, le=MAX_IN_FLIGHT_FRAMES)
    """Frames per partition without a receipt. The broker remembers five: no more are safe."""

    buffer_bytes: int = Field(64 * MIB, ge=1)
    """What one producer holds that has no receipt yet."""

    resend_in_doubt: bool = False
    """Send a frame again whose outcome nobody knows any more, which may duplicate its messages,
    instead of reporting ``OutcomeUnknown``."""

    prefetch_bytes: int = Field(8 * MIB, ge=1)
    """What one consumer fetches ahead, per partition."""
