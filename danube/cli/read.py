"""``danube read``: messages by offset, without a subscription."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli.messages import print_message
from danube.cli.options import DEFAULT_URL, Output, ServiceUrl, TopicArgument, start_position
from danube.cli.output import OutputFormat
from danube.cli.progress import Progress
from danube.cli.session import DATA_PATIENCE_S, with_client

if TYPE_CHECKING:
    from danube.client.client import Client


def read(
    topic: TopicArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: all, one by one.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="earliest, latest, an offset, a time, or 15m (ago).")
    ] = "earliest",
    end: Annotated[
        int | None, typer.Option(min=0, help="Offset to stop before; default: the present end.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is published, until Ctrl-C.")
    ] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Step over recorded lost ranges.")
    ] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", "-m", help="Print partition:offset, time and key too.")
    ] = False,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print messages by offset. Nothing is acknowledged, no subscription is made."""
    if follow and end is not None:
        raise typer.BadParameter("give either --end or --follow, not both")
    position = start_position(start)

    async def run(client: Client) -> None:
        left = count
        async with client.reader(
            topic, partition=partition, start=position, end=end, follow=follow, skip_lost=skip_lost
        ) as reader:
            with Progress(f"reading {topic}", count, quiet=sys.stdout.isatty()) as progress:
                async for batch in reader:
                    for message in batch:
                        print_message(message, output, metadata=metadata)
                        left = None if left is None else left - 1
                        if left == 0:
                            return
                    if follow:
                        sys.stdout.flush()
                    progress.add(len(batch), sum(map(len, batch.values)))

    with_client(service_url, run, patience_s=DATA_PATIENCE_S)
