"""Reading one segment file from front to back, believing nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from danube.core.errors import Corruption
from danube.core.limits import MIB
from danube.journal.envelope import Envelope, body_is_whole, envelope_at, padded, peek_envelope
from danube.journal.files import File, FileSystem
from danube.journal.layout import (
    BLOCK_BYTES,
    END_MARK_BYTES,
    FIRST_FLUSH_AT,
    FLUSH_HEADER_BYTES,
    FLUSH_MAGIC,
    MIN_FLUSH_BYTES,
    FlushHeader,
    SegmentHeader,
    block_padded,
    parse_flush_header,
    parse_segment_header,
)

READ_AHEAD_BYTES: Final = 4 * MIB


class Damage(enum.Enum):
    """Which kind of bytes are bad; a repair treats each differently."""

    SEGMENT = "segment missing or its header block damaged"
    FLUSH = "flush header damaged"
    ENVELOPE = "envelope damaged"
    RECORD = "body of a journal record damaged"


@dataclass(frozen=True, slots=True)
class BadPlace:
    """Where a journal is damaged.

    Attributes:
        damage: what is bad.
        segment: use id.
        at: byte of the segment.
        number: number of the flush that should be there.
        flush_at: where that flush starts (for entries in it).
        end_at: byte up to which flushes have to be there, if known, else 0.
        end_number: number of the flush after the last one that has to be there, or 0.
    """

    damage: Damage
    segment: int
    at: int
    number: int
    flush_at: int = 0
    end_at: int = 0
    end_number: int = 0


class JournalDamaged(Corruption):
    """The journal is damaged in front of acknowledged flushes; nothing is cut in silence."""

    def __init__(self, place: BadPlace, path: Path, known: str = "") -> None:
        super().__init__(
            f"{path} is damaged at byte {place.at}: {place.damage.value} (flush {place.number}), "
            "with acknowledged entries there or behind it. The broker does not start, because "
            f"messages may be lost. {known}Restore the file, or run `danube journal repair`, which "
            "sets it aside and records what was lost"
        )
        self.place = place
        self.path = path


class Located(NamedTuple):
    """An envelope and where it starts within its flush."""

    at: int
    envelope: Envelope


@dataclass(slots=True)
class Checked:
    """A flush that does not match its crc, entry by entry.

    Attributes:
        good: entries whose envelope and body are whole.
        damaged: entries with a whole envelope and a bad body.
        bad_at: byte within the flush of the first bad envelope, or None.
        first_bad: byte within the flush of the first entry that is bad in any way, or None.
    """

    good: list[Located] = field(default_factory=list)
    damaged: list[Located] = field(default_factory=list)
    bad_at: int | None = None
    first_bad: int | None = None


class SegmentReader:
    """Windows into one segment file. A view is valid until the next call."""

    def __init__(self, files: FileSystem, path: Path, use_id: int) -> None:
        self.path = path
        self.use_id = use_id
        self._file: File = files.open(path)
        try:
            self.size = self._file.size()
        except BaseException:
            self._file.close()
            raise
        self._buffer = bytearray()
        self._start = 0
        self._filled = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def view(self, at: int, length: int) -> memoryview:
        """Bytes ``at`` … ``at + length`` of the file; fewer at its end.

        Raises:
            Corruption: the disk cannot read them.
        """
        if not (self._start <= at and at + length <= self._start + self._filled):
            self._fill(at, length)
        start = at - self._start
        return memoryview(self._buffer)[start : min(start + length, self._filled)]

    def _fill(self, at: int, length: int) -> None:
        wanted = max(min(max(length, READ_AHEAD_BYTES), self.size - at), 0)
        if wanted > len(self._buffer):
            self._buffer = bytearray(wanted)
        try:
            filled = self._file.readinto(memoryview(self._buffer)[:wanted], at)
        except OSError as error:
            raise Corruption(
                f"{self.path} cannot be read at byte {at} ({error.strerror}); check the disk"
            ) from error
        self._start, self._filled = at, filled

    def header(self) -> SegmentHeader | None:
        """The header block, or None when it is not whole or of another use."""
        found = parse_segment_header(bytes(self.view(0, BLOCK_BYTES)), self.path)
        return found if found is not None and found.use_id == self.use_id else None

    def flush_header(self, at: int) -> FlushHeader | None:
        """The flush header at ``at``, if one of this use is there."""
        found = parse_flush_header(self.view(at, BLOCK_BYTES), 0, at, self.use_id)
        if found is None or found.bytes < MIN_FLUSH_BYTES or at + found.bytes > self.size:
            return None
        return found

    def flush(self, header: FlushHeader) -> memoryview:
        """A flush's bytes from its header through its end mark."""
        return self.view(header.at, header.bytes)

    def find_flush(self, start: int, above: int) -> FlushHeader | None:
        """The first flush header from ``start`` on whose number is greater than ``above``."""
        at = block_padded(start)
        while at < self.size:
            window = self.view(at, READ_AHEAD_BYTES)
            found = self._find_in(window, at, above)
            if found is not None:
                return found
            at += block_padded(max(len(window), 1))
        return None

    def _find_in(self, window: memoryview, at: int, above: int) -> FlushHeader | None:
        base = at - self._start
        # Only where flushes can start: looking at every byte was half the time of a recovery.
        for here in range(0, len(window), BLOCK_BYTES):
            if self._buffer.startswith(FLUSH_MAGIC, base + here):
                found = parse_flush_header(window, here, at + here, self.use_id)
                if found is not None and found.number > above:
                    return found
        return None


def flush_around(reader: SegmentReader, at: int) -> FlushHeader | None:
    """The flush that holds byte ``at`` of a segment."""
    here = FIRST_FLUSH_AT
    while (flush := reader.flush_header(here)) is not None:
        if flush.at <= at < flush.next_at:
            return flush
        here = flush.next_at
    return None


def entries_of(data: memoryview, header: FlushHeader) -> Iterator[Located]:
    """The entries of a flush that matches its crc."""
    at, end = FLUSH_HEADER_BYTES, header.bytes - END_MARK_BYTES
    while at < end:
        envelope = peek_envelope(data, at)
        yield Located(at, envelope)
        at += padded(envelope.length)


def check_entries(data: memoryview, header: FlushHeader) -> Checked:
    """Look at every entry of a flush that does not match its crc, up to a bad envelope."""
    found = Checked()
    at, end = FLUSH_HEADER_BYTES, header.bytes - END_MARK_BYTES
    inside = data[: max(end, 0)]
    while at < end:
        envelope = envelope_at(inside, at, header.use_id, header.number)
        if envelope is None:
            found.bad_at = at
            break
        whole = body_is_whole(data, at, envelope)
        (found.good if whole else found.damaged).append(Located(at, envelope))
        if not whole and found.first_bad is None:
            found.first_bad = at
        at += padded(envelope.length)
    if found.first_bad is None:
        found.first_bad = found.bad_at
    return found
