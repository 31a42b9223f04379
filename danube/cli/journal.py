"""``danube journal``: print a journal for people and programs, and repair a damaged one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli.exits import Exit
from danube.cli.options import Output
from danube.cli.output import OutputFormat, note, plain, print_json

if TYPE_CHECKING:
    from danube.journal.repair import RepairReport

app = typer.Typer(
    help="Look into a broker's journal, or repair a damaged one.", no_args_is_help=True
)

Directory = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The broker's data directory, or its journal."),
]


@app.command()
def dump(
    directory: Directory,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Only what is damaged; exit code 7 if there is any.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print every segment, flush and entry, good or bad. Reads only.

    A journal that a broker is writing may show its newest flush as damaged.
    """
    from danube.journal.dump import dump as dump_journal
    from danube.journal.dump import journal_directory

    found = 0
    for line in dump_journal(journal_directory(directory)):
        found += line.what == "damaged"
        if damaged and line.what != "damaged":
            continue
        if output is OutputFormat.JSON:
            place = {"what": line.what, "segment": line.segment, "at": line.at, "text": line.text}
            print_json({**place, **plain(line.fields)})
        else:
            sys.stdout.write(f"{line}\n")
    if damaged and found:
        raise typer.Exit(Exit.DAMAGED)


@app.command()
def repair(
    directory: Directory,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")
    ] = False,
    broker_id: Annotated[
        str, typer.Option(help="Whose journal it is, where nothing in it says so any more.")
    ] = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set damaged bytes aside, so that the broker starts again.

    Copies of the damaged files go to the directory `quarantine`; messages that may be lost are
    recorded as lost ranges when the broker starts. A journal that is whole is left as it is.
    """
    from danube.journal.dump import journal_directory
    from danube.journal.repair import repair as repair_journal

    report = repair_journal(journal_directory(directory), dry_run=dry_run, broker_id=broker_id)
    if output is OutputFormat.JSON:
        print_json(report_record(report))
    else:
        _tell(report)


def report_record(report: RepairReport) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "was_whole": report.was_whole,
        "dry_run": report.dry_run,
        "places": [
            {"segment": each.segment, "start": each.start, "end": each.end, "what": each.what}
            for each in report.places
        ],
        "lost": [
            {
                "topic_id": each.topic_id.hex(),
                "partition": each.partition,
                "start": each.start,
                "end": each.end,
            }
            for each in report.lost
        ],
        "unproved": report.unproved,
        "quarantined": [str(path) for path in report.quarantined],
    }


def _tell(report: RepairReport) -> None:
    if report.was_whole:
        note("the journal is whole; nothing was changed")
        return
    for place in report.places:
        sys.stdout.write(f"segment {place.segment}, {place.start}-{place.end}: {place.what}\n")
    for loss in report.lost:
        sys.stdout.write(
            f"may be lost: offsets [{loss.start}, {loss.end}) of partition {loss.partition} of "
            f"topic {loss.topic_id.hex()}\n"
        )
    if report.unproved:
        sys.stdout.write(
            "newest messages may be missing without a trace: every partition will go on above "
            "its offset ceiling\n"
        )
    for path in report.quarantined:
        sys.stdout.write(f"kept as it was: {path}\n")
    note("nothing was changed (--dry-run)" if report.dry_run else "repaired; start the broker")
