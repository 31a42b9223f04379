"""``danube topics``: create, list, describe, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli.options import (
    DEFAULT_URL,
    Output,
    ServiceUrl,
    TopicArgument,
    duration_ms,
    size_bytes,
)
from danube.cli.output import OutputFormat, note, plain, print_json, print_record, print_rows
from danube.cli.session import with_client

if TYPE_CHECKING:
    from danube.client.admin import TopicDescription, TopicInfo
    from danube.client.client import Client

app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, help="0: not partitioned.")
    ] = 0,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic of that name is fine.")
    ] = False,
    durability: Annotated[
        str, typer.Option(metavar="disk", help="What an acknowledgement means.")
    ] = "disk",
    max_message: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest message, e.g. 8M.")
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Remove what is older, e.g. 30d; default: keep."),
    ] = None,
    retention_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove the oldest above it, e.g. 100G.")
    ] = None,
    retention_until_acked: Annotated[
        bool,
        typer.Option(
            "--retention-until-acked", help="Remove what every subscription acknowledged."
        ),
    ] = False,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a topic; its namespace is created with it."""
    options: dict[str, Any] = {
        "partitions": partitions,
        "durability": durability,
        "max_message_bytes": 0 if max_message is None else size_bytes(max_message),
        "retention_ms": None if retention is None else duration_ms(retention),
        "retention_bytes": None if retention_size is None else size_bytes(retention_size),
        "retention_until_acked": retention_until_acked,
        "if_not_exists": if_not_exists,
    }

    async def run(client: Client) -> tuple[str, bool]:
        return await client.admin.create_topic(topic, **options)

    topic_id, created = with_client(service_url, run)
    print_record({"topic": topic, "topic_id": topic_id, "created": created}, output)


@app.command("list")
def list_(
    namespace: Annotated[str | None, typer.Argument(help="Only of this namespace.")] = None,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List topics."""

    async def run(client: Client) -> list[TopicInfo]:
        return await client.admin.list_topics(namespace.strip("/") if namespace else None)

    columns = ["topic", "partitions", "durability", "created", "topic_id"]
    rows = [topic_row(info) for info in with_client(service_url, run)]
    print_rows(rows, columns, output, empty="there are no topics; `danube topics create` makes one")


@app.command()
def describe(
    topic: TopicArgument,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a topic's offsets, table, retention and subscriptions."""

    async def run(client: Client) -> TopicDescription:
        return await client.admin.describe_topic(topic)

    found = with_client(service_url, run)
    record, partitions = description_record(found), partition_rows(found)
    if output is OutputFormat.JSON:
        print_json({**record, "partition_offsets": partitions})
        return
    print_record(record, output)
    columns = ["partition", "log_start", "rolled", "durable", "messages", "lost", "broker"]
    print_rows(partitions, columns, output, empty="no partition has an owner at present")


@app.command()
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    topic_id: Annotated[
        str, typer.Option(help="Only if the name still belongs to this topic.")
    ] = "",
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a topic with its messages, its subscriptions and its table."""
    if not yes:
        typer.confirm(f"Delete {topic} and every message in it?", abort=True, err=True)

    async def run(client: Client) -> None:
        await client.admin.delete_topic(topic, topic_id=topic_id)

    with_client(service_url, run)
    if output is OutputFormat.JSON:
        print_json({"topic": topic, "deleted": True})
    else:
        note(f"{topic} is deleted")


def topic_row(info: TopicInfo) -> dict[str, Any]:
    """A topic of a listing."""
    row = {name: plain(value) for name, value in asdict(info).items()}
    return {"topic": row.pop("name"), **row}


def description_record(found: TopicDescription) -> dict[str, Any]:
    """A topic without its partitions."""
    return {
        **topic_row(found.info),
        "max_message_bytes": found.max_message_bytes,
        "retention_ms": found.retention_ms,
        "retention_bytes": found.retention_bytes,
        "retention_until_acked": found.retention_until_acked,
        "subscriptions": list(found.subscriptions),
        "table_uri": found.table_uri or None,
        "table_version": found.table_version if found.table_uri else None,
    }


def partition_rows(found: TopicDescription) -> list[dict[str, Any]]:
    """Offsets per partition. Lost ranges are not messages."""
    rows = []
    for view in found.partitions:
        lost = [(max(each.start, view.log_start_offset), each.end) for each in view.lost]
        lost_messages = sum(max(end - start, 0) for start, end in lost)
        rows.append(
            {
                "partition": view.partition,
                "log_start": view.log_start_offset,
                "rolled": view.rolled_offset,
                "durable": view.durable_offset,
                "messages": view.durable_offset - view.log_start_offset - lost_messages,
                "lost": [f"[{each.start}, {each.end})" for each in view.lost],
                "broker": view.broker_url,
            }
        )
    return rows
