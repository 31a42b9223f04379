"""``danube subscriptions``: list, describe, create, reset, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli.options import (
    DEFAULT_URL,
    Output,
    ServiceUrl,
    TopicArgument,
    start_position,
    subscription_kind,
)
from danube.cli.output import OutputFormat, note, plain, print_json, print_record, print_rows
from danube.cli.session import with_client

if TYPE_CHECKING:
    from danube.client.admin import SubscriptionInfo
    from danube.client.client import Client

app = typer.Typer(
    help="Look after subscriptions: their cursors, lag and consumers.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its name.")]


@app.command("list")
def list_(
    topic: Annotated[str | None, typer.Argument(help="Only of this topic.")] = None,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List subscriptions with their lag."""

    async def run(client: Client) -> list[SubscriptionInfo]:
        return await client.admin.list_subscriptions(topic)

    rows = [summary_row(info) for info in with_client(service_url, run)]
    columns = ["topic", "subscription", "type", "lag_messages", "lag_seconds", "consumers"]
    print_rows(rows, columns, output, empty="there are no subscriptions")


@app.command()
def describe(
    topic: TopicArgument,
    subscription: NameArgument,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a subscription's cursor, lag and consumers per partition."""

    async def run(client: Client) -> SubscriptionInfo:
        return await find(client, topic, subscription)

    info = with_client(service_url, run)
    partitions = [
        {name: plain(value) for name, value in asdict(each).items()} for each in info.partitions
    ]
    if output is OutputFormat.JSON:
        print_json({**summary_row(info), "partitions": partitions})
        return
    print_record(summary_row(info), output)
    columns = ["partition", "cursor", "acked_above", "unacked", "lag_messages", "lag_seconds"]
    print_rows([*partitions], [*columns, "generation", "consumers"], output, empty="no partitions")


@app.command()
def create(
    topic: TopicArgument,
    subscription: NameArgument,
    type_: Annotated[
        str, typer.Option("--type", metavar="exclusive|shared", help="How it is handed out.")
    ] = "shared",
    start: Annotated[
        str, typer.Option(help="latest, earliest, an offset, a time, or 15m (ago).")
    ] = "latest",
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a subscription before its first consumer comes."""
    position, kind = start_position(start), subscription_kind(type_)

    async def run(client: Client) -> None:
        await client.admin.create_subscription(topic, subscription, type=kind, start=position)

    with_client(service_url, run)
    _done(f"{subscription} on {topic} is created", topic, subscription, "created", output)


@app.command()
def reset(
    topic: TopicArgument,
    subscription: NameArgument,
    to: Annotated[
        str, typer.Option("--to", help="latest, earliest, an offset, a time, or 15m (ago).")
    ],
    partition: Annotated[
        list[int] | None, typer.Option(help="Only this one; may be given again.")
    ] = None,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Put a subscription's cursors elsewhere, for reading again or for skipping."""
    position = start_position(to)

    async def run(client: Client) -> None:
        await client.admin.reset_subscription(
            topic, subscription, position, partitions=partition or ()
        )

    with_client(service_url, run)
    _done(f"{subscription} on {topic} is at {to}", topic, subscription, "reset", output)


@app.command()
def delete(
    topic: TopicArgument,
    subscription: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a subscription with its cursors."""
    if not yes:
        typer.confirm(f"Delete {subscription} on {topic}?", abort=True, err=True)

    async def run(client: Client) -> None:
        await client.admin.delete_subscription(topic, subscription)

    with_client(service_url, run)
    _done(f"{subscription} on {topic} is deleted", topic, subscription, "deleted", output)


async def find(client: Client, topic: str, subscription: str) -> SubscriptionInfo:
    """One subscription.

    Raises:
        TopicNotFound, SubscriptionNotFound: there is none.
    """
    from danube.core.errors import SubscriptionNotFound

    found = await client.admin.list_subscriptions(topic)
    for info in found:
        if info.name == subscription:
            return info
    names = ", ".join(info.name for info in found) or "none"
    raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}; it has: {names}")


def summary_row(info: SubscriptionInfo) -> dict[str, Any]:
    """A subscription over all its partitions."""
    return {
        "topic": info.topic,
        "subscription": info.name,
        "type": info.kind,
        "lag_messages": info.lag_messages,
        "lag_seconds": max((each.lag_seconds for each in info.partitions), default=0.0),
        "unacked": sum(each.unacked for each in info.partitions),
        "consumers": sorted({name for each in info.partitions for name in each.consumers}),
    }


def _done(text: str, topic: str, name: str, what: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"topic": topic, "subscription": name, what: True})
    else:
        note(text)
