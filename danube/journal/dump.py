"""The journal as text for people: every segment, flush and entry, good or bad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from danube.core.errors import Corruption, InvalidRequest, UnsupportedFormat
from danube.core.frames import parse_header
from danube.journal.chain import find_chain
from danube.journal.envelope import FILLER, FRAMES, EntryKind, StoredEntry, stored_entry
from danube.journal.files import FileSystem, OsFiles
from danube.journal.layout import (
    BLOCK_BYTES,
    FIRST_FLUSH_AT,
    FLUSH_EMPTY,
    FLUSH_END,
    FLUSH_FILLER,
    FLUSH_RECOVERY,
    FlushHeader,
    flush_is_whole,
    use_id_of,
)
from danube.journal.scan import Located, SegmentReader, check_entries

SHOWN_BYTES: Final = 200
"""How much of a state's body a line of text shows; ``fields`` has all of it."""
_FLAGS: Final = (
    (FLUSH_EMPTY, "empty"),
    (FLUSH_RECOVERY, "recovery"),
    (FLUSH_END, "end"),
    (FLUSH_FILLER, "filler"),
)


@dataclass(frozen=True, slots=True)
class DumpLine:
    """One thing in the journal.

    Attributes:
        what: ``segment``, ``flush``, ``entry``, ``damaged``, or ``note``: bad bytes that harm
            nobody (a torn tail, what a recovery has cut, a segment that waits for its next use).
        segment: use id.
        at: byte in its file.
        text: for people.
        fields: the same and more, for programs (JSON types).
    """

    what: str
    segment: int
    at: int
    text: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        indents = {"segment": "", "flush": "  ", "entry": "    ", "note": "  # "}
        indent = indents.get(self.what, "  ! ")
        return f"{indent}{self.segment}:{self.at:<9} {self.text}"


def journal_directory(directory: Path) -> Path:
    """The journal in a broker's data directory, or the directory itself if it is a journal's.

    Raises:
        InvalidRequest: there is no journal.
    """
    for candidate in (directory / "journal", directory):
        if candidate.is_dir() and any(use_id_of(p.name) for p in candidate.iterdir()):
            return candidate
    raise InvalidRequest(f"there is no journal in {directory}; name a broker's data directory")


def dump(directory: Path, files: FileSystem | None = None) -> Iterator[DumpLine]:
    """Everything in a journal's directory, segment by segment; reads only.

    A journal that a broker is writing may show its newest flush as damaged.
    """
    files = files or OsFiles()
    ends = _known_ends(directory, files)
    for name in files.listdir(directory):
        use_id = use_id_of(name)
        if use_id is None:
            continue
        reader = SegmentReader(files, directory / name, use_id)
        try:
            end = ends.get(use_id, _NOT_LIVE) if ends is not None else None
            for line in _segment(reader, None if ends is None else end is not _NOT_LIVE, end):
                harmless = line.what == "damaged" and end is _NOT_LIVE
                yield replace(line, what="note") if harmless else line
        finally:
            reader.close()


@dataclass(frozen=True, slots=True)
class _End:
    """Up to where a segment's bytes count; ``newest``: a torn tail may follow."""

    at: int = 1 << 62
    newest: bool = False


_NOT_LIVE: Final = _End(0)


def _known_ends(directory: Path, files: FileSystem) -> dict[int, _End] | None:
    """The live segments and where each ends; None if the journal is too damaged to tell."""
    try:
        chain = find_chain(directory, files)
    except (Corruption, UnsupportedFormat):
        return None
    ends = {link.use_id: _End(end) for link, end, _ in chain.kept}
    for link in chain.links:
        at = link.cut.place if link.cut is not None else 1 << 62
        ends[link.use_id] = _End(at, newest=link is chain.newest)
    return ends


def _segment(reader: SegmentReader, live: bool | None, end: _End | None) -> Iterator[DumpLine]:
    use_id = reader.use_id
    try:
        header = reader.header()
    except UnsupportedFormat as error:
        yield DumpLine("damaged", use_id, 0, str(error))
        return
    if header is None:
        yield DumpLine("damaged", use_id, 0, f"{reader.path.name}: no valid header block (spare?)")
    else:
        fields = {
            "file": reader.path.name,
            "live": live,
            "previous": header.previous,
            "first_flush": header.first_flush,
            "bytes": header.segment_bytes,
            "checkpoint": list(header.checkpoint) if header.checkpoint else None,
            "created_us": header.created_us,
            "broker_id": header.identity.broker_id,
            "incarnation": header.identity.incarnation,
            "recovery": header.is_recovery,
        }
        shown = "live" if live else "not live" if live is False else "?"
        text = (
            f"segment {use_id} ({shown}{', recovery' if header.is_recovery else ''}): broker "
            f"{header.identity.broker_id}, incarnation {header.identity.incarnation}, after "
            f"segment {header.previous}, from flush {header.first_flush}"
        )
        yield DumpLine("segment", use_id, 0, text, fields)
    yield from _flushes(reader, end or _End())


