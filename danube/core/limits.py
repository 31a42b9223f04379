"""The bounds that broker, client and Spark share. Nothing is unbounded; every bound has a unit.

Where they come from: official Danube clients receive at most 4 MiB per gRPC message, so a message
in its delivered form must stay below that with room for its envelope; frames of 256 KiB to 1 MiB
move fastest.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

DEFAULT_MAX_MESSAGE_BYTES: Final = 4 * MIB - 64 * KIB
"""Largest message (see :func:`danube.core.batch.message_bytes`) unless a topic raises it."""

DEFAULT_MAX_FRAME_BYTES: Final = 8 * MIB
"""Largest frame, header and body as sent."""

DEFAULT_MAX_UNCOMPRESSED_BYTES: Final = 32 * MIB
"""Largest sum of a frame's buffers once decompressed: what a frame may cost in memory."""

TARGET_FRAME_BYTES: Final = 1 * MIB
"""Up to where clients fill a frame."""

MAX_IN_FLIGHT_FRAMES: Final = 5
"""Frames of one producer and partition without a receipt. The broker remembers the offsets of as
many, so that each of them can be sent again."""

MAX_FRAME_METADATA_BYTES: Final = 64 * KIB
"""Largest Arrow metadata (a flatbuffer) in a frame; version 1 needs about 1 KiB."""

GRPC_MESSAGE_OVERHEAD_BYTES: Final = 64 * KIB
"""What a gRPC message may hold beside its frame."""

MIN_TIMESTAMP_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z. Earlier times cannot be written as a date by Delta, Spark or Python."""

MAX_TIMESTAMP_US: Final = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z."""
