"""Any damage is mended or refused, and whatever a repair does not bring back it reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from danube.core.errors import Corruption
from danube.journal.envelope import EntryKind
from danube.journal.layout import BLOCK_BYTES
from danube.journal.mending import LOST_END
from danube.journal.repair import RepairReport, repair
from tests.unit.journal.journals import DIRECTORY, Bench, messages, state

damage = st.tuples(st.sampled_from(["flip", "page", "sector"]), st.floats(0, 1, exclude_max=True))


def written() -> tuple[Bench, int]:
    """Three segments in the middle of several incarnations, with a journal checkpoint."""
    bench = Bench()
    bench.open()
    count = 0
    for run in range(3):
        while count < 12 * (run + 1):
            bench.write(*(messages("x" * (700 * (count % 5)), count + at) for at in range(2)))
            bench.write(state(f"s{count}"))
            count += 2
        if run == 1:
            bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
            bench.write(state("after"))
        bench.drain()
        if run < 2:
            bench.restart()
    bench.drain()
    bench.disk.kill()
    return bench, count


@given(damages=st.lists(damage, min_size=1, max_size=4))
def test_whatever_a_repair_does_not_bring_back_it_reports(
    damages: list[tuple[str, float]],
) -> None:
    bench, count = written()
    used = [(use_id, block) for use_id in bench.segments() for block in used_blocks(bench, use_id)]
    for kind, where in damages:
        use_id, block = used[int(where * len(used))]
        at = block * BLOCK_BYTES
        if kind == "flip":
            bench.flip(use_id, at + int(where * 1e6) % 400)
        elif kind == "sector":
            bench.disk.overwrite(bench.path(use_id), at + int(where * 1e6) % 8 * 512, bytes(512))
        else:
            bench.disk.overwrite(bench.path(use_id), at, bytes(BLOCK_BYTES))
    report = mend(bench, dry_run=False)
    if report is None:
        return
    found = bench.crash()
    assert not any(entry.damaged for entry in found)
    offsets = [entry.base_offset for entry in found if entry.kind is EntryKind.MESSAGES]
    assert offsets == sorted(set(offsets))
    missing = set(range(count)) - set(offsets)
    if report.was_whole:
        assert missing <= set(range(count - 2, count))
    elif not report.unproved:
        assert missing == {at for x in report.lost for at in range(x.start, x.end)}
    elif not any(place.what == LOST_END for place in report.places):
        # Between good frames each missing one is in a reported range; those at the ends are
        # covered by what is not proved any more.
        inner = {at for at in missing if offsets and offsets[0] < at < offsets[-1]}
        assert inner <= {at for x in report.lost for at in range(x.start, x.end)}
    # A second repair finds nothing more to do.
    bench.disk.kill()
    again = mend(bench, dry_run=True)
    assert again is not None
    assert again.was_whole


def mend(bench: Bench, *, dry_run: bool) -> RepairReport | None:
    """What a repair did; None if it refused, saying so."""
    refusal = ""
    try:
        return repair(
            DIRECTORY,
            dry_run=dry_run,
            broker_id="broker",
            files=bench.disk.files(),
            clock=bench.clock,
        )
    except Corruption as error:
        refusal = str(error)
    assert "cannot be repaired" in refusal
    return None


def used_blocks(bench: Bench, use_id: int) -> list[int]:
    whole = bench.disk.contents(bench.path(use_id))
    blocks = range(len(whole) // BLOCK_BYTES)
    return [at for at in blocks if any(whole[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])]
