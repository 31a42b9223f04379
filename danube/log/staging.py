"""Staged sets and pins of one partition: pure state, no I/O.

A staged set is durable and invisible. A pin ties sets to a commit id. A sink commit gives the
pinned sets their offsets; which sink commits still lie in the journal is remembered until they
are rolled.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from danube.journal.envelope import Position

REMEMBERED_COMMITS = 1000
"""Finished commit ids remembered per partition, so that a repeated finish is recognised."""


@dataclass(frozen=True, slots=True)
class StagedBody:
    """One staged frame in the journal."""

    position: Position
    count: int
    bytes: int


@dataclass(slots=True)
class StagedSet:
    """One staged set: what one attempt of one Spark task wrote for this partition."""

    set_id: str
    label: dict[str, Any]
    staged_us: int
    bodies: list[StagedBody] = field(default_factory=list)
    complete: bool = False

    @property
    def count(self) -> int:
        """Messages in the set."""
        return sum(body.count for body in self.bodies)

    @property
    def bytes(self) -> int:
        """Journal bytes of the set."""
        return sum(body.bytes for body in self.bodies)


@dataclass(frozen=True, slots=True)
class Pin:
    """Sets that a commit id will make visible here if it is decided."""

    commit_id: str
    label: dict[str, Any]
    sets: tuple[str, ...]
    pinned_us: int


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """Where the sets of a decided commit id lie in the partition's offsets."""

    commit_id: str
    base: int
    append_time_us: int
    sets: tuple[tuple[str, int], ...]

    @property
    def end(self) -> int:
        """Offset after the last message."""
        return self.base + sum(count for _, count in self.sets)

    def to_state(self) -> dict[str, Any]:
        """JSON form for the journal."""
        return {
            "c": self.commit_id,
            "base": self.base,
            "at": self.append_time_us,
            "sets": [list(item) for item in self.sets],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SinkCommit:
        """The inverse of ``to_state``."""
        sets = tuple((str(name), int(count)) for name, count in state["sets"])
        return cls(state["c"], state["base"], state["at"], sets)


class Staging:
    """All staged sets, pins and recent sink commits of one partition."""

    def __init__(self) -> None:
        self.sets: dict[str, StagedSet] = {}
        self.pins: dict[str, Pin] = {}
        self.finished: OrderedDict[str, None] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Journal bytes of all staged sets."""
        return sum(item.bytes for item in self.sets.values())

    def pinned_sets(self) -> set[str]:
        """Ids of sets that some pin holds."""
        return {set_id for pin in self.pins.values() for set_id in pin.sets}

    def finish(self, commit_id: str) -> list[StagedSet]:
        """Take the sets of a pin out, in the pin's order, and remember the commit id."""
        pin = self.pins.pop(commit_id, None)
        self.finished[commit_id] = None
        while len(self.finished) > REMEMBERED_COMMITS:
            self.finished.popitem(last=False)
        if pin is None:
            return []
        return [self.sets.pop(set_id) for set_id in pin.sets if set_id in self.sets]

    def take_all(self) -> list[StagedSet]:
        """Take every set out and forget every pin: the topic is gone."""
        taken = list(self.sets.values())
        self.sets.clear()
        self.pins.clear()
        return taken

    def drop(self, set_id: str) -> StagedSet | None:
        """Forget one set."""
        return self.sets.pop(set_id, None)

    def to_state(self) -> dict[str, Any]:
        """JSON form for journal checkpoints; the bodies' places come from the entries."""
        return {
            "sets": [
                [item.set_id, item.label, item.staged_us, item.complete]
                for item in self.sets.values()
            ],
            "pins": [
                [pin.commit_id, pin.label, list(pin.sets), pin.pinned_us]
                for pin in self.pins.values()
            ],
            "finished": list(self.finished),
        }

    def merge_state(self, state: dict[str, Any]) -> None:
        """Take over a journal checkpoint's state."""
        for set_id, label, staged_us, complete in state["sets"]:
            self.sets.setdefault(set_id, StagedSet(set_id, label, staged_us, complete=complete))
        for commit_id, label, sets, pinned_us in state["pins"]:
            self.pins.setdefault(commit_id, Pin(commit_id, label, tuple(sets), pinned_us))
        for commit_id in state["finished"]:
            self.finished[commit_id] = None
