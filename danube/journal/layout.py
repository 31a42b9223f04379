"""What lies in a segment file: one header block, then flushes. Version 1.

A segment file is ``<use id, 20 digits>.segment``. It is preallocated, and recycled with a fresh use
id. Everything is little endian and packed; a crc is crc32c over the bytes behind it.

Header block, one block of 4096 bytes:

| bytes | what |
|---|---|
| 4 + 4 | magic ``DNSG``, crc over the fields below |
| 2 | version (1) |
| 2 | flags: 1 = starts with a recovery flush |
| 4 | bytes of this table |
| 8 | use id |
| 8 | use id of the segment before; 0 for none |
| 8 | number of the first flush |
| 8 | bytes of the file |
| 24 | last synced journal checkpoint: its END's use id, byte, length; zeros for none |
| 8 | time of this use, microseconds since 1970 UTC |
| 64 | broker id, UTF-8, zeros behind |
| 32 | incarnation of the broker process, UTF-8, zeros behind |

Flush, starting at a multiple of 4096; the one after it starts at the next such multiple:

| bytes | what |
|---|---|
| 4 + 4 | magic ``DNFL``, crc over the fields below |
| 2 | bytes of this table (48) |
| 2 | flags: 1 = empty (idle), 2 = recovery, 4 = holds an END, 8 = filler of a repair |
| 4 | number of entries; of a filler: how many flush numbers it stands for |
| 8 | use id |
| 8 | flush number |
| 8 | bytes of the flush, from this magic through its end mark |
| 8 | time of the flush, microseconds since 1970 UTC |
| … | entries, see ``envelope`` |
| 4 + 4 | end mark: magic ``DNFE``, crc over the whole flush before it and the fields below |
| 8 + 8 | use id, flush number |

Flush numbers are contiguous over the journal for ever. The flush crc lets recovery check a flush
at once; where it does not match, the entries' own crcs tell which one is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from danube.core.checksum import crc32c
from danube.core.errors import InvalidRequest, UnsupportedFormat
from danube.core.stores import Buffer
from danube.journal.envelope import Position

BLOCK_BYTES: Final = 4096
FIRST_FLUSH_AT: Final = BLOCK_BYTES
VERSION: Final = 1
SUFFIX: Final = ".segment"

RECOVERY_SEGMENT: Final = 1

FLUSH_EMPTY: Final = 1
FLUSH_RECOVERY: Final = 2
FLUSH_END: Final = 4
FLUSH_FILLER: Final = 8

_SEAL: Final = struct.Struct("<4sI")
_SEGMENT: Final = struct.Struct("<HHIQQQQQQQq64s32s")
_SEGMENT_MAGIC: Final = b"DNSG"
_FLUSH: Final = struct.Struct("<HHIQQQq")
_FLUSH_WHOLE: Final = struct.Struct("<4sIHHIQQQq")
FLUSH_MAGIC: Final = b"DNFL"
_END_MAGIC: Final = b"DNFE"
_END: Final = struct.Struct("<4sIQQ")
_END_FIELDS: Final = struct.Struct("<QQ")
SEGMENT_HEADER_BYTES: Final = _SEAL.size + _SEGMENT.size
FLUSH_HEADER_BYTES: Final = _FLUSH_WHOLE.size
END_MARK_BYTES: Final = _END.size
MIN_FLUSH_BYTES: Final = FLUSH_HEADER_BYTES + END_MARK_BYTES
RECOVERY_ROOM: Final = BLOCK_BYTES
"""What a flush leaves free in its segment, so that a recovery flush of it fits another one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker and one run of its process."""

    broker_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header block of a segment; see the table above."""

    use_id: int
    previous: int
    first_flush: int
    segment_bytes: int
    checkpoint: Position | None
    created_us: int
    identity: Identity
    flags: int = 0

    @property
    def is_recovery(self) -> bool:
        """Whether the first flush is a recovery flush."""
        return bool(self.flags & RECOVERY_SEGMENT)

    def to_block(self) -> bytes:
        """The 4096 bytes.

        Raises:
            InvalidRequest: the broker id or incarnation is too long.
        """
        end = self.checkpoint or Position(0, 0, 0)
        names = (self.identity.broker_id.encode(), self.identity.incarnation.encode())
        if len(names[0]) > 64 or len(names[1]) > 32:
            raise InvalidRequest(
                f"a broker id has at most 64 bytes and an incarnation 32; {self.identity} does not"
            )
        fields = _SEGMENT.pack(
            VERSION,
            self.flags,
            SEGMENT_HEADER_BYTES,
            self.use_id,
            self.previous,
            self.first_flush,
            self.segment_bytes,
            *end,
            self.created_us,
            *names,
        )
        return (_SEAL.pack(_SEGMENT_MAGIC, crc32c(fields)) + fields).ljust(BLOCK_BYTES, b"\0")


