"""``python -m danube.testing.demo``: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from danube.core.errors import DanubeError
from danube.testing.demo.run import Demo
from danube.testing.demo.screen import console
from danube.testing.demo.summary import print_next, print_summary


def main() -> int:
    """Run the demo; 0 if everything came out as pandas says."""
    parser = argparse.ArgumentParser(prog="python -m danube.testing.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the broker running (or KEEP=1)")
    parser.add_argument("--work-dir", type=Path, default=Path(".cache/demo"), help="emptied first")
    arguments = parser.parse_args()
    keep = arguments.keep or os.environ.get("KEEP", "0") not in ("", "0")
    signal.signal(signal.SIGTERM, _interrupt)
    demo = Demo(arguments.work_dir, keep=keep)
    try:
        outcome = demo.run()
    except KeyboardInterrupt:
        print("stopped; nothing is left running", file=sys.stderr)
        return 130
    except (RuntimeError, DanubeError) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    screen = console()
    print_summary(outcome, screen, demo.work_dir)
    if keep and outcome.passed:
        pid = int((demo.work_dir / "broker.pid").read_text())
        print_next(screen, demo.broker.url, pid, outcome.tables)
    return 0 if outcome.passed else 1


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
