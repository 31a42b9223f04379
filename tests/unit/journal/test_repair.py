from __future__ import annotations

import json

import pytest

from danube.core.errors import Corruption, FailedPrecondition
from danube.journal.envelope import ZERO16, Entry, EntryKind, Position
from danube.journal.layout import BLOCK_BYTES
from danube.journal.recovery import RecoveredEntry
from danube.journal.repair import RepairReport, repair
from danube.testing.simdisk import SimulatedCrash
from tests.unit.journal.journals import DIRECTORY, TOPIC, Bench, messages, state, texts

FLUSH = 3 * BLOCK_BYTES
"""The third flush of ``written``."""
FIRST_ENTRY = FLUSH + 48


def written() -> Bench:
    """Eight flushes: three frames of messages, then a state. The process has died."""
    bench = Bench()
    bench.open()
    for at in range(8):
        frames = [messages(f"m{3 * at + x}", 3 * at + x) for x in range(3)]
        bench.write(*frames, state(f"s{at}"))
    bench.journal.pump()
    bench.disk.kill()
    return bench


def mend(bench: Bench, *, dry_run: bool = False) -> RepairReport:
    return repair(
        DIRECTORY,
        dry_run=dry_run,
        broker_id="broker",
        files=bench.disk.files(),
        clock=bench.clock,
    )


def offsets(found: list[RecoveredEntry]) -> list[int]:
    return [entry.base_offset for entry in found if entry.kind is EntryKind.MESSAGES]


def quarantined(found: list[RecoveredEntry]) -> list[tuple[bytes, dict[str, object]]]:
    return [
        (entry.topic_id, json.loads(bytes(entry.body)))
        for entry in found
        if entry.kind is EntryKind.QUARANTINE
    ]


def test_a_journal_that_is_whole_is_left_as_it_is() -> None:
    bench = written()
    before = bench.disk.contents(bench.path(1))
    report = mend(bench)
    assert report.was_whole
    assert bench.disk.contents(bench.path(1)) == before
    assert bench.segments() == [1]


def test_a_dry_run_says_what_would_be_done_and_changes_nothing() -> None:
    bench = written()
    bench.flip(1, FIRST_ENTRY + 30)
    before = bench.disk.contents(bench.path(1))
    report = mend(bench, dry_run=True)
    assert report.dry_run
    assert [(x.partition, x.start, x.end) for x in report.lost] == [(0, 6, 7)]
    assert bench.disk.contents(bench.path(1)) == before
    assert bench.segments() == [1]
    with pytest.raises(Corruption):
        bench.open()


def test_a_damaged_envelope_costs_its_entry_and_nothing_else() -> None:
    bench = written()
    bench.flip(1, FIRST_ENTRY + 30)
    report = mend(bench)
    assert report.unproved
    found = bench.crash()
    assert offsets(found) == [at for at in range(24) if at != 6]
    assert texts(found)[-3] == "s7"
    notice, lost = quarantined(found)
    assert notice[0] == ZERO16
    assert lost == (TOPIC, {"t": "quarantine", "from": 6, "to": 7})


def test_the_damaged_file_is_kept_with_a_report_beside_it() -> None:
    bench = written()
    bench.flip(1, FIRST_ENTRY + 30)
    before = bench.disk.contents(bench.path(1))
    report = mend(bench)
    (copy,) = report.quarantined
    assert copy.parent == DIRECTORY / "quarantine"
    assert bench.disk.contents(copy) == before
    (notes,) = [n for n in bench.disk.names(copy.parent) if n.startswith("report")]
    assert json.loads(bench.disk.contents(copy.parent / notes))["lost"] == [[TOPIC.hex(), 0, 6, 7]]


def test_a_damaged_body_costs_exactly_its_messages_and_proves_the_rest() -> None:
    bench = written()
    bench.flip(1, FIRST_ENTRY + 88 + 104 + 60)
    assert [e.damaged for e in bench.open()].count(True) == 1
    bench.disk.kill()
    report = mend(bench)
    assert not report.unproved
    found = bench.crash()
    assert not any(entry.damaged for entry in found)
    assert quarantined(found) == [(TOPIC, {"t": "quarantine", "from": 6, "to": 7})]


def test_a_damaged_flush_header_costs_nothing() -> None:
    bench = written()
    bench.flip(1, FLUSH + 20)
    report = mend(bench)
    assert (report.lost, report.unproved) == ([], False)
    found = bench.crash()
    assert offsets(found) == list(range(24))
    assert quarantined(found) == []


def test_a_lost_page_costs_what_lay_in_it() -> None:
    bench = written()
    bench.disk.overwrite(bench.path(1), FLUSH, bytes(BLOCK_BYTES))
    report = mend(bench)
    assert [(x.start, x.end) for x in report.lost] == [(6, 9)]
    assert report.unproved
    found = bench.crash()
    assert offsets(found) == [at for at in range(24) if at not in (6, 7, 8)]
    assert texts(found).count("s2") == 0


def test_several_damaged_places_are_mended_in_one_go() -> None:
    bench = written()
    bench.flip(1, FIRST_ENTRY + 30)
    bench.flip(1, 7 * BLOCK_BYTES + 20)
    bench.disk.overwrite(bench.path(1), 5 * BLOCK_BYTES, bytes(BLOCK_BYTES))
    bench.flip(1, 40)
    report = mend(bench)
    assert [(x.start, x.end) for x in report.lost] == [(6, 7), (12, 15)]
    assert offsets(bench.crash()) == [at for at in range(24) if at not in (6, 12, 13, 14)]


