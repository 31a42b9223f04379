"""``danube sinks``: what exactly-once Spark sinks have decided."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli.options import DEFAULT_URL, Output, ServiceUrl
from danube.cli.output import OutputFormat, note, plain, print_json, print_rows
from danube.cli.session import with_client

if TYPE_CHECKING:
    from danube.client.admin import SinkInfo
    from danube.client.client import Client

app = typer.Typer(help="Look after the exactly-once sinks of Spark queries.", no_args_is_help=True)


@app.command("list")
def list_(service_url: ServiceUrl = DEFAULT_URL, output: Output = OutputFormat.TABLE) -> None:
    """List sinks with the last batch that each has decided."""

    async def run(client: Client) -> list[SinkInfo]:
        return await client.admin.list_sinks()

    rows = [
        {name: plain(value) for name, value in asdict(sink).items()}
        for sink in with_client(service_url, run)
    ]
    columns = ["query_id", "name", "last_batch_id", "finished", "streaming", "decided"]
    print_rows(rows, columns, output, empty="there are no sinks")


@app.command()
def forget(
    query_id: Annotated[str, typer.Argument(help="Of the query, as `sinks list` shows it.")],
    name: Annotated[str, typer.Argument(help="Of the sink.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Drop a sink's record, for a query that starts anew.

    A query that goes on with an old Spark checkpoint may then write batches a second time.
    """
    if not yes:
        typer.confirm(f"Forget what {name} of query {query_id} decided?", abort=True, err=True)

    async def run(client: Client) -> None:
        await client.admin.forget_sink(query_id, name)

    with_client(service_url, run)
    if output is OutputFormat.JSON:
        print_json({"query_id": query_id, "name": name, "forgotten": True})
    else:
        note(f"{name} of query {query_id} is forgotten")
