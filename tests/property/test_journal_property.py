"""Random work, random crashes, nested crashes in recovery: what must hold of a journal holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.core.errors import Corruption, UnsupportedFormat
from danube.journal.envelope import Entry
from danube.journal.layout import BLOCK_BYTES
from danube.testing.simulator.journal_run import JournalRun
from tests.unit.journal.journals import Bench, messages, staged, state, texts


@given(seed=st.integers(0, 1 << 32), steps=st.integers(10, 200))
def test_acknowledged_entries_survive_and_no_other_comes_back_half(seed: int, steps: int) -> None:
    JournalRun(seed).run(steps)


@given(
    flushes=st.lists(
        st.lists(st.sampled_from(["m", "s", "t", "big"]), min_size=1, max_size=4),
        min_size=2,
        max_size=6,
    ),
    where=st.floats(0, 1, exclude_max=True),
)
def test_a_flipped_bit_in_an_acknowledged_flush_is_never_a_silent_cut(
    flushes: list[list[str]], where: float
) -> None:
    bench = Bench()
    bench.open()
    expected: list[Entry] = []
    for flush in flushes:
        for kind in flush:
            at = len(expected)
            entry = {
                "m": lambda at=at: messages(f"m{at}", at),
                "s": lambda at=at: state(f"s{at}"),
                "t": lambda at=at: staged(f"t{at}", "1"),
                "big": lambda at=at: messages("y" * 6_000 + str(at), at),
            }[kind]()
            bench.submit(entry)
            expected.append(entry)
        bench.journal.pump()
    bench.drain()
    current = bench.journal._segments.current
    assert current is not None
    # The empty flush behind the last one may be damaged: it holds nothing.
    byte = BLOCK_BYTES + int(where * (current.end - 2 * BLOCK_BYTES))
    bench.disk.kill()
    bench.flip(current.use_id, byte)
    try:
        found = bench.open()
    except (Corruption, UnsupportedFormat):
        return
    assert len(found) == len(expected)
    whole = [entry for entry in found if not entry.damaged]
    for back, wrote in zip(found, expected, strict=True):
        assert back.damaged or bytes(back.body) == bytes(wrote.body)
    assert len(texts(whole)) >= len(expected) - 1


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8])
def test_the_same_disk_recovers_to_the_same_entries_every_time(keep: float) -> None:
    for seed in range(10):
        run = JournalRun(seed)
        run.run(60)
        run.disk.crash(keep=keep)
        first = [(e.kind, e.epoch, bytes(e.body)) for e in run._open()[1]]
        for _ in range(3):
            run.disk.crash(keep=keep)
            assert [(e.kind, e.epoch, bytes(e.body)) for e in run._open()[1]] == first
