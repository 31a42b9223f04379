from __future__ import annotations

import pytest

from danube.core.errors import (
    Corruption,
    FailedPrecondition,
    InvalidRequest,
    InvalidSettings,
    UnsupportedFormat,
)
from danube.journal.envelope import EntryKind, Position
from danube.journal.journal import Journal
from danube.journal.layout import BLOCK_BYTES
from danube.journal.scan import SegmentReader, entries_of
from danube.testing.simdisk import SimulatedCrash
from tests.unit.journal.journals import (
    DIRECTORY,
    Bench,
    messages,
    staged,
    state,
    texts,
)


def written(count: int = 3) -> Bench:
    """A journal with some flushes of one frame each; not closed."""
    bench = Bench()
    bench.open()
    for at in range(count):
        bench.write(messages(f"m{at}", at))
    return bench


def test_a_new_journal_is_empty_and_proves_nothing() -> None:
    bench = Bench()
    assert bench.open() == []
    assert bench.journal.previous is None
    assert bench.journal.identity.broker_id == "broker"


def test_what_was_acknowledged_comes_back_after_a_crash_in_order_and_unchanged() -> None:
    bench = Bench()
    bench.open()
    first = bench.journal.identity
    bench.write(messages("a", 0), state("s1"), staged("b", "77"))
    bench.write(messages("c", 1))
    found = bench.crash()
    assert texts(found) == ["messages a", "s1", "staged b", "messages c"]
    assert [entry.base_offset for entry in found] == [0, 0, 0, 1]
    assert found[0].append_time_us == 5_000
    assert found[2].extra == b'{"set":"77"}'
    assert not any(entry.damaged or entry.before_checkpoint for entry in found)
    assert bench.journal.previous == first
    assert bench.journal.identity.incarnation != first.incarnation


def test_recovered_positions_can_be_read_and_forgotten() -> None:
    bench = written()
    found = bench.crash()
    for entry in found:
        assert bytes(bench.journal.read(entry.position).body) == bytes(entry.body)
    bench.journal.forget([entry.position for entry in found])
    with pytest.raises(AssertionError, match="forgotten before"):
        bench.journal.forget([found[0].position])


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 1.0])
def test_a_flush_that_was_not_synced_comes_back_as_a_beginning_or_not_at_all(keep: float) -> None:
    for seed in range(20):
        bench = Bench(seed=seed)
        bench.open()
        bench.write(messages("acked", 0))
        answer = bench.submit(*(messages(f"m{at}" * 200, 1 + at) for at in range(12)))
        bench.disk.faults.crash_in = 0
        with pytest.raises(SimulatedCrash):
            bench.journal.pump()
        assert answer.is_open
        found = bench.crash(keep)
        offsets = [entry.base_offset for entry in found]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= 1
        again = bench.crash(keep)
        assert [entry.base_offset for entry in again] == offsets


def test_survivors_that_came_from_the_page_cache_are_durable_before_anybody_sees_them() -> None:
    bench = Bench()
    bench.open()
    bench.submit(messages("in flight", 0))
    # The process dies between its write and its sync: the page cache has all of it.
    bench.disk.faults.crash_in = 1
    with pytest.raises(SimulatedCrash):
        bench.journal.pump()
    bench.disk.rng.random = lambda: 1.0  # type: ignore[method-assign]
    assert texts(bench.restart()) == ["messages in flight"]
    assert texts(bench.crash(keep=0.0)) == ["messages in flight"]


def test_recovery_may_die_anywhere_and_any_number_of_times() -> None:
    for seed in range(12):
        bench = Bench(seed=seed)
        bench.open()
        bench.write(messages("a", 0))
        bench.write(messages("b", 1))
        for death in range(8):
            bench.disk.crash()
            bench.disk.faults.crash_in = death % 5
            with pytest.raises(SimulatedCrash):
                bench.open()
        assert texts(bench.crash()) == ["messages a", "messages b"]


def test_a_recovery_flush_from_the_page_cache_does_not_free_the_one_that_it_supersedes() -> None:
    for seed in range(30):
        bench = Bench(seed=seed)
        bench.open()
        bench.submit(messages("a", 0))
        # A flush that was never synced, and the synced recovery flush that saved it.
        bench.disk.faults.crash_in = 1
        with pytest.raises(SimulatedCrash):
            bench.journal.pump()
        assert texts(bench.restart()) == ["messages a"]
        bench.disk.kill()
        # The next recovery writes its flush, or a part of it, and dies before the sync.
        bench.disk.faults.crash_in = 5
        with pytest.raises(SimulatedCrash):
            bench.open()
        bench.disk.kill()
        # The one after it may use any file that is free by then, and dies with the machine.
        bench.disk.faults.crash_in = seed % 7
        with pytest.raises(SimulatedCrash):
            bench.open()
        assert texts(bench.crash(keep=0.0)) == ["messages a"]


