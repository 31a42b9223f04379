from __future__ import annotations

import pytest

from danube.core.errors import DiskFull, InvalidRequest, ResourceExhausted, StorageFailed
from danube.journal.envelope import Entry, EntryKind, Position
from tests.unit.journal.journals import SETTINGS, Answer, Bench, messages, state, texts

KIB = 1024
RESERVE = 3 * 64 * KIB


def opened() -> Bench:
    bench = Bench()
    bench.open()
    return bench


def test_nothing_is_answered_before_the_sync() -> None:
    bench = opened()
    calls: list[str] = []
    file = bench.journal._segments.writing
    assert file is not None
    original = file.fdatasync
    answer = bench.submit(messages("a", 0))

    def sync() -> None:
        calls.append("sync")
        assert answer.is_open
        original()

    file.fdatasync = sync  # type: ignore[method-assign]
    bench.journal.pump()
    assert calls == ["sync"]
    assert len(answer.positions) == 1


@pytest.mark.parametrize("fault", ["fail_sync_in", "short_write_in"])
def test_after_a_failure_everybody_is_told_and_nothing_is_tried_again(fault: str) -> None:
    bench = opened()
    before = bench.submit(messages("a", 0))
    bench.journal.pump()
    in_flush = bench.submit(messages("b", 1))
    setattr(bench.disk.faults, fault, 0)
    large = [bench.submit(messages("x" * 9_000, at)) for at in range(5)]
    bench.journal.pump()
    assert len(before.positions) == 1
    assert isinstance(in_flush.error, StorageFailed)
    assert all(isinstance(answer.error, StorageFailed) for answer in large)
    assert bench.failures == [in_flush.error]
    calls = bench.disk.calls
    with pytest.raises(StorageFailed, match="Check the disk"):
        bench.submit(state("later"))
    assert bench.journal.pump() is False
    bench.journal.close()
    assert bench.disk.calls == calls
    assert len(bench.failures) == 1


def test_a_submission_over_several_flushes_is_answered_once_after_the_last() -> None:
    bench = opened()
    entries = [messages("x" * 5_000, at) for at in range(20)]
    answer = bench.submit(*entries)
    flushes = 0
    while answer.is_open:
        assert bench.journal.pump()
        flushes += 1
    assert flushes > 3
    assert len(answer.positions) == 20
    for entry, position in zip(entries, answer.positions, strict=True):
        assert bytes(bench.journal.read(position).body) == bytes(entry.body)


def test_a_submission_that_was_half_written_fails_once() -> None:
    bench = opened()
    answer = bench.submit(*(messages("x" * 5_000, at) for at in range(20)))
    bench.journal.pump()
    bench.disk.faults.fail_sync_in = 0
    bench.journal.pump()
    assert isinstance(answer.error, StorageFailed)


def test_a_waiter_that_fails_does_not_harm_the_others() -> None:
    bench = opened()

    def fail(outcome: object) -> None:
        raise RuntimeError("mine")

    bench.journal.submit([state("a")], fail)
    answer = bench.submit(state("b"))
    bench.journal.pump()
    assert len(answer.positions) == 1
    assert bench.failures == []


def test_an_entry_larger_than_a_segment_is_refused_at_once() -> None:
    bench = opened()
    with pytest.raises(InvalidRequest, match=r"journal\.segment_bytes"):
        bench.submit(Entry(EntryKind.STATE, bytes(64 * KIB), essential=True))
    largest = bytes(64 * KIB - 3 * 4096)
    bench.write(Entry(EntryKind.STATE, b'{"t":"%s"}' % (b"x" * (len(largest) - 8))))
    assert len(bench.crash()) == 1


def test_the_queue_is_bounded_in_bytes_and_keeps_room_for_what_is_essential() -> None:
    bench = Bench(SETTINGS.model_copy(update={"queue_bytes": 64 * KIB}))
    bench.open()
    for at in range(6):
        bench.submit(messages("x" * 9_000, at))
    with pytest.raises(ResourceExhausted, match=r"journal\.queue_bytes"):
        bench.submit(messages("x" * 9_000, 6))
    essential = bench.submit(state("an ack"))
    for _ in range(7):
        bench.submit(state("x" * 9_000))
    with pytest.raises(ResourceExhausted):
        bench.submit(state("x" * 9_000))
    bench.drain()
    assert len(essential.positions) == 1
    bench.submit(messages("again", 99))
    bench.drain()


