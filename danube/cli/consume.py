"""``danube consume``: receive a subscription's messages and acknowledge what was printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli.messages import print_message
from danube.cli.options import (
    DEFAULT_URL,
    Output,
    ServiceUrl,
    TopicArgument,
    start_position,
    subscription_kind,
)
from danube.cli.output import OutputFormat
from danube.cli.progress import Progress
from danube.cli.session import DATA_PATIENCE_S, with_client

if TYPE_CHECKING:
    from danube.client.client import Client
    from danube.client.consumer import Consumer


def consume(
    topic: TopicArgument,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", help="Its name; created when it does not exist.")
    ],
    type_: Annotated[
        str, typer.Option("--type", metavar="exclusive|shared", help="How it is handed out.")
    ] = "shared",
    start: Annotated[
        str,
        typer.Option(help="Of a new subscription: latest, earliest, an offset, a time, 15m (ago)."),
    ] = "latest",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")
    ] = None,
    idle_s: Annotated[
        float | None,
        typer.Option(
            "--idle", min=0.0, metavar="SECONDS", help="End when nothing came for so long."
        ),
    ] = None,
    ack: Annotated[
        bool, typer.Option(help="Acknowledge what was printed; without, it will come again.")
    ] = True,
    metadata: Annotated[
        bool, typer.Option("--metadata", "-m", help="Print partition:offset, time and key too.")
    ] = False,
    consumer_name: Annotated[str | None, typer.Option(help="Default: made up.")] = None,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Receive messages of a subscription, print them, and acknowledge them.

    Runs until Ctrl-C, --count or --idle. Messages are acknowledged after they were printed: each
    is printed at least once.
    """
    position, kind = start_position(start), subscription_kind(type_)

    async def run(client: Client) -> None:
        async with client.subscribe(
            topic, subscription, type=kind, start=position, consumer_name=consumer_name
        ) as consumer:
            await _receive(consumer, count, idle_s, ack, metadata, output)

    with_client(service_url, run, patience_s=DATA_PATIENCE_S)


async def _receive(
    consumer: Consumer,
    count: int | None,
    idle_s: float | None,
    ack: bool,
    metadata: bool,
    output: OutputFormat,
) -> None:
    left = count
    # Messages scrolling by are progress enough.
    with Progress(f"consuming {consumer.topic.name}", count, quiet=sys.stdout.isatty()) as progress:
        while left is None or left > 0:
            batch = await consumer.receive_batch(left, timeout_s=idle_s)
            if not len(batch):
                return
            for message in batch:
                print_message(message, output, metadata=metadata)
            sys.stdout.flush()
            if ack:
                await batch.ack()
            progress.add(len(batch), sum(map(len, batch.values)))
            left = None if left is None else left - len(batch)
