"""``danube verify`` and ``danube roll``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli.exits import Exit
from danube.cli.options import DEFAULT_URL, Output, ServiceUrl, TopicArgument
from danube.cli.output import OutputFormat, note, print_json, print_record
from danube.cli.progress import Progress
from danube.cli.session import DATA_PATIENCE_S, with_client

if TYPE_CHECKING:
    from danube.client.admin import VerifyStep
    from danube.client.client import Client


def verify(
    topic: TopicArgument,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Prove that a topic's log and table agree: every offset once, unchanged, or recorded lost.

    Ends with exit code 1 when it finds something, or could not finish.
    """

    async def run(client: Client) -> tuple[list[VerifyStep], VerifyStep | None]:
        findings, last = [], None
        with Progress(f"verifying {topic}") as progress:
            async for step in client.admin.verify(topic):
                last = step
                progress.add(max(step.messages - progress.messages, 0), 0)
                if step.finding:
                    findings.append(step)
        return findings, last

    findings, last = with_client(service_url, run, patience_s=DATA_PATIENCE_S)
    finished = last is not None and last.finished
    result = {
        "topic": topic,
        "messages": 0 if last is None else last.messages,
        "finished": finished,
        "findings": [step.message for step in findings],
    }
    if output is OutputFormat.JSON:
        print_json(result)
    else:
        for step in findings:
            note(f"finding: {step.message}")
        result["findings"] = len(findings)
        print_record(result, output)
    if findings or not finished:
        raise typer.Exit(Exit.FAILED)


def roll(
    topic: Annotated[str | None, typer.Argument(help="Default: every topic of the broker.")] = None,
    service_url: ServiceUrl = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write everything durable into its Delta table now, and wait for it."""

    async def run(client: Client) -> int:
        return await client.admin.roll(topic)

    messages = with_client(service_url, run, patience_s=DATA_PATIENCE_S)
    print_record({"topic": topic, "messages": messages}, output)