# -- full disks ----------------------------------------------------------------------------


def full(bench: Bench, free: int) -> None:
    bench.disk.taken_bytes = 0
    bench.disk.taken_bytes = max(bench.disk.free_bytes() - free, 0)


def test_below_the_reserve_messages_are_refused_and_state_is_not() -> None:
    bench = Bench(SETTINGS.model_copy(update={"disk_reserve_bytes": RESERVE}))
    bench.open()
    full(bench, RESERVE - 1)
    bench.clock.advance(1)
    bench.write(state("an ack"))
    with pytest.raises(DiskFull, match="are kept for acknowledgements"):
        bench.submit(messages("a", 0))
    bench.write(state("another"))
    assert bench.failures == []


def test_a_full_disk_heals_without_a_restart() -> None:
    bench = Bench(SETTINGS.model_copy(update={"disk_reserve_bytes": RESERVE}))
    bench.open()
    full(bench, 0)
    bench.clock.advance(1)
    bench.write(state("x"))
    with pytest.raises(DiskFull):
        bench.submit(messages("a", 0))
    bench.disk.taken_bytes = 0
    bench.write(messages("a", 0))
    assert texts(bench.crash()) == ["x", "messages a"]


def test_a_full_disk_makes_a_journal_checkpoint_due_as_soon_as_it_would_free_something() -> None:
    bench = Bench(SETTINGS.model_copy(update={"disk_reserve_bytes": RESERVE}))
    bench.open()
    positions: list[Position] = []
    while len(bench.segments()) < 2:
        positions += bench.write(messages("x" * 9_000, len(positions)))
    full(bench, RESERVE // 2)
    bench.clock.advance(2)
    bench.write(state("an ack"))
    assert not bench.journal.checkpoint_due
    bench.journal.forget(p for p in positions if p.segment == 1)
    bench.clock.advance(2)
    bench.write(state("another"))
    assert bench.journal.checkpoint_due


def test_a_flush_that_finds_no_space_for_its_segment_waits_and_loses_nothing() -> None:
    bench = opened()
    at = 0
    full(bench, 0)
    answers: list[Answer] = []
    while not answers or not answers[-1].is_open:
        answers.append(bench.submit(messages("x" * 9_000, at)))
        at += 1
        bench.journal.pump()
    waiting = bench.submit(state("behind it"))
    assert bench.journal.pump() is False
    assert bench.failures == []
    bench.disk.taken_bytes = 0
    bench.drain()
    assert len(answers[-1].positions) == len(waiting.positions) == 1
    found = bench.crash()
    assert [entry.base_offset for entry in found[:-1]] == list(range(at))
    assert texts(found)[-1] == "behind it"


def test_closing_with_a_full_disk_tells_those_who_wait() -> None:
    bench = opened()
    full(bench, 0)
    answers: list[Answer] = []
    while not answers or not answers[-1].is_open:
        answers.append(bench.submit(messages("x" * 9_000, len(answers))))
        bench.journal.pump()
    bench.journal.close()
    assert isinstance(answers[-1].error, StorageFailed)
    with pytest.raises(StorageFailed):
        bench.submit(state("late"))


def test_recovery_without_space_says_so() -> None:
    bench = opened()
    bench.write(messages("a", 0))
    full(bench, 0)
    with pytest.raises(DiskFull, match="free some space"):
        bench.restart()
    bench.disk.taken_bytes = 0
    assert texts(bench.open()) == ["messages a"]


def test_a_disk_that_fails_during_recovery_stops_it() -> None:
    bench = opened()
    bench.write(messages("a", 0))
    bench.disk.kill()
    bench.disk.faults.fail_sync_in = 1
    with pytest.raises(StorageFailed, match="flush"):
        bench.open()
    assert texts(bench.restart()) == ["messages a"]