def _flushes(reader: SegmentReader, end: _End) -> Iterator[DumpLine]:
    at = FIRST_FLUSH_AT
    while True:
        if end is not _NOT_LIVE and at >= end.at:
            if reader.flush_header(at) is not None:
                yield DumpLine("note", reader.use_id, at, "the journal goes on elsewhere from here")
            return
        flush = reader.flush_header(at)
        if flush is None:
            flush = reader.find_flush(at + BLOCK_BYTES, above=0)
            if flush is None:
                return
            text = f"no flush here; the next one is at byte {flush.at}"
            yield DumpLine("damaged", reader.use_id, at, text)
        is_tail = end.newest and reader.find_flush(flush.next_at, above=flush.number) is None
        for line in _flush(reader, flush):
            torn = is_tail and line.what == "damaged"
            yield replace(line, what="note", text=f"torn tail: {line.text}") if torn else line
        at = flush.next_at


def _flush(reader: SegmentReader, flush: FlushHeader) -> Iterator[DumpLine]:
    data = memoryview(bytes(reader.flush(flush)))
    flags = [name for bit, name in _FLAGS if flush.flags & bit]
    fields = {
        "flush": flush.number,
        "entries": flush.entries,
        "bytes": flush.bytes,
        "time_us": flush.time_us,
        "flags": flags,
    }
    text = f"flush {flush.number}: {flush.entries} entries, {flush.bytes} bytes"
    shown = f" [{', '.join(flags)}]" if flags else ""
    yield DumpLine("flush", flush.use_id, flush.at, text + shown, fields)
    if flush.flags & FLUSH_FILLER:
        return
    checked = check_entries(data, flush)
    damaged = {item.at for item in checked.damaged}
    for item in sorted(checked.good + checked.damaged):
        yield _entry(data, flush, item, item.at in damaged)
    if checked.bad_at is not None:
        yield DumpLine("damaged", flush.use_id, flush.at + checked.bad_at, "bad envelope")
    elif not damaged and not flush_is_whole(data, flush):
        yield DumpLine("damaged", flush.use_id, flush.at, "the flush does not match its crc")


def _entry(data: memoryview, flush: FlushHeader, item: Located, damaged: bool) -> DumpLine:
    entry = stored_entry(data, item.at, item.envelope)
    fields: dict[str, Any] = {
        "kind": entry.kind.name,
        "topic_id": entry.topic_id.hex(),
        "partition": entry.partition,
        "epoch": entry.epoch,
        "base_offset": entry.base_offset,
        "append_time_us": entry.append_time_us,
        "bytes": item.envelope.length,
    }
    if item.envelope.flags & FILLER:
        text = f"filler of a repair, {item.envelope.length} bytes"
    elif damaged:
        text = f"{entry.kind.name} with a damaged body, base offset {entry.base_offset}"
    else:
        text = f"{entry.kind.name} {_describe(entry, fields)}"
    if entry.topic_id != bytes(16):
        text += f" (topic {entry.topic_id.hex()}, partition {entry.partition})"
    what = "damaged" if damaged else "entry"
    return DumpLine(what, flush.use_id, flush.at + item.at, text, fields)


def _describe(entry: StoredEntry, fields: dict[str, Any]) -> str:
    if entry.kind not in FRAMES:
        body = bytes(entry.body).decode(errors="replace")
        fields["body"] = body
        return body if len(body) <= SHOWN_BYTES else body[:SHOWN_BYTES] + "…"
    if entry.extra:
        fields["label"] = entry.extra.decode(errors="replace")
    try:
        header = parse_header(entry.header)
    except Exception as error:
        return f"frame that cannot be read: {error}"
    fields |= {
        "count": header.count,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "first_sequence": header.first_sequence,
    }
    sent = f"producer {header.producer_id} epoch {header.producer_epoch}"
    sent += f" sequence {header.first_sequence}"
    if entry.kind is EntryKind.STAGED:
        return f"{header.count} messages, {sent}, {fields.get('label', '')}"
    end = entry.base_offset + header.count
    return f"offsets [{entry.base_offset}, {end}), epoch {entry.epoch}, {sent}"
