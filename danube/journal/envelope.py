"""Entries, their places, and the envelope that the journal puts around each of them.

One entry on disk, little endian, packed, starting at a multiple of eight; see ``layout`` for what
lies around it:

| bytes | what |
|---|---|
| 4 | magic ``DNEV`` |
| 4 | envelope crc32c: over everything below, frame header and extra |
| 1 | kind |
| 1 | flags: 1 = filler, what a repair put over damaged bytes |
| 2 | bytes of this table (88) |
| 8 | use id of the segment |
| 8 | flush number |
| 8 | ownership epoch |
| 8 | base offset |
| 8 | append time, microseconds since 1970 UTC, signed |
| 16 | topic id; zeros for the broker's own state |
| 4 | partition |
| 4 | frame header bytes |
| 4 | extra bytes |
| 4 | body bytes |
| 4 | body crc32c |

Then frame header, extra (a JSON label), zeros up to a multiple of eight, body, zeros up to a
multiple of eight. Use id and flush number make bytes of an earlier use of the file invalid. The
body's crc of a frame is the one in its header: the door has checked it, so writing hashes only
what is new.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from danube.core.checksum import crc32c
from danube.core.errors import InvalidRequest
from danube.core.frames import HEADER_BYTES as FRAME_HEADER_BYTES
from danube.core.stores import Buffer

ZERO16: Final = bytes(16)
MAGIC: Final = b"DNEV"
FILLER: Final = 1

_WHOLE: Final = struct.Struct("<4sIBBHQQQQq16sIIIII")
_SEALED: Final = struct.Struct("<BBHQQQQq16sIIIII")
_SEAL: Final = struct.Struct("<4sI")
_FRAME_BODY_CRC: Final = struct.Struct("<I")
# Body crc, six zero bytes and the header's own crc end a frame's header.
_FRAME_BODY_CRC_AT: Final = FRAME_HEADER_BYTES - 14
ENVELOPE_BYTES: Final = _WHOLE.size
SEALED_AT: Final = _SEAL.size
_PADS: Final = tuple(bytes(count) for count in range(8))


class EntryKind(enum.IntEnum):
    """What an entry is. The journal itself looks only at those from 10 on."""

    MESSAGES = 1
    STAGED = 2
    STATE = 3
    CHECKPOINT_BEGIN = 10
    CHECKPOINT_STATE = 11
    CHECKPOINT_END = 12
    RECOVERY_CUT = 13
    QUARANTINE = 14


KINDS: Final = {int(kind): kind for kind in EntryKind}
FRAMES: Final = frozenset({EntryKind.MESSAGES, EntryKind.STAGED})
"""Kinds that carry a frame and keep their segment until they are forgotten."""


@dataclass(slots=True)
class Entry:
    """One thing to write.

    Attributes:
        kind: what it is.
        body: the frame's body, or a JSON object in UTF-8 with a type under ``"t"``.
        header: the frame's header (MESSAGES and STAGED).
        extra: JSON label of a staged frame.
        topic_id: 16 bytes; zeros for the broker's own state.
        partition: number of the partition.
        epoch: ownership epoch under which it is written.
        base_offset: offset of the first message (0 for what has none).
        append_time_us: the broker's time of arrival, microseconds since 1970 UTC.
        essential: may use the disk's reserve; messages and staged sets may not.
    """

    kind: EntryKind
    body: Buffer
    header: bytes = b""
    extra: bytes = b""
    topic_id: bytes = ZERO16
    partition: int = 0
    epoch: int = 0
    base_offset: int = 0
    append_time_us: int = 0
    essential: bool = False


class Position(NamedTuple):
    """Where an entry lies: use id of the segment, byte of the envelope, length with envelope."""

    segment: int
    offset: int
    length: int


class Envelope(NamedTuple):
    """An envelope as it lies on the disk; ``crc`` is not checked by reading it."""

    magic: bytes
    crc: int
    kind: int
    flags: int
    envelope_bytes: int
    segment: int
    flush: int
    epoch: int
    base_offset: int
    append_time_us: int
    topic_id: bytes
    partition: int
    header_bytes: int
    extra_bytes: int
    body_bytes: int
    body_crc: int

    @property
    def sealed_bytes(self) -> int:
        """Length of envelope, frame header and extra: what the envelope crc covers, and magic."""
        return ENVELOPE_BYTES + self.header_bytes + self.extra_bytes

    @property
    def body_at(self) -> int:
        """Where the body starts, counted from the envelope."""
        return padded(self.sealed_bytes)

    @property
    def length(self) -> int:
        """Length of the entry without the zeros behind it."""
        return self.body_at + self.body_bytes


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry read back, with envelope and body checked."""

    kind: EntryKind
    header: bytes
    extra: bytes
    body: memoryview
    topic_id: bytes
    partition: int
    epoch: int
    base_offset: int
    append_time_us: int


def padded(count: int) -> int:
    """``count`` rounded up to a multiple of eight."""
    return (count + 7) & ~7


