"""Replaying the journal gives back the state that wrote it, also from a checkpoint on."""

from __future__ import annotations

import json
from typing import Any

from danube.core.batch import message_records
from danube.core.frames import Frame, encode_frame
from danube.core.names import PartitionId, TopicId
from danube.dispatch.cursor import Cursor
from danube.journal.envelope import Position
from danube.log.state import PartitionState, Replay

PARTITION = PartitionId(TopicId(b"t" * 16), 0)


def frame(count: int, *, first: int = 0, producer: int = 1) -> Frame:
    """A frame of ``count`` messages."""
    records = message_records([b"v"] * count, now_us=0, producer="p")
    return encode_frame(
        records,
        topic_id=PARTITION.topic_id.raw,
        partition=0,
        producer_id=producer,
        producer_epoch=1,
        first_sequence=first,
    )


class Story:
    """Plays entries into a replay, giving each the next place in the journal."""

    def __init__(self) -> None:
        self.replay = Replay(PARTITION)
        self._at = 0

    def _position(self) -> Position:
        self._at += 1
        return Position(1, self._at * 4096, 100)

    def messages(self, base: int, count: int, *, known: bool = False) -> Position:
        position = self._position()
        header = frame(count, first=base).header
        self.replay.messages(header, position, base, 1_000 + base, known=known)
        return position

    def staged(self, set_id: str, count: int, *, known: bool = False) -> Position:
        position = self._position()
        label: dict[str, Any] = {"set": set_id}
        self.replay.staged(frame(count).header, position, label, 5, known=known)
        return position

    def state(self, kind: str, **fields: Any) -> None:
        self.replay.apply(kind, fields)

    def checkpoint(self, state: PartitionState) -> None:
        fields = json.loads(state.to_checkpoint())
        self.replay.apply(fields.pop("t"), fields)

    def end(self) -> tuple[PartitionState, list[Position]]:
        return self.replay.finish()


def test_messages_come_back_as_extents_and_sequences() -> None:
    story = Story()
    story.messages(0, 10)
    story.messages(10, 5)
    state, unneeded = story.end()
    assert [(e.base, e.end) for e in state.extents] == [(0, 10), (10, 15)]
    assert (state.next_offset, unneeded) == (15, [])
    assert state.producers.check(1, 1, 15, 1) is None


def test_rolled_messages_are_given_back_to_the_journal() -> None:
    story = Story()
    first = story.messages(0, 10)
    story.messages(10, 5)
    story.state("rolled", o=10)
    state, unneeded = story.end()
    assert unneeded == [first]
    assert [e.base for e in state.extents] == [10]


def test_a_sink_commit_gives_staged_bodies_their_offsets_in_the_pins_order() -> None:
    story = Story()
    story.messages(0, 3)
    b = story.staged("b", 4)
    a1, a2 = story.staged("a", 1), story.staged("a", 2)
    for set_id in ("a", "b"):
        story.state("staged", set=set_id, label={"set": set_id}, at=5)
    story.state("pin", c="c1", label={}, sets=["a", "b"], at=6)
    story.state("sink", c="c1", base=3, at=2_000, sets=[["a", 3], ["b", 4]])
    state, _ = story.end()
    assert [(e.base, e.end, e.position) for e in state.extents][1:] == [
        (3, 4, a1),
        (4, 6, a2),
        (6, 10, b),
    ]
    assert state.next_offset == 10
    assert not state.staging.sets
    assert not state.staging.pins


def test_dropped_sets_are_given_back() -> None:
    story = Story()
    body = story.staged("a", 1)
    story.state("drop", sets=["a"])
    state, unneeded = story.end()
    assert unneeded == [body]
    assert not state.staging.sets


def test_a_checkpoint_that_overlaps_what_follows_changes_nothing() -> None:
    """State is gathered while appends go on: the same effects come twice."""
    whole = Story()
    whole.messages(0, 3)
    body = whole.staged("a", 2)
    whole.state("staged", set="a", label={"set": "a"}, at=5)
    whole.state("pin", c="c1", label={}, sets=["a"], at=6)
    whole.state("sink", c="c1", base=3, at=7, sets=[["a", 2]])
    whole.state("cursor", s="s", c=Cursor(4).to_state())
    expected, _ = whole.end()

    again = Story()
    again.checkpoint(expected)
    again.messages(0, 3, known=True)
    again.staged("a", 2)
    again.state("staged", set="a", label={"set": "a"}, at=5)
    again.state("pin", c="c1", label={}, sets=["a"], at=6)
    again.state("sink", c="c1", base=3, at=7, sets=[["a", 2]])
    again.state("cursor", s="s", c=Cursor(2).to_state())
    state, unneeded = again.end()
    assert [(e.base, e.end) for e in state.extents] == [(0, 3), (3, 5)]
    assert list(state.extents)[1].position == body
    assert unneeded == []
    assert state.cursors["s"].offset == 4
    assert not state.staging.sets


def test_bodies_of_a_set_that_a_checkpoint_no_longer_knows_are_given_back() -> None:
    story = Story()
    story.checkpoint(PartitionState(PARTITION, next_offset=9))
    body = story.staged("gone", 2, known=True)
    state, unneeded = story.end()
    assert unneeded == [body]
    assert state.next_offset == 9


def test_an_aborted_pin_takes_its_sets_along() -> None:
    story = Story()
    body = story.staged("a", 2)
    story.state("staged", set="a", label={"set": "a"}, at=5)
    story.state("pin", c="c1", label={}, sets=["a"], at=6)
    story.state("unpin", c="c1")
    state, unneeded = story.end()
    assert unneeded == [body]
    assert not state.staging.pins


def test_a_deleted_topic_leaves_nothing() -> None:
    story = Story()
    story.messages(0, 3)
    story.state("gone")
    state, unneeded = story.end()
    assert state.gone
    assert len(unneeded) == 1


def test_a_damaged_body_marks_the_partition() -> None:
    story = Story()
    story.replay.damage("segment 1 byte 4096")
    state, _ = story.end()
    assert state.damaged == "segment 1 byte 4096"