def parse_segment_header(block: Buffer, path: Path) -> SegmentHeader | None:
    """The header block, or None when it is damaged, torn or absent.

    Raises:
        UnsupportedFormat: a newer version wrote it.
    """
    if len(block) < SEGMENT_HEADER_BYTES:
        return None
    magic, crc = _SEAL.unpack_from(block)
    if magic != _SEGMENT_MAGIC or crc32c(memoryview(block)[8:SEGMENT_HEADER_BYTES]) != crc:
        # Another version may have another length; its magic and version come first.
        version = int.from_bytes(block[8:10], "little")
        if magic == _SEGMENT_MAGIC and VERSION < version < 256:
            raise UnsupportedFormat(
                f"{path} has journal format version {version}; this release reads up to "
                f"{VERSION}: upgrade danube-spark"
            )
        return None
    version, flags, _, use_id, previous, first, size, *rest = _SEGMENT.unpack_from(block, 8)
    if version != VERSION:
        raise UnsupportedFormat(
            f"{path} has journal format version {version}; this release reads {VERSION}: upgrade "
            "danube-spark"
        )
    end = Position(*rest[:3])
    broker_id, incarnation = (bytes(name).rstrip(b"\0").decode() for name in rest[4:])
    return SegmentHeader(
        use_id=use_id,
        previous=previous,
        first_flush=first,
        segment_bytes=size,
        checkpoint=end if end.segment else None,
        created_us=rest[3],
        identity=Identity(broker_id, incarnation),
        flags=flags,
    )


class FlushHeader(NamedTuple):
    """The header of a flush, checked against its crc; ``at`` is its byte in the segment."""

    at: int
    flags: int
    entries: int
    use_id: int
    number: int
    bytes: int
    time_us: int

    @property
    def next_at(self) -> int:
        """Where the next flush starts."""
        return block_padded(self.at + self.bytes)

    @property
    def next_number(self) -> int:
        """The number of the next flush."""
        return self.number + (self.entries if self.flags & FLUSH_FILLER else 1)


def entries_end(header: FlushHeader) -> int:
    """Where a flush's entries end, counted from its start."""
    return header.bytes - END_MARK_BYTES


def block_padded(count: int) -> int:
    """``count`` rounded up to a multiple of the block size."""
    return (count + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1)


def pack_flush_header(header: FlushHeader) -> bytes:
    """The header's bytes, with their crc."""
    fields = _FLUSH.pack(FLUSH_HEADER_BYTES, header.flags, header.entries, *header[3:])
    return _SEAL.pack(FLUSH_MAGIC, crc32c(fields)) + fields


def parse_flush_header(data: Buffer, start: int, at: int, use_id: int) -> FlushHeader | None:
    """The flush header at ``data[start:]``, which is byte ``at`` of a segment.

    Returns None unless it is whole and of this use of the segment.
    """
    if start + FLUSH_HEADER_BYTES > len(data):
        return None
    magic, crc, size, flags, entries, *rest = _FLUSH_WHOLE.unpack_from(data, start)
    if magic != FLUSH_MAGIC or rest[0] != use_id or size != FLUSH_HEADER_BYTES:
        return None
    if crc32c(memoryview(data)[start + 8 : start + FLUSH_HEADER_BYTES]) != crc:
        return None
    return FlushHeader(at, flags, entries, *rest)


def pack_end_mark(parts: Iterable[Buffer], use_id: int, number: int) -> bytes:
    """The end mark behind ``parts``, the flush from its header on."""
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    crc = crc32c(_END_FIELDS.pack(use_id, number), crc)
    return _END.pack(_END_MAGIC, crc, use_id, number)


def flush_is_whole(data: memoryview, header: FlushHeader) -> bool:
    """Whether ``data``, the flush from its header through its end mark, matches its crc."""
    if len(data) != header.bytes or header.bytes < MIN_FLUSH_BYTES:
        return False
    if header.flags & FLUSH_FILLER:
        return True
    body = data[: header.bytes - END_MARK_BYTES]
    expected = pack_end_mark((body,), header.use_id, header.number)
    return bytes(data[header.bytes - END_MARK_BYTES :]) == expected


def find_end_mark(data: memoryview, start: int, use_id: int, number: int) -> int | None:
    """Where in ``data`` (from ``start``, steps of eight) the end mark of that flush lies."""
    fields = _END_FIELDS.pack(use_id, number)
    whole = bytes(data)
    at = whole.find(fields, start)
    while at >= 0:
        if at >= start + 8 and at % 8 == 0 and whole[at - 8 : at - 4] == _END_MAGIC:
            return at - 8
        at = whole.find(fields, at + 1)
    return None


def segment_name(use_id: int) -> str:
    """The file name of a segment."""
    return f"{use_id:020d}{SUFFIX}"


def use_id_of(name: str) -> int | None:
    """The use id in a file name, or None for other files."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdigit() else None
