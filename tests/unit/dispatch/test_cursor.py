"""Cursors only grow within a generation."""

from __future__ import annotations

from danube.core.offsets import OffsetRange
from danube.dispatch.cursor import Cursor


def test_an_ack_at_the_offset_moves_it_over_everything_acknowledged_above() -> None:
    cursor = Cursor(10)
    assert cursor.ack(12, 15)
    assert (cursor.offset, list(cursor.acked)) == (10, [OffsetRange(12, 15)])
    assert cursor.ack(10, 12)
    assert (cursor.offset, list(cursor.acked)) == (15, [])


def test_an_ack_of_what_is_acknowledged_changes_nothing() -> None:
    cursor = Cursor(10)
    cursor.ack(12, 15)
    assert not cursor.ack(3, 9)
    assert not cursor.ack(13, 14)
    assert not cursor.advance(10)


def test_the_state_survives_a_round_trip() -> None:
    cursor = Cursor(4, generation=3)
    cursor.ack(6, 9)
    again = Cursor.from_state(cursor.to_state())
    assert (again.generation, again.offset, again.acked) == (3, 4, cursor.acked)


def test_a_reset_supersedes_a_cursor_that_was_further() -> None:
    far = Cursor(100)
    back = Cursor.from_state(far.to_state())
    back.reset(5)
    assert back.supersedes(far)
    assert not far.supersedes(back)


def test_within_a_generation_the_one_with_more_acknowledged_supersedes() -> None:
    older, newer = Cursor(5), Cursor(5)
    newer.ack(7, 9)
    assert newer.supersedes(older)
    assert not older.supersedes(newer)
