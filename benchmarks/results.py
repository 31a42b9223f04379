"""What a benchmark found: rows with their figures, the table at the end, the JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_THOUSANDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured quantity: its median and every repetition.

    ``unit`` is written behind the number. A rate ends with ``/s``.
    """

    unit: str
    samples: tuple[float, ...]

    @classmethod
    def of(cls, unit: str, samples: Iterable[float]) -> Figure:
        """A figure from its repetitions, at least one."""
        return cls(unit, tuple(samples))

    @property
    def value(self) -> float:
        """The median."""
        return median(self.samples)

    def __str__(self) -> str:
        value = self.value
        for size, letter in _THOUSANDS:
            if value >= size:
                return f"{value / size:.3g} {letter}{self.unit}"
        return f"{value:.3g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Setup:
    """What was run, for whoever wants to judge a row or repeat it."""

    payload: str
    batch: str
    durability: str
    client: str
    peer: str

    def __str__(self) -> str:
        return " · ".join(f"{name}: {value}" for name, value in asdict(self).items() if value)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer.

    Attributes:
        question: the benchmark's name.
        what: what was measured.
        ours: our figure.
        peer: that of what it is compared with.
        ratio: ours to the peer's (of times too: below 1 is faster then).
        setup: what was run.
        target: what the ratio should be, as text; a goal has no verdict.
        met: whether it is; None for a goal.
        note: anything that was measured beside it.
    """

    question: str
    what: str
    ours: Figure
    peer: Figure
    ratio: float
    setup: Setup
    target: str = ""
    met: bool | None = None
    note: str = ""


def compared(
    question: str,
    what: str,
    ours: Figure,
    peer: Figure,
    setup: Setup,
    *,
    at_least: float | None = None,
    goal: str = "",
    note: str = "",
) -> Row:
    """A row for rates: the ratio of the medians, and whether it is at least what it should be."""
    ratio = ours.value / peer.value
    target = goal if at_least is None else f"≥ {at_least:g}"
    met = None if at_least is None else ratio >= at_least
    return Row(question, what, ours, peer, ratio, setup, target, met, note)


@dataclass(slots=True)
class Report:
    """Everything that one ``make bench`` found."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def write_json(self, path: Path) -> None:
        """Write everything, with every repetition, to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {**asdict(row), "ours": _plain(row.ours), "peer": _plain(row.peer)} for row in self.rows
        ]
        whole = {
            "machine": self.machine,
            "seconds": self.seconds,
            "rows": rows,
            "failures": self.failures,
        }
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        """Print the table, what each row ran, and what failed."""
        console.print(_table(self.rows))
        for question in dict.fromkeys(row.question for row in self.rows):
            console.print(f"\n[bold]{question}[/]")
            for row in self.rows:
                if row.question == question:
                    _print_setup(console, row)
        for name, reason in self.failures.items():
            console.print(f"[red]{name} did not finish:[/] {reason}", highlight=False)


def _plain(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "unit": figure.unit, "samples": list(figure.samples)}


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    for name in ("ours", "beside it", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("target")
    table.add_column("")
    for row in rows:
        verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
        table.add_row(
            row.what, str(row.ours), str(row.peer), f"{row.ratio:.2f}", row.target, verdict
        )
    return table


def _print_setup(console: Console, row: Row) -> None:
    text = f"  {row.what}: {row.setup}"
    if row.note:
        text += f" · {row.note}"
    console.print(text, highlight=False, style="dim", soft_wrap=True)