def test_a_recovery_flush_supersedes_the_flush_that_it_repeats() -> None:
    bench = written(3)
    # Each start repeats the last flush in a new segment; none of them appears twice.
    for _ in range(4):
        assert texts(bench.restart()) == ["messages m0", "messages m1", "messages m2"]
    bench.write(messages("m3", 3))
    assert texts(bench.crash()) == ["messages m0", "messages m1", "messages m2", "messages m3"]


def test_flush_numbers_go_on_over_restarts() -> None:
    bench = written(3)
    numbers = [bench.journal._writer.next_number]
    for _ in range(3):
        bench.restart()
        numbers.append(bench.journal._writer.next_number)
        bench.write(state("x"))
    assert numbers == [4, 4, 5, 6]


# -- damage --------------------------------------------------------------------------------


def damaged_flushes(bench: Bench) -> list[int]:
    """Bytes of segment 1: in the flush header, envelope, frame header and body of flush 2."""
    start = 2 * BLOCK_BYTES
    return [start + 20, start + 48 + 30, start + 48 + 88 + 10]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_damage_with_a_later_flush_behind_it_stops_the_broker_and_names_the_place(
    which: int,
) -> None:
    bench = written(3)
    bench.flip(1, damaged_flushes(bench)[which])
    with pytest.raises(Corruption) as caught:
        bench.crash()
    message = str(caught.value)
    assert "00000000000000000001.segment is damaged at byte 8" in message
    assert "partition 0: the frame at offset 0" in message
    assert "danube journal repair" in message


def test_a_damaged_body_is_handed_over_as_damaged() -> None:
    bench = Bench()
    bench.open()
    _, position = bench.write(messages("a", 0), messages("bbbb", 1))
    bench.write(messages("c", 2))
    bench.flip(1, position.offset + position.length - 3)
    found = bench.crash()
    assert [(e.base_offset, e.damaged) for e in found] == [(0, False), (1, True), (2, False)]
    with pytest.raises(Corruption, match="damaged body"):
        _ = found[1].body


def test_the_empty_flush_behind_the_last_one_tells_damage_from_a_torn_tail() -> None:
    bench = written(3)
    assert bench.journal.pump() is True
    assert bench.journal.pump() is False
    bench.flip(1, 3 * BLOCK_BYTES + 48 + 30)
    with pytest.raises(Corruption):
        bench.crash()


def test_closing_writes_the_empty_flush() -> None:
    bench = written(1)
    bench.journal.close()
    bench.disk.kill()
    bench.flip(1, BLOCK_BYTES + 48 + 30)
    with pytest.raises(Corruption):
        bench.open()


def test_damage_in_the_last_flush_of_a_full_segment_is_not_cut() -> None:
    bench = Bench()
    bench.open()
    while bench.segments() == [1]:
        bench.write(messages("x" * 9_000, 0))
    # Segment 2 has begun: every flush of segment 1 was synced.
    last = max(p.offset for p in positions_in(bench, 1))
    bench.flip(1, last + 100)
    with pytest.raises(Corruption):
        bench.crash()


@pytest.mark.parametrize("byte", [100, -20])
def test_damage_in_front_of_a_segment_that_was_only_opened_is_not_cut(byte: int) -> None:
    bench = Bench()
    bench.open()
    while bench.journal._segments.current.room > 20_000:  # type: ignore[union-attr]
        bench.write(messages("x" * 9_000, 0))
    bench.submit(messages("y" * 15_000, 1))
    # The process dies in its first write to segment 2, whose header block is synced by then.
    bench.disk.faults.crash_in = 5
    with pytest.raises(SimulatedCrash):
        bench.journal.pump()
    bench.disk.crash(keep=0.0)
    assert bench.segments() == [1, 2]
    last = max(p.offset for p in positions_in(bench, 1))
    bench.flip(1, last + byte)
    with pytest.raises(Corruption):
        bench.open()


