"""From journal entries to partition states: the replay at a broker's start."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from danube.core.errors import Corruption
from danube.core.frames import parse_header
from danube.core.names import PartitionId, TopicId
from danube.journal.envelope import FRAMES, EntryKind, Position
from danube.journal.recovery import RecoveredEntry
from danube.log.state import PartitionState, Replay


@dataclass(slots=True)
class Recovered:
    """What the journal knew."""

    states: dict[PartitionId, PartitionState] = field(default_factory=dict)
    unneeded: list[Position] = field(default_factory=list)
    incarnations: list[str] = field(default_factory=list)
    entries: int = 0


def replay(entries: Iterable[RecoveredEntry]) -> Recovered:
    """Rebuild every partition's state from journal entries in journal order.

    Raises:
        Corruption: a state frame is not what this version writes.
    """
    replays: dict[PartitionId, Replay] = {}
    found = Recovered()
    for entry in entries:
        found.entries += 1
        if entry.topic_id == bytes(16):
            _broker_state(entry, found)
            continue
        partition = PartitionId(TopicId(bytes(entry.topic_id)), entry.partition)
        target = replays.get(partition)
        if target is None:
            target = replays[partition] = Replay(partition)
        _apply(target, entry)
    for partition, target in replays.items():
        state, unneeded = target.finish()
        found.unneeded += unneeded
        if not state.gone:
            found.states[partition] = state
    return found


def _apply(target: Replay, entry: RecoveredEntry) -> None:
    if entry.damaged:
        where = f"segment {entry.position.segment} byte {entry.position.offset}"
        what = f"offsets from {entry.base_offset} on"
        if entry.kind != EntryKind.MESSAGES:
            what = "a staged set" if entry.kind == EntryKind.STAGED else "its state"
        target.damage(f"{where} holds a damaged body of {what}")
        if entry.kind not in FRAMES:
            # What it said cannot be known; the topic is refused, and the others are served.
            return
    if entry.kind == EntryKind.MESSAGES:
        header = parse_header(entry.header)
        known = entry.before_checkpoint
        position, base, at = entry.position, entry.base_offset, entry.append_time_us
        target.messages(header, position, base, at, known=known)
    elif entry.kind == EntryKind.STAGED:
        header = parse_header(entry.header)
        label = _object(entry, entry.extra)
        known = entry.before_checkpoint
        target.staged(header, entry.position, label, entry.append_time_us, known=known)
    elif entry.kind == EntryKind.QUARANTINE:
        fields = _object(entry, entry.body)
        target.apply("lost", {**fields, "kind": "quarantined"})
    elif entry.kind in (EntryKind.STATE, EntryKind.CHECKPOINT_STATE):
        fields = _object(entry, entry.body)
        target.apply(str(fields.pop("t")), fields)


def _broker_state(entry: RecoveredEntry, found: Recovered) -> None:
    """State of the broker itself has no topic."""
    if entry.kind == EntryKind.QUARANTINE:
        # A repair cut something off: what incarnations before it wrote last is not proved.
        found.incarnations = []
        return
    if entry.kind not in (EntryKind.STATE, EntryKind.CHECKPOINT_STATE):
        return
    fields = _object(entry, entry.body)
    if fields["t"] == "incarnations":
        found.incarnations = list(fields["ids"])


def _object(entry: RecoveredEntry, body: Any) -> dict[str, Any]:
    try:
        fields = json.loads(bytes(body))
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise Corruption(
            f"the {entry.kind.name} entry in segment {entry.position.segment} at byte "
            f"{entry.position.offset} is not a JSON object; it was written by another version"
        )
    return fields
