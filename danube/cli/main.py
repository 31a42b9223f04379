"""The ``danube`` command: puts the groups together. Each imports what it needs when it runs."""

from __future__ import annotations

import typer

from danube.cli import (
    broker,
    consume,
    journal,
    produce,
    read,
    sinks,
    subscriptions,
    topics,
    upkeep,
    version,
)
from danube.cli.exits import EXPLANATION
from danube.cli.group import DanubeGroup

app = typer.Typer(
    name="danube",
    cls=DanubeGroup,
    help="Reliable topics for Spark: run a broker, look after topics, produce and consume.",
    epilog=EXPLANATION.replace("\n", " "),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)
app.command("broker")(broker.broker)
app.add_typer(topics.app, name="topics")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(sinks.app, name="sinks")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("read")(read.read)
app.command("verify")(upkeep.verify)
app.command("roll")(upkeep.roll)
app.add_typer(journal.app, name="journal")
app.command("version")(version.version)


def main() -> None:
    """Entry point of the ``danube`` script."""
    app(prog_name="danube")


if __name__ == "__main__":
    main()
