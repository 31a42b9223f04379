"""The bodies of the journal's own records: journal checkpoints and the cut of a recovery."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from danube.core.stores import Buffer
from danube.journal.envelope import Entry, EntryKind, Position

BEGIN: Final = b'{"t":"begin"}'


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment before a journal checkpoint that is still needed, and where it ends."""

    use_id: int
    end: int
    end_number: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete journal checkpoint: where it begins and which older segments live on."""

    begin: Position
    kept: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """From flush ``number`` at byte ``place`` of ``segment`` on, the journal goes on elsewhere."""

    segment: int
    place: int
    number: int


def _entry(kind: EntryKind, fields: dict[str, Any]) -> Entry:
    body = json.dumps(fields, separators=(",", ":")).encode()
    return Entry(kind=kind, body=body, essential=True)


def begin_entry() -> Entry:
    """CHECKPOINT_BEGIN."""
    return Entry(kind=EntryKind.CHECKPOINT_BEGIN, body=BEGIN, essential=True)


def end_entry(checkpoint: Checkpoint) -> Entry:
    """CHECKPOINT_END."""
    kept = [[item.use_id, item.end, item.end_number] for item in checkpoint.kept]
    fields = {"t": "end", "begin": list(checkpoint.begin), "segments": kept}
    return _entry(EntryKind.CHECKPOINT_END, fields)


def cut_entry(cut: Cut, kept_entries: int) -> Entry:
    """RECOVERY_CUT; ``kept_entries`` is for people."""
    fields = {"t": "cut", "segment": cut.segment, "place": cut.place, "flush": cut.number}
    return _entry(EntryKind.RECOVERY_CUT, {**fields, "kept": kept_entries})


def quarantine_entry(topic_id: bytes, partition: int, start: int, end: int) -> Entry:
    """QUARANTINE of one partition: what lay between these offsets may be lost."""
    entry = _entry(EntryKind.QUARANTINE, {"t": "quarantine", "from": start, "to": end})
    entry.topic_id, entry.partition, entry.base_offset = topic_id, partition, start
    return entry


def quarantine_notice(what: Sequence[str]) -> Entry:
    """QUARANTINE of the broker itself: its journal proves no partition's newest end any more."""
    return _entry(EntryKind.QUARANTINE, {"t": "quarantine", "what": list(what)})


def parse_end(body: Buffer) -> Checkpoint:
    """The checkpoint that an END describes."""
    fields = json.loads(bytes(body))
    kept = tuple(Kept(*item) for item in fields["segments"])
    return Checkpoint(Position(*fields["begin"]), kept)


def parse_cut(body: Buffer) -> Cut:
    """The cut that a recovery flush starts with."""
    fields = json.loads(bytes(body))
    return Cut(fields["segment"], fields["place"], fields["flush"])
