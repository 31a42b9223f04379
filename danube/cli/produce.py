"""``danube produce``: publish an argument, lines, or JSON lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli import inputs
from danube.cli.ahead import chunks
from danube.cli.inputs import Outgoing
from danube.cli.options import DEFAULT_URL, Output, ServiceUrl, TopicArgument, key_values
from danube.cli.output import OutputFormat, print_record
from danube.cli.progress import Progress
from danube.cli.session import DATA_PATIENCE_S, with_client

if TYPE_CHECKING:
    from danube.client.client import Client
    from danube.client.messages import MessageRange

CHUNK_MESSAGES: Final = 2_000
CHUNK_BYTES: Final = 4 * 1024 * 1024


def produce(
    topic: TopicArgument,
    message: Annotated[
        str | None, typer.Argument(help="One message; without it, one per line of stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Key of every message that brings none of its own.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="Of the one message."),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Instead of the key's.")] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help='Lines are {"value": …, "key": …, "attributes": {…}}; value_base64 for bytes.',
        ),
    ] = False,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Publish messages to a topic, each durable when this ends with exit code 0.

    Examples: danube produce /default/events hello — seq 1000 | danube produce /default/events —
    danube read /default/events -o json | danube produce --json-lines /default/copy
    """
    attributes = key_values(attribute or [], "an attribute")
    key_bytes = None if key is None else key.encode()
    if message is None and attributes:
        raise typer.BadParameter("--attribute goes with a message; JSON lines bring their own")
    if message is not None and json_lines:
        raise typer.BadParameter("give either a message or --json-lines, not both")
    outgoing: Iterator[Outgoing]
    if message is not None:
        outgoing = iter([Outgoing(message.encode(), key_bytes, attributes or None)])
    elif json_lines:
        outgoing = inputs.json_lines(sys.stdin.buffer, key_bytes)
    else:
        outgoing = inputs.plain(sys.stdin.buffer, key_bytes)

    async def run(client: Client) -> dict[str, Any]:
        return await _publish(client, topic, outgoing, partition)

    print_record(with_client(service_url, run, patience_s=DATA_PATIENCE_S), output)


async def _publish(
    client: Client, topic: str, outgoing: Iterator[Outgoing], partition: int | None
) -> dict[str, Any]:
    ranges: dict[int, list[int]] = {}
    async with client.producer(topic) as producer:
        with Progress(f"publishing to {topic}") as progress:
            # Waiting for input takes as long as somebody types: not in the event loop.
            arriving = chunks(outgoing, max_messages=CHUNK_MESSAGES, max_bytes=CHUNK_BYTES)
            while chunk := await asyncio.to_thread(next, arriving, None):
                for sent in await producer.send_batch(_records(chunk), partition=partition):
                    _merge(ranges, sent)
                progress.add(len(chunk), sum(len(item.value) for item in chunk))
    return {
        "topic": topic,
        "messages": progress.messages,
        "bytes": progress.bytes,
        "seconds": round(progress.seconds, 3),
        "offsets": {str(number): f"{low}-{high - 1}" for number, (low, high) in _sorted(ranges)},
    }


def _records(chunk: list[Outgoing]) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {"value": pa.array([item.value for item in chunk], pa.binary())}
    if any(item.key is not None for item in chunk):
        columns["key"] = pa.array([item.key for item in chunk], pa.binary())
    if any(item.attributes for item in chunk):
        pairs = [None if item.attributes is None else [*item.attributes.items()] for item in chunk]
        columns["attributes"] = pa.array(pairs, pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict(columns)


def _merge(ranges: dict[int, list[int]], sent: MessageRange) -> None:
    found = ranges.setdefault(sent.partition, [sent.start, sent.end])
    found[0], found[1] = min(found[0], sent.start), max(found[1], sent.end)


def _sorted(ranges: dict[int, list[int]]) -> list[tuple[int, list[int]]]:
    return sorted(ranges.items())
