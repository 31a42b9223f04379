from __future__ import annotations

import threading

import pytest

from danube.core.errors import Corruption
from danube.journal.envelope import EntryKind, Position
from danube.journal.files import File
from tests.unit.journal.journals import Answer, Bench, messages, staged, state, texts, value_of


def filled(segments: int, bench: Bench | None = None) -> tuple[Bench, list[Position]]:
    """A journal that has filled so many segments, and the positions of its frames."""
    bench = bench or Bench()
    if bench.segments() == []:
        bench.open()
    positions: list[Position] = []
    first = bench.journal._segments.current
    assert first is not None
    while bench.journal._segments.current.use_id < first.use_id + segments:  # type: ignore[union-attr]
        positions += bench.write(messages("x" * 9_000, len(positions)))
    return bench, positions


def test_a_flush_lies_in_one_segment() -> None:
    bench, positions = filled(3)
    for position in positions:
        assert position.offset + position.length <= bench.settings.segment_bytes
    assert len(bench.crash()) == len(positions)


def test_segments_that_nobody_needs_are_used_again_under_a_new_use_id() -> None:
    bench, positions = filled(2)
    assert bench.segments() == [1, 2, 3]
    bench.journal.forget(p for p in positions if p.segment < 3)
    bench.checkpoint()
    bench, more = filled(1, bench)
    assert bench.segments() == [1, 3, 4] or bench.segments() == [2, 3, 4]
    kept = [p for p in [*positions, *more] if p.segment >= 3]
    found = bench.crash()
    assert [entry.kind for entry in found] == [EntryKind.MESSAGES] * len(kept)


def test_old_bytes_of_a_recycled_segment_never_look_valid() -> None:
    bench, positions = filled(2)
    bench.journal.forget(p for p in positions if p.segment < 3)
    bench.checkpoint()
    bench, _ = filled(1, bench)
    recycled = bench.journal._segments.current
    assert recycled is not None
    old = bench.disk.contents(bench.path(recycled.use_id))
    # The old use's flushes are still there behind the new one's, and nobody takes them for real.
    assert old.count(b"DNFL") > 1
    bench.write(state("in a recycled segment"))
    assert texts(bench.crash())[-1] == "in a recycled segment"
    for position in positions:
        if position.segment < 3 and position.offset >= recycled.end:
            with pytest.raises(Corruption):
                bench.journal.read(Position(recycled.use_id, position.offset, position.length))
            with pytest.raises(Corruption, match="recycled"):
                bench.journal.read(position)


def test_a_segment_with_a_needed_frame_outlives_journal_checkpoints() -> None:
    bench, positions = filled(2)
    needed = positions[2]
    assert needed.segment == 1
    bench.journal.forget(p for p in positions if p != needed and p.segment < 3)
    for _ in range(3):
        bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
        bench, _ = filled(1, bench)
    found = bench.crash()
    (kept,) = (entry for entry in found if entry.position == needed)
    assert (kept.base_offset, kept.before_checkpoint) == (2, True)
    assert value_of(bench.journal.read(needed)) == "x" * 9_000
    # All of segment 1 comes back, rolled or not: it is live as a whole.
    assert sum(1 for entry in found if entry.position.segment == 1) == sum(
        1 for p in positions if p.segment == 1
    )


def test_without_a_journal_checkpoint_nothing_is_recycled() -> None:
    bench, positions = filled(2)
    bench.journal.forget(p for p in positions if p.segment < 3)
    bench.journal.begin_checkpoint()
    bench.drain()
    filled(2, bench)
    assert bench.segments() == [1, 2, 3, 4, 5]


def test_an_end_that_is_not_synced_frees_nothing() -> None:
    bench, positions = filled(2)
    bench.journal.forget(p for p in positions if p.segment < 3)
    bench.journal.begin_checkpoint()
    bench.drain()
    bench.journal.end_checkpoint(Answer())
    bench.disk.faults.fail_sync_in = 0
    bench.journal.pump()
    assert bench.failures
    assert len(bench.journal._segments.live()) == 3
    assert len(bench.crash()) == len(positions)


def test_spare_segments_are_bounded() -> None:
    bench, positions = filled(6)
    bench.journal.forget(p for p in positions if p.segment < 7)
    bench.checkpoint()
    assert len(bench.segments()) == 1 + bench.settings.spare_segments


def test_spares_of_an_earlier_run_are_used_again() -> None:
    bench, positions = filled(2)
    bench.journal.forget(p for p in positions if p.segment < 3)
    bench.checkpoint()
    bench.restart()
    before = len(bench.segments())
    filled(1, bench)
    assert len(bench.segments()) == before


def test_a_reader_keeps_its_segment_from_being_recycled_until_its_deadline() -> None:
    bench, positions = filled(2)
    segments = bench.journal._segments
    segment, file = segments._hold(positions[0], token := object())
    bench.journal.forget(p for p in positions if p.segment < 3)
    bench.checkpoint()
    assert [s.use_id for s in segments._retiring] == [1]
    assert file.pread(100, positions[0].offset)[:4] == b"DNEV"
    bench.clock.advance(bench.settings.reader_hold_s + 1)
    filled(1, bench)
    assert segments._retiring == []
    segments._let_go(segment, token)
    assert segment.file is None