def test_a_damaged_header_block_costs_nothing() -> None:
    bench = written()
    bench.flip(1, 30)
    report = mend(bench)
    assert (report.lost, report.unproved) == ([], False)
    assert offsets(bench.crash()) == list(range(24))


def long_journal() -> tuple[Bench, int]:
    """Several segments, a journal checkpoint in the middle, and how many frames it has."""
    bench = Bench()
    bench.open()
    count = 0
    while len(bench.segments()) < 6:
        bench.write(messages("x" * 9_000, count))
        count += 1
        if count == 12:
            bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
    bench.drain()
    bench.disk.kill()
    return bench, count


@pytest.mark.parametrize("use_id", [1, 3, 4, 6])
def test_any_segments_header_block_is_written_again(use_id: int) -> None:
    bench, count = long_journal()
    bench.flip(use_id, 60)
    mend(bench)
    found = bench.crash()
    assert offsets(found) == list(range(count))
    assert "sum" in texts(found)


@pytest.mark.parametrize("use_id", [1, 4, 5])
def test_a_missing_segment_becomes_a_recorded_loss(use_id: int) -> None:
    bench, count = long_journal()
    lost = [e.base_offset for e in bench.open() if e.position.segment == use_id]
    bench.disk.crash()
    bench, count = long_journal()
    bench.disk.files().unlink(bench.path(use_id))
    report = mend(bench)
    assert report.unproved
    assert report.lost == [] if use_id == 1 else len(report.lost) == 1
    assert offsets(bench.crash()) == [at for at in range(count) if at not in lost]


def test_a_damaged_end_of_a_checkpoint_is_written_again_from_what_is_there() -> None:
    bench = Bench()
    bench.open()
    positions: list[Position] = []
    while len(bench.segments()) < 3:
        positions += bench.write(messages("x" * 9_000, len(positions)))
    needed = [p for p in positions if p.segment != 1]
    bench.journal.forget(p for p in positions if p.segment == 1)
    end = bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
    bench.write(state("after"))
    bench.drain()
    bench.disk.kill()
    bench.flip(end.segment, end.offset + 100)
    with pytest.raises(Corruption):
        bench.open()
    report = mend(bench)
    assert report.lost == []
    found = bench.crash()
    # What the lost END had released comes back too: whoever rolled it knows it.
    assert offsets(found)[-len(needed) :] == [positions.index(p) for p in needed]
    assert texts(found)[-3:] == ["sum", "after", "quarantine"]
    # Nothing says any more where the older segments ended.
    assert report.unproved


def test_a_damaged_recovery_flush_is_taken_apart() -> None:
    bench = Bench()
    bench.open()
    bench.write(messages("a", 0))
    bench.write(messages("b", 1), messages("c", 2))
    bench.restart()
    bench.write(messages("d", 3))
    bench.drain()
    bench.disk.kill()
    # The recovery flush of segment 2: its cut, then b and c.
    bench.flip(2, BLOCK_BYTES + 48 + 100)
    with pytest.raises(Corruption):
        bench.open()
    mend(bench)
    assert offsets(bench.crash()) == [0, 1, 2, 3]


def test_a_torn_tail_beside_damage_is_cut_as_always() -> None:
    bench = Bench(seed=3)
    bench.open()
    for at in range(5):
        bench.write(messages(f"m{at}", at))
    bench.submit(*(messages("y" * 3_000, 5 + at) for at in range(4)))
    bench.disk.faults.crash_in = 1
    with pytest.raises(SimulatedCrash):
        bench.journal.pump()
    bench.disk.crash(keep=0.5)
    bench.flip(1, 2 * BLOCK_BYTES + 48 + 30)
    mend(bench)
    found = offsets(bench.crash())
    assert found[:4] == [0, 2, 3, 4]
    assert found[4:] == list(range(5, 5 + len(found) - 4))


def test_a_repair_that_dies_anywhere_can_be_run_again() -> None:
    for death in range(40):
        bench = written()
        bench.flip(1, FIRST_ENTRY + 30)
        bench.flip(1, 40)
        bench.disk.faults.crash_in = death
        try:
            mend(bench)
        except SimulatedCrash:
            bench.disk.crash()
            try:
                bench.open()
            except Corruption:
                bench.disk.kill()
                mend(bench)
        bench.disk.kill()
        found = bench.open()
        assert offsets(found) == [at for at in range(24) if at != 6]
        assert (TOPIC, {"t": "quarantine", "from": 6, "to": 7}) in quarantined(found)


def test_a_journal_in_use_is_not_repaired() -> None:
    bench = written()
    bench.open()
    with pytest.raises(FailedPrecondition, match="stop it before"):
        mend(bench)


def test_the_repaired_journal_does_not_claim_to_be_the_last_incarnation() -> None:
    bench = written()
    bench.flip(1, FIRST_ENTRY + 30)
    before = bench.disk.contents(bench.path(1))[112 + 64 - 32 : 112 + 64]
    mend(bench)
    bench.open()
    previous = bench.journal.previous
    assert previous is not None
    assert previous.broker_id == "broker"
    assert previous.incarnation.encode() != before


def test_loss_is_reported_per_partition() -> None:
    bench = Bench()
    bench.open()
    entries: list[Entry] = []
    for at in range(3):
        entries += [messages(f"m{at}", at, partition=x) for x in range(3)]
        bench.write(*entries[-3:])
    bench.drain()
    bench.disk.kill()
    bench.disk.overwrite(bench.path(1), 2 * BLOCK_BYTES, bytes(BLOCK_BYTES))
    report = mend(bench)
    assert sorted((x.partition, x.start, x.end) for x in report.lost) == [
        (0, 1, 2),
        (1, 1, 2),
        (2, 1, 2),
    ]
