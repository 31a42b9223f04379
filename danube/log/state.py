"""What the journal knows of one partition, rebuilt by replay and written into checkpoints.

Every state frame is a JSON object with a type under ``"t"``. Applying one twice, or an older one
after a newer one, changes nothing: state frames are idempotent and monotone, because a journal
checkpoint is written while appends go on.

| t | fields | meaning |
|---|---|---|
| producer | n, e | epoch e of producer n was handed out |
| cursor | s, c | subscription s stands at cursor c |
| cursor_gone | s, g | subscription s was deleted at generation g |
| staged | set, label, at | set is complete |
| drop | sets | unpinned sets were dropped |
| pin | c, label, sets, at | commit id c holds these sets |
| unpin | c | commit id c was aborted; its sets are dropped |
| sink | c, base, at, sets | commit id c is visible from offset base on |
| rolled | o | everything below o is in the table (a hint) |
| lost | from, to, kind | a lost range not yet in the table |
| release | end | ownership was given up in order at this end offset |
| gone | | the topic was deleted |
| partition | everything | journal checkpoints only |
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from danube.core.frames import FrameHeader
from danube.core.names import PartitionId
from danube.dispatch.cursor import Cursor
from danube.journal.envelope import Position
from danube.log.extents import Extent, ExtentIndex
from danube.log.producers import ProducerTable, Sent
from danube.log.staging import Pin, SinkCommit, StagedBody, StagedSet, Staging


@dataclass(frozen=True, slots=True)
class PendingLoss:
    """A lost range that the table does not hold yet."""

    start: int
    end: int
    kind: str


@dataclass(slots=True)
class PartitionState:
    """Journal state of one partition, owned by the event loop."""

    partition: PartitionId
    next_offset: int = 0
    rolled: int = 0
    last_append_us: int = 0
    extents: ExtentIndex = field(default_factory=ExtentIndex)
    producers: ProducerTable = field(default_factory=ProducerTable)
    staging: Staging = field(default_factory=Staging)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    sinks: dict[str, SinkCommit] = field(default_factory=dict)
    lost: list[PendingLoss] = field(default_factory=list)
    damaged: str = ""
    gone: bool = False

    @property
    def is_empty(self) -> bool:
        """Nothing that a journal checkpoint would have to carry."""
        return self.gone or not (
            self.next_offset or self.cursors or self.staging.sets or self.lost or self.producers
        )

    def to_checkpoint(self) -> bytes:
        """The CHECKPOINT_STATE body of this partition."""
        return encode(
            "partition",
            next=self.next_offset,
            rolled=self.rolled,
            last=self.last_append_us,
            producers=self.producers.to_state(),
            staging=self.staging.to_state(),
            cursors={name: cursor.to_state() for name, cursor in self.cursors.items()},
            sinks=[sink.to_state() for sink in self.live_sinks()],
            lost=[[loss.start, loss.end, loss.kind] for loss in self.lost],
            damaged=self.damaged,
        )

    def live_sinks(self) -> Iterator[SinkCommit]:
        """Sink commits whose messages are not all rolled; forgets the others."""
        for commit_id in [c for c, sink in self.sinks.items() if sink.end <= self.rolled]:
            del self.sinks[commit_id]
        yield from self.sinks.values()

    def rolled_to(self, offset: int) -> list[Position]:
        """Raise the rolled offset; returns the journal entries that are no longer needed."""
        self.rolled = max(self.rolled, offset)
        freed: list[Position] = []
        for extent in self.extents:
            if extent.end > self.rolled:
                break
            if extent.position is not None:
                freed.append(extent.position)
                extent.position = None
        self.extents.drop_gone()
        self.lost = [loss for loss in self.lost if loss.end > self.rolled]
        return freed


def encode(kind: str, **fields: Any) -> bytes:
    """A state frame's body."""
    return json.dumps({"t": kind, **fields}, separators=(",", ":")).encode()