def positions_in(bench: Bench, use_id: int) -> list[Position]:
    reader = SegmentReader(bench.disk.files(), bench.path(use_id), use_id)
    found: list[Position] = []
    at = BLOCK_BYTES
    while (flush := reader.flush_header(at)) is not None:
        data = reader.flush(flush)
        found += [Position(use_id, at + x, e.length) for x, e in entries_of(data, flush)]
        at = flush.next_at
    return found


def test_a_missing_segment_is_noticed() -> None:
    bench = Bench()
    bench.open()
    while len(bench.segments()) < 3:
        bench.write(messages("x" * 9_000, 0))
    bench.disk.files().unlink(bench.path(2))
    with pytest.raises(Corruption, match=r"00000000000000000002.segment.*missing"):
        bench.restart()


@pytest.mark.parametrize("use_id", [1, 2])
def test_a_damaged_header_block_of_a_used_segment_is_noticed(use_id: int) -> None:
    bench = Bench()
    bench.open()
    while len(bench.segments()) < 2:
        bench.write(messages("x" * 9_000, 0))
    bench.flip(use_id, 50)
    with pytest.raises(Corruption, match="header block damaged"):
        bench.crash()


def test_a_disk_that_cannot_be_read_is_reported_as_such() -> None:
    bench = written(2)
    bench.disk.kill()
    bench.disk.faults.read_errors.add(bench.path(1).name)
    with pytest.raises(Corruption, match="check the disk"):
        bench.open()


def test_no_bit_of_an_acknowledged_flush_can_be_lost_in_silence() -> None:
    bench = Bench()
    bench.open()
    bench.write(messages("first", 0), state("s"), staged("b", "1"))
    bench.write(messages("second", 1))
    bench.journal.pump()
    bench.disk.kill()
    whole = bench.disk.contents(bench.path(1))
    expected = ["messages first", "s", "staged b", "messages second"]
    for byte in range(0, 3 * BLOCK_BYTES, 11):
        if not any(whole[byte : byte + 11]):
            continue
        other = Bench()
        other.disk.overwrite_new(bench.path(1), whole)
        other.flip(1, byte)
        try:
            found = other.open()
        except (Corruption, UnsupportedFormat):
            continue
        damaged = [entry for entry in found if entry.damaged]
        assert damaged or texts(found) == expected, byte


# -- whose journal it is -------------------------------------------------------------------


def test_a_journal_of_another_broker_is_refused() -> None:
    bench = written(1)
    bench.disk.kill()
    with pytest.raises(InvalidSettings, match=r"belongs to broker 'broker', this is 'other'"):
        bench.open(broker_id="other")
    # The refusal left no lock behind.
    bench.open()


def test_a_journal_that_is_in_use_is_refused() -> None:
    bench = written(1)
    with pytest.raises(FailedPrecondition, match="another process"):
        Journal.open(
            DIRECTORY, bench.settings, broker_id="broker", files=bench.disk.files(), threaded=False
        )


def test_a_journal_of_a_newer_version_is_refused() -> None:
    bench = written(1)
    bench.disk.kill()
    bench.disk.overwrite(bench.path(1), 8, b"\x02")
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        bench.open()


def test_a_journal_cannot_start_before_it_has_recovered() -> None:
    bench = written(1)
    bench.disk.kill()
    journal = Journal.open(
        DIRECTORY, bench.settings, broker_id="broker", files=bench.disk.files(), threaded=False
    )
    next(journal.recover())
    with pytest.raises(InvalidRequest, match="recover"):
        journal.start()


def test_a_smaller_segment_size_does_not_stop_recovery() -> None:
    bench = Bench()
    bench.open(segment_bytes=1 << 20, flush_bytes=1 << 20)
    big = [messages("x" * 50_000, at) for at in range(8)]
    bench.write(*big)
    bench.disk.crash(keep=0.0)
    found = bench.open(segment_bytes=64 * 1024)
    assert [entry.base_offset for entry in found] == list(range(8))
    bench.write(messages("y", 8))
    assert len(bench.crash()) == 9


def test_state_of_the_last_complete_checkpoint_only_is_replayed() -> None:
    bench = Bench()
    bench.open()
    bench.write(state("old"), messages("a", 0))
    bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
    bench.write(state("new"), messages("b", 1))
    # One that was begun and never ended counts for nothing.
    bench.journal.begin_checkpoint()
    bench.submit(state("unfinished", EntryKind.CHECKPOINT_STATE))
    bench.drain()
    found = bench.crash()
    assert texts(found) == ["messages a", "sum", "new", "messages b"]
    assert [entry.before_checkpoint for entry in found] == [True, False, False, False]
