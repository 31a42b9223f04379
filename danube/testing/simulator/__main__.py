"""Run seeds: ``python -m danube.testing.simulator --seeds 0:200``; replay one: ``--seed N -v``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final

from danube.testing.simulator.journal_run import JournalRun
from danube.testing.simulator.log_run import LogRun

Log = Callable[[str], None]


def _journal(seed: int, log: Log) -> None:
    JournalRun(seed, log).run(steps=250)


def _log(seed: int, log: Log) -> None:
    LogRun(seed, log).run()


SCENARIOS: Final[dict[str, Callable[[int, Log], None]]] = {"journal": _journal, "log": _log}
"""Each takes a seed and where to say what happens, and raises when something does not hold."""


def run_seed(scenario: str, seed: int, log: Log = lambda _: None) -> None:
    """Run one seed of a scenario; raises whatever went wrong."""
    SCENARIOS[scenario](seed, log)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the number of failing seeds, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m danube.testing.simulator", description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="FROM:TO, the second one excluded")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="default: all")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what happens")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else [options.seed]
    log: Log = print if options.verbose else lambda _: None
    # Faults are what we are here for: their warnings are noise.
    logging.getLogger("danube").setLevel(logging.WARNING if options.verbose else logging.CRITICAL)
    failing = 0
    started = time.monotonic()
    for scenario in [options.scenario] if options.scenario else sorted(SCENARIOS):
        for seed in seeds:
            failing += not _passes(scenario, seed, log)
    seconds = time.monotonic() - started
    print(f"{len(seeds)} seeds, {failing} failing, {seconds:.1f} s")
    return min(failing, 100)


def _passes(scenario: str, seed: int, log: Log) -> bool:
    try:
        run_seed(scenario, seed, log)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc(limit=-3)
        print(f"seed {seed} of {scenario} fails; replay it with:", file=sys.stderr)
        print(
            f"  python -m danube.testing.simulator --scenario {scenario} --seed {seed} -v",
            file=sys.stderr,
        )
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
