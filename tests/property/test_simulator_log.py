"""The whole log under simulated crashes: 200 seeds, or 10,000 in ``make test-all``."""

from __future__ import annotations

import pytest

from danube.testing.simulator.__main__ import main
from danube.testing.simulator.journal_belief import Violation
from danube.testing.simulator.log_belief import LogBelief
from danube.testing.simulator.log_run import LogRun

SHARES = 10
SEEDS = 200
LONG_SEEDS = 10_000


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(3600)
def test_no_seed_breaks_a_promise_of_log_table_and_sink(share: int, long_run: bool) -> None:
    count = (LONG_SEEDS if long_run else SEEDS) // SHARES
    seeds = f"{share * count}:{(share + 1) * count}"
    assert main(["--scenario", "log", "--seeds", seeds]) == 0, "the seed is printed above"


def test_one_seed_gives_one_story() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        LogRun(7, story.append).run()
    assert stories[0] == stories[1]


def test_a_lost_acknowledgement_is_a_violation() -> None:
    belief = LogBelief()
    belief.acknowledged(0, 0, [b"a", b"b"])
    with pytest.raises(Violation, match="acknowledged"):
        belief.check({(0, 0): b"a"}, complete=False)


def test_a_message_that_appears_twice_is_a_violation() -> None:
    with pytest.raises(Violation, match="twice"):
        LogBelief().check({(0, 0): b"a", (0, 1): b"a"}, complete=False)


def test_an_offset_that_changes_its_message_is_a_violation() -> None:
    belief = LogBelief()
    belief.check({(0, 0): b"a"}, complete=False)
    with pytest.raises(Violation, match="is now"):
        belief.check({(0, 0): b"b"}, complete=False)
