"""The simulator's seeds for the journal alone; a failing one is named and replays."""

from __future__ import annotations

import pytest

from danube.testing.simulator.journal_run import JournalRun

PARTS = 20
SEEDS = 200
LONG_SEEDS = 10_000
STEPS = 250


@pytest.mark.parametrize("part", range(PARTS))
def test_what_a_journal_promises_holds_for_every_seed(part: int, long_run: bool) -> None:
    for seed in range(part, LONG_SEEDS if long_run else SEEDS, PARTS):
        try:
            JournalRun(seed).run(STEPS)
        except BaseException as error:
            error.add_note(
                f"replay it: python -m danube.testing.simulator --scenario journal --seed {seed} -v"
            )
            raise


def test_a_seed_replays_the_same_run() -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        JournalRun(seed, lines.append).run(STEPS)
        return lines

    assert told(3) == told(3)
    assert told(3) != told(4)