def entry_bytes(entry: Entry) -> int:
    """Bytes that an entry takes in a flush."""
    sealed = ENVELOPE_BYTES + len(entry.header) + len(entry.extra)
    return ((sealed + 7) & ~7) + ((len(entry.body) + 7) & ~7)


def check_entry(entry: Entry) -> None:
    """Refuse what could not be read back.

    Raises:
        InvalidRequest: a frame without a header of the right size, an epoch or a topic id that is
            out of bounds: a mistake of the caller.
    """
    header_bytes = FRAME_HEADER_BYTES if entry.kind in FRAMES else 0
    if len(entry.header) != header_bytes or len(entry.topic_id) != 16:
        raise InvalidRequest(
            f"a {entry.kind.name} entry has a frame header of {header_bytes} bytes and a topic id "
            f"of 16; this one has {len(entry.header)} and {len(entry.topic_id)}"
        )


def append_entry(entry: Entry, parts: list[Buffer], segment: int, flush: int) -> int:
    """Add an entry's bytes to ``parts``; returns its length without the zeros behind it."""
    header, extra, body = entry.header, entry.extra, entry.body
    if header:
        (body_crc,) = _FRAME_BODY_CRC.unpack_from(header, _FRAME_BODY_CRC_AT)
    else:
        body_crc = crc32c(body)
    body_bytes = len(body)
    sealed = _SEALED.pack(
        entry.kind,
        0,
        ENVELOPE_BYTES,
        segment,
        flush,
        entry.epoch,
        entry.base_offset,
        entry.append_time_us,
        entry.topic_id,
        entry.partition,
        len(header),
        len(extra),
        body_bytes,
        body_crc,
    )
    if header or extra:
        sealed = b"".join((sealed, header, extra))
    parts.append(_SEAL.pack(MAGIC, crc32c(sealed)))
    parts.append(sealed)
    pad = -len(sealed) % 8
    if pad:
        parts.append(_PADS[pad])
    parts.append(body)
    if body_bytes % 8:
        parts.append(_PADS[-body_bytes % 8])
    return SEALED_AT + len(sealed) + pad + body_bytes


def filler_envelope(segment: int, flush: int, body: Buffer) -> bytes:
    """The envelope that a repair writes over damaged bytes; ``body`` is what stays behind it."""
    sealed = _SEALED.pack(
        *(EntryKind.QUARANTINE, FILLER, ENVELOPE_BYTES, segment, flush),
        *(0, 0, 0, ZERO16, 0, 0, 0, len(body), crc32c(body)),
    )
    return _SEAL.pack(MAGIC, crc32c(sealed)) + sealed


unpack_envelope = _WHOLE.unpack_from
"""The fields of an ``Envelope`` as a plain tuple, for where a million are read per second."""


def peek_envelope(data: Buffer, at: int) -> Envelope:
    """The envelope's fields at ``at``, unchecked. There must be enough bytes for one."""
    return Envelope._make(_WHOLE.unpack_from(data, at))


def envelope_at(data: memoryview, at: int, segment: int, flush: int | None) -> Envelope | None:
    """The envelope at ``at`` if it is whole, of this use of the segment and of this flush.

    Args:
        data: bytes that hold the entry; one that goes beyond them is not whole.
        at: where in ``data``.
        segment: use id.
        flush: flush number, or None for any.
    """
    if at + ENVELOPE_BYTES > len(data) or bytes(data[at : at + 4]) != MAGIC:
        return None
    found = peek_envelope(data, at)
    if found.segment != segment or (flush is not None and found.flush != flush):
        return None
    if found.envelope_bytes != ENVELOPE_BYTES or at + found.length > len(data):
        return None
    if crc32c(data[at + SEALED_AT : at + found.sealed_bytes]) != found.crc:
        return None
    return found


def body_is_whole(data: memoryview, at: int, envelope: Envelope) -> bool:
    """Whether the body of the entry at ``at`` matches its crc."""
    return crc32c(data[at + envelope.body_at : at + envelope.length]) == envelope.body_crc


def stored_entry(data: memoryview, at: int, envelope: Envelope) -> StoredEntry:
    """The entry at ``at``; its body is a view of ``data``."""
    header_at = at + ENVELOPE_BYTES
    extra_at = header_at + envelope.header_bytes
    return StoredEntry(
        kind=KINDS[envelope.kind],
        header=bytes(data[header_at:extra_at]),
        extra=bytes(data[extra_at : extra_at + envelope.extra_bytes]),
        body=data[at + envelope.body_at : at + envelope.length],
        topic_id=envelope.topic_id,
        partition=envelope.partition,
        epoch=envelope.epoch,
        base_offset=envelope.base_offset,
        append_time_us=envelope.append_time_us,
    )


def total_bytes(entries: Sequence[Entry]) -> int:
    """Bytes that entries take in a flush."""
    return sum(map(entry_bytes, entries))
