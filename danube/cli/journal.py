"""``danube journal``: print a journal for people, and repair a damaged one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from danube.cli.options import Output
from danube.cli.output import OutputFormat

app = typer.Typer(
    help="Look into a journal, or repair a damaged one, while no broker uses it.",
    no_args_is_help=True,
)

DataDir = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The broker's data directory, or its journal directory."),
]


@app.command()
def dump(directory: DataDir, output: Output = OutputFormat.TABLE) -> None:
    """Print every flush and entry."""
    raise NotImplementedError


@app.command()
def repair(directory: DataDir, output: Output = OutputFormat.TABLE) -> None:
    """Quarantine what is damaged."""
    raise NotImplementedError
