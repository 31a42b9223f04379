"""``python -m benchmarks [names…]``: ask the questions, print one table, write a JSON file."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.console import Console

from benchmarks.bench import Bench, Sizes
from benchmarks.measure import Stopwatch
from benchmarks.questions import QUESTIONS, Question
from benchmarks.results import Report

SCRATCH: Final = Path(".cache/benchmarks")
SHARED_CORES: Final = "client, broker and peers are processes of one machine and share its {} cores"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if a question did not finish. A missed target is no failure: machines differ."""
    options = _parser().parse_args(arguments)
    console = Console()
    if options.list:
        for question in QUESTIONS:
            print(f"{question.name:18} {question.asks}")
        return 0
    try:
        sizes = _sizes(options)
        chosen = _chosen(options.names)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    report = _ask(chosen, sizes, options.directory, console)
    console.print(
        f"\n{SHARED_CORES.format(report.machine['cores'])}; medians of "
        f"{sizes.repetitions} turns after {sizes.warmups} to warm up",
        highlight=False,
    )
    report.print(console)
    report.write_json(options.json)
    console.print(f"\nevery repetition is in {options.json}", highlight=False)
    return 1 if report.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="questions (default: all)")
    parser.add_argument("--list", action="store_true", help="print the questions and end")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SIZE=VALUE",
        help=f"one of {', '.join(Sizes.__dataclass_fields__)}",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=SCRATCH,
        help="where data is written while running; it must be on a real disk",
    )
    parser.add_argument(
        "--json", type=Path, default=SCRATCH / "results.json", help="where to write the results"
    )
    return parser


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = Sizes().quick() if options.quick else Sizes()
    changes = dict(item.partition("=")[::2] for item in options.set)
    return sizes.changed(changes)


def _chosen(names: Sequence[str]) -> list[Question]:
    unknown = set(names) - {question.name for question in QUESTIONS}
    if unknown:
        known = ", ".join(question.name for question in QUESTIONS)
        raise ValueError(f"no question {', '.join(sorted(unknown))}; there are {known}")
    return [question for question in QUESTIONS if not names or question.name in names]


def _ask(questions: Sequence[Question], sizes: Sizes, directory: Path, console: Console) -> Report:
    report = Report(_machine(directory))
    directory.mkdir(parents=True, exist_ok=True)
    for question in questions:
        console.print(f"[bold]{question.name}[/]: {question.asks}", highlight=False)
        watch = Stopwatch()
        scratch = Path(tempfile.mkdtemp(prefix=f"{question.name}-", dir=directory.resolve()))
        bench = Bench(question.name, sizes, scratch, console)
        try:
            for row in question.run(bench):
                report.rows.append(row)
                bench.say(f"{row.what}: {row.ours} beside {row.peer}, ratio {row.ratio:.2f}")
        except Exception as error:
            traceback.print_exc()
            report.failures[question.name] = f"{type(error).__name__}: {error}"
        finally:
            bench.close()
        report.seconds[question.name] = round(watch.seconds, 1)
    return report


def _machine(directory: Path) -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "shared": SHARED_CORES.format(len(os.sched_getaffinity(0))),
    }


if __name__ == "__main__":
    sys.exit(main())
