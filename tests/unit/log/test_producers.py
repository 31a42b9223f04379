"""The producer table recognises duplicates, gaps and replaced producers."""

from __future__ import annotations

import pytest

from danube.core.errors import ProducerFenced, ResourceExhausted, SequenceGap
from danube.log.producers import PROTECTED_S, REMEMBERED_FRAMES, ProducerTable, Sent

PRODUCER = 7
SECOND_US = 1_000_000


def table_with(frames: int, *, epoch: int = 1) -> ProducerTable:
    """A table that remembers ``frames`` frames of ten messages each."""
    table = ProducerTable()
    for number in range(frames):
        table.remember(PRODUCER, epoch, Sent(number * 10, 10, 100 + number * 10), now_us=0)
    return table


def test_the_next_frame_is_new() -> None:
    assert table_with(3).check(PRODUCER, 1, 30, 10) is None


def test_a_frame_sent_again_is_found_at_its_first_offset() -> None:
    assert table_with(3).check(PRODUCER, 1, 10, 10) == Sent(10, 10, 110)


def test_only_as_many_frames_are_remembered_as_may_be_in_flight() -> None:
    table = table_with(REMEMBERED_FRAMES + 1)
    assert table.check(PRODUCER, 1, 10, 10) is not None
    with pytest.raises(SequenceGap):
        table.check(PRODUCER, 1, 0, 10)


def test_a_gap_is_refused() -> None:
    with pytest.raises(SequenceGap, match="expected 30"):
        table_with(3).check(PRODUCER, 1, 40, 10)


def test_the_same_sequence_with_another_count_is_not_a_duplicate() -> None:
    with pytest.raises(SequenceGap):
        table_with(3).check(PRODUCER, 1, 20, 9)


def test_a_producer_or_epoch_that_was_not_opened_here_is_refused_even_at_its_first_frame() -> None:
    table = ProducerTable()
    with pytest.raises(SequenceGap, match="not known"):
        table.check(PRODUCER, 1, 0, 10)
    table.open(PRODUCER, 1, now_us=0)
    assert table.check(PRODUCER, 1, 0, 10) is None
    with pytest.raises(SequenceGap, match="not known"):
        table.check(PRODUCER, 2, 0, 10)


def test_a_newer_epoch_starts_over_and_fences_the_older_one() -> None:
    table = table_with(3)
    table.open(PRODUCER, 2, now_us=0)
    assert table.check(PRODUCER, 2, 0, 10) is None
    with pytest.raises(ProducerFenced):
        table.check(PRODUCER, 1, 30, 10)


def test_epochs_grow_also_for_a_producer_that_was_forgotten() -> None:
    table = table_with(1, epoch=50)
    assert table.next_epoch(PRODUCER, now_us=10 * SECOND_US) == 51
    assert ProducerTable().next_epoch(PRODUCER, now_us=10 * SECOND_US) == 10


def wrote(table: ProducerTable, number: int, now_us: int) -> None:
    table.open(number, 1, now_us=now_us)
    table.remember(number, 1, Sent(0, 1, number), now_us)


def test_idle_producers_make_room_and_active_ones_never_do() -> None:
    table = ProducerTable()
    for number in range(4):
        wrote(table, number, number * PROTECTED_S * SECOND_US)
    now = 4 * PROTECTED_S * SECOND_US
    table.make_room(now_us=now, capacity=3, ttl_s=24 * 3600)
    assert len(table) == 2
    wrote(table, 5, now)
    wrote(table, 6, now)
    with pytest.raises(ResourceExhausted):
        table.make_room(now_us=now, capacity=3, ttl_s=24 * 3600)


def test_producers_that_never_wrote_make_room_and_their_epochs_are_not_used_again() -> None:
    table = ProducerTable()
    wrote(table, 1, now_us=5)
    for number in (2, 3):
        table.open(number, 70, now_us=5)
    table.make_room(now_us=6, capacity=3, ttl_s=24 * 3600)
    assert table.epoch(2) is None
    assert table.check(1, 1, 0, 1) is not None
    assert table.next_epoch(2, now_us=6) == 71
    again = ProducerTable()
    again.merge_state(table.to_state())
    assert again.next_epoch(2, now_us=6) == 71


def test_producers_idle_for_too_long_are_forgotten_and_their_epochs_stay_used() -> None:
    table = ProducerTable()
    table.open(1, 40, now_us=0)
    table.open(2, 7, now_us=100 * SECOND_US)
    table.expire(now_us=120 * SECOND_US, ttl_s=60.0)
    assert (table.epoch(1), table.epoch(2)) == (None, 7)
    assert table.next_epoch(1, now_us=0) > 40


def test_the_state_survives_a_round_trip_and_never_replaces_a_newer_one() -> None:
    old, new = table_with(2), table_with(4)
    new.merge_state(old.to_state())
    assert new.check(PRODUCER, 1, 40, 10) is None
    empty = ProducerTable()
    empty.merge_state(new.to_state())
    assert empty.check(PRODUCER, 1, 30, 10) == Sent(30, 10, 130)