class Replay:
    """Rebuilds one partition's state from its journal entries, in journal order."""

    def __init__(self, partition: PartitionId) -> None:
        self.state = PartitionState(partition)
        self._bodies: dict[str, list[StagedBody]] = {}
        self._messages: list[Extent] = []
        self._rolled = 0

    def messages(
        self,
        header: FrameHeader,
        position: Position,
        base: int,
        append_time_us: int,
        *,
        known: bool,
    ) -> None:
        """A frame of messages; ``known`` when the journal checkpoint already covers it."""
        extent = Extent(base, header.count, append_time_us, position.length, position)
        self._messages.append(extent)
        if known:
            return
        self._advance(extent.end, append_time_us)
        sent = Sent(header.first_sequence, header.count, base)
        self.state.producers.remember(
            header.producer_id, header.producer_epoch, sent, append_time_us
        )

    def staged(
        self,
        header: FrameHeader,
        position: Position,
        label: dict[str, Any],
        append_time_us: int,
        *,
        known: bool,
    ) -> None:
        """A staged frame. A set that a checkpoint no longer knows was dropped or rolled."""
        set_id = str(label["set"])
        body = StagedBody(position, header.count, position.length)
        self._bodies.setdefault(set_id, []).append(body)
        if not known:
            self.state.staging.sets.setdefault(set_id, StagedSet(set_id, label, append_time_us))

    def apply(self, kind: str, fields: dict[str, Any]) -> None:
        """A state frame."""
        getattr(self, f"_on_{kind}")(fields)

    def damage(self, reason: str) -> None:
        """A body does not match its checksum: this partition must not be served."""
        self.state.damaged = self.state.damaged or reason

    def finish(self) -> tuple[PartitionState, list[Position]]:
        """The state, and journal entries that nothing refers to any more."""
        state = self.state
        freed: list[Position] = []
        for staged in state.staging.sets.values():
            staged.bodies = self._bodies.pop(staged.set_id, [])
        extents = list(self._messages)
        for sink in state.live_sinks():
            extents.extend(self._sink_extents(sink))
        for bodies in self._bodies.values():
            freed.extend(body.position for body in bodies)
        for extent in sorted(extents, key=lambda item: item.base):
            last = state.extents
            if extent.end <= state.rolled and extent.position is not None:
                freed.append(extent.position)
            elif len(last) == 0 or extent.base >= self._last_end:
                self._last_end = extent.end
                state.extents.add(extent)
            elif extent.position is not None:
                # The same frame twice: a survivor that a recovery flush wrote again.
                freed.append(extent.position)
        if state.gone:
            freed.extend(e.position for e in state.extents if e.position is not None)
            state.extents = ExtentIndex()
        return state, freed

    _last_end: int = 0

    def _sink_extents(self, sink: SinkCommit) -> Iterator[Extent]:
        base = sink.base
        for set_id, count in sink.sets:
            start = base
            for body in self._bodies.pop(set_id, []):
                yield Extent(base, body.count, sink.append_time_us, body.bytes, body.position)
                base += body.count
            if base - start not in (count, 0):
                self.damage(f"staged set {set_id} holds {base - start} of {count} messages")
            base = start + count

    def _advance(self, end: int, append_time_us: int) -> None:
        self.state.next_offset = max(self.state.next_offset, end)
        self.state.last_append_us = max(self.state.last_append_us, append_time_us)

    def _on_producer(self, fields: dict[str, Any]) -> None:
        self.state.producers.open(fields["n"], fields["e"], fields.get("at", 0))

    def _on_cursor(self, fields: dict[str, Any]) -> None:
        self._merge_cursor(fields["s"], Cursor.from_state(fields["c"]))

    def _merge_cursor(self, name: str, cursor: Cursor) -> None:
        known = self.state.cursors.get(name)
        if known is None or cursor.supersedes(known):
            self.state.cursors[name] = cursor

    def _on_cursor_gone(self, fields: dict[str, Any]) -> None:
        known = self.state.cursors.get(fields["s"])
        if known is not None and known.generation <= fields["g"]:
            del self.state.cursors[fields["s"]]

    def _on_staged(self, fields: dict[str, Any]) -> None:
        set_id = str(fields["set"])
        staged = self.state.staging.sets.get(set_id)
        if staged is None:
            staged = StagedSet(set_id, fields["label"], fields["at"])
            self.state.staging.sets[set_id] = staged
        staged.complete = True

    def _on_drop(self, fields: dict[str, Any]) -> None:
        for set_id in fields["sets"]:
            self.state.staging.drop(set_id)

    def _on_pin(self, fields: dict[str, Any]) -> None:
        pin = Pin(fields["c"], fields["label"], tuple(fields["sets"]), fields["at"])
        if pin.commit_id not in self.state.staging.finished:
            self.state.staging.pins[pin.commit_id] = pin

    def _on_unpin(self, fields: dict[str, Any]) -> None:
        pin = self.state.staging.pins.pop(fields["c"], None)
        for set_id in pin.sets if pin else ():
            self.state.staging.drop(set_id)

    def _on_sink(self, fields: dict[str, Any]) -> None:
        sink = SinkCommit.from_state(fields)
        known = sink.commit_id in self.state.staging.finished
        self.state.staging.finish(sink.commit_id)
        for set_id, _ in sink.sets:
            # A checkpoint that already knew the sink commit may have met the set again since.
            self.state.staging.drop(set_id)
        if known:
            return
        self.state.sinks[sink.commit_id] = sink
        self._advance(sink.end, sink.append_time_us)

    def _on_rolled(self, fields: dict[str, Any]) -> None:
        self.state.rolled = max(self.state.rolled, fields["o"])

    def _on_lost(self, fields: dict[str, Any]) -> None:
        loss = PendingLoss(fields["from"], fields["to"], fields["kind"])
        if loss not in self.state.lost:
            self.state.lost.append(loss)
        self.state.next_offset = max(self.state.next_offset, loss.end)

    def _on_release(self, fields: dict[str, Any]) -> None:
        self.state.next_offset = max(self.state.next_offset, fields["end"])

    def _on_gone(self, fields: dict[str, Any]) -> None:
        self.state = PartitionState(self.state.partition, gone=True)

    def _on_partition(self, fields: dict[str, Any]) -> None:
        state = self.state
        self._advance(fields["next"], fields["last"])
        state.rolled = max(state.rolled, fields["rolled"])
        state.producers.merge_state(fields["producers"])
        state.staging.merge_state(fields["staging"])
        for name, cursor in fields["cursors"].items():
            self._merge_cursor(name, Cursor.from_state(cursor))
        for item in fields["sinks"]:
            sink = SinkCommit.from_state(item)
            state.sinks.setdefault(sink.commit_id, sink)
        for start, end, kind in fields["lost"]:
            self._on_lost({"from": start, "to": end, "kind": kind})
        state.damaged = state.damaged or fields["damaged"]
