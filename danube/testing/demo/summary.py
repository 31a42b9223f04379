"""The demo's last words: what came out, how fast, what was killed when, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from danube.testing.demo.run import Outcome


def print_summary(outcome: Outcome, console: Console, work_dir: Path) -> None:
    """Print what happened."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(outcome):
        table.add_row(Text(name), Text(text))
    console.print()
    console.print(table)
    for name, passed, note in outcome.checks:
        mark = "[green]✓[/green]" if passed else "[bold red]✗[/bold red]"
        console.print(mark, Text(name))
        if note:
            console.print(f"  {note}", style="red", markup=False)
    verdict = "nothing was lost" if outcome.passed else "SOMETHING IS WRONG"
    style = "bold green" if outcome.passed else "bold red"
    console.print(
        f"\n{verdict} · {outcome.seconds:.0f} s · everything lies in {work_dir}", style=style
    )


def rows(outcome: Outcome) -> list[tuple[str, str]]:
    """The summary's lines, as name and text."""
    steady_s = outcome.publish_busy_s - outcome.longest_step_s
    lines = [
        (
            "publishing",
            f"{outcome.published:,} flights, {_rate(outcome.published, steady_s)} while it was not "
            f"waiting on purpose; the step with the restart took {outcome.longest_step_s:.1f} s",
        ),
        (
            "streaming query",
            f"{outcome.rows_in:,} rows in {outcome.batches} batches, "
            f"{_rate(outcome.rows_in, outcome.query_busy_s)} while busy; "
            f"{outcome.windows:,} windows closed",
        ),
        (
            "late desk",
            f"{outcome.late:,} flights more than two hours late; {outcome.doubles:,} came twice "
            "and were told apart by their offsets",
        ),
    ]
    lines += [
        (
            f"lag of {lag['subscription']}",
            f"{lag['messages']:,} messages, {lag['seconds']:.1f} s at the end ({lag['type']})",
        )
        for lag in outcome.lags
    ]
    lines += [(f"at {second:.1f} s", text) for second, text in outcome.events]
    lines += [(f"table of {topic}", uri) for topic, uri in outcome.tables.items()]
    return lines


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds else "-"


def print_next(console: Console, url: str, pid: int, tables: dict[str, str]) -> None:
    """What to try while the broker is kept."""
    table = next(iter(tables.values()), "")
    console.print(
        f"""
The broker is still up on {url} (process {pid}). Try, after
  export DANUBE_SERVICE_URL={url}; source .venv/bin/activate

  danube topics describe /demo/flights
  danube read /demo/delays --count 5 --metadata
  danube consume /demo/flights --subscription mine --start earliest --count 5 --output json
  danube produce /demo/flights '{{"origin": "JFK"}}' --key N1
  python -c "import deltalake; print(deltalake.DeltaTable('{table}').to_pandas().head())"

and stop it with
  kill {pid}""",
        markup=False,
    )