def test_a_read_that_is_overtaken_by_recycling_is_an_error_and_never_other_bytes() -> None:
    bench, positions = filled(2)
    segments = bench.journal._segments
    target = positions[0]
    segment, file = segments._hold(target, token := object())

    class Overtaken:
        """The disk takes its time; the deadline passes and the segment gets a new use."""

        def pread(self, length: int, offset: int) -> bytes:
            bench.journal.forget(p for p in positions if p.segment < 3)
            bench.checkpoint()
            bench.clock.advance(bench.settings.reader_hold_s + 1)
            # Both old files are used again.
            filled(2, bench)
            return file.pread(length, offset)

        def close(self) -> None:
            file.close()

    segments._let_go(segment, token)
    slow: File = Overtaken()  # type: ignore[assignment]
    segment.file = slow
    with pytest.raises(Corruption, match="recycled"):
        bench.journal.read(target)


def test_open_files_are_bounded() -> None:
    bench = Bench()
    bench.open(open_segments=2)
    bench, positions = filled(5, bench)
    for position in positions:
        bench.journal.read(position)
    assert len(bench.journal._segments._reading) == 2
    assert sum(1 for s in bench.journal._segments.live() if s.file is not None) == 2


def test_reads_from_many_threads_see_what_was_written() -> None:
    bench, positions = filled(3)
    wrong: list[Position] = []

    def read_all() -> None:
        wrong.extend(p for p in positions if value_of(bench.journal.read(p)) != "x" * 9_000)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- journal checkpoints -------------------------------------------------------------------


def test_a_checkpoint_becomes_due_after_some_segments_and_once() -> None:
    bench = Bench()
    bench.open()
    calls: list[int] = []
    bench.journal.on_checkpoint_due = lambda: calls.append(1)
    filled(2, bench)
    assert not bench.journal.checkpoint_due
    filled(1, bench)
    assert bench.journal.checkpoint_due
    assert calls == [1]
    filled(1, bench)
    assert calls == [1]
    bench.checkpoint()
    assert not bench.journal.checkpoint_due
    filled(3, bench)
    assert calls == [1, 1]


def test_whoever_asks_late_still_hears_that_a_checkpoint_is_due() -> None:
    bench, _ = filled(3)
    calls: list[int] = []
    bench.journal.on_checkpoint_due = lambda: calls.append(1)
    assert calls == [1]


def test_a_checkpoint_becomes_due_when_an_unneeded_segment_waits_too_long() -> None:
    bench, positions = filled(1)
    bench.journal.forget(p for p in positions if p.segment == 1)
    bench.write(state("a"))
    assert not bench.journal.checkpoint_due
    bench.clock.advance(bench.settings.checkpoint_age_s + 1)
    bench.write(state("b"))
    assert bench.journal.checkpoint_due
    bench.checkpoint()
    bench.clock.advance(bench.settings.checkpoint_age_s + 1)
    bench.write(state("c"))
    assert not bench.journal.checkpoint_due


def test_a_failing_listener_does_not_stop_the_journal() -> None:
    bench = Bench()
    bench.open()

    def fail() -> None:
        raise RuntimeError("the loop is closed")

    bench.journal.on_checkpoint_due = fail
    _, positions = filled(4, bench)
    assert bench.failures == []
    assert len(bench.crash()) == len(positions)


def test_state_before_a_checkpoint_is_not_replayed_and_frames_are_marked() -> None:
    bench = Bench()
    bench.open()
    bench.write(state("before"), messages("a", 0))
    bench.write(staged("b", "9"))
    bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
    bench.write(state("after"))
    found = bench.crash()
    assert texts(found) == ["messages a", "staged b", "sum", "after"]
    assert [e.before_checkpoint for e in found] == [True, True, False, False]


def test_the_end_of_a_checkpoint_in_the_last_flush_survives_with_what_it_freed() -> None:
    bench, positions = filled(3)
    bench.journal.forget(p for p in positions if p.segment < 4)
    bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
    # The last flush is the END (or the empty one behind it); recovery runs again and again.
    for _ in range(5):
        found = bench.crash()
        assert texts(found)[-1] == "sum"
        assert len(found) == 1 + sum(1 for p in positions if p.segment >= 4)


def test_an_unsynced_end_read_from_the_page_cache_frees_nothing_before_it_is_durable() -> None:
    for seed in range(10):
        bench, positions = filled(3, Bench(seed=seed))
        bench.checkpoint(state("one", EntryKind.CHECKPOINT_STATE))
        bench.journal.forget(p for p in positions if p.segment < 4)
        bench.journal.begin_checkpoint()
        bench.submit(state("two", EntryKind.CHECKPOINT_STATE))
        bench.drain()
        bench.journal.end_checkpoint(Answer())
        # The process dies in the sync of END's flush, recovery dies too, then the machine.
        bench.disk.faults.crash_in = 1
        with pytest.raises(BaseException, match="sync"):
            bench.journal.pump()
        bench.disk.kill()
        bench.disk.faults.crash_in = 5
        with pytest.raises(BaseException, match=r"."):
            bench.open()
        found = bench.crash(keep=0.0)
        assert texts(found)[-1] in ("one", "two") or found


def test_end_without_begin_is_a_failure_of_the_process() -> None:
    bench = Bench()
    bench.open()
    answer = Answer()
    bench.journal.end_checkpoint(answer)
    bench.journal.pump()
    assert "begin_checkpoint" in str(answer.error)
    assert len(bench.failures) == 1
