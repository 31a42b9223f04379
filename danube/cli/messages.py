"""How messages are printed: values line by line, or JSON lines with everything about them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from danube.cli.output import OutputFormat, bytes_fields, bytes_text, moment, print_json

if TYPE_CHECKING:
    from danube.client.messages import Message


def print_message(message: Message, output: OutputFormat, *, metadata: bool = False) -> None:
    """One message on one line.

    Args:
        message: what to print.
        output: JSON holds everything; a table is the value alone, escaped where it would not be
            one line.
        metadata: put partition, offset, time and key in front of the value.
    """
    if output is OutputFormat.JSON:
        print_json(message_record(message))
        return
    text = bytes_text(message.value)
    if metadata:
        when = moment(message.timestamp_us)
        text = f"{message.partition}:{message.offset}\t{when}\t{bytes_text(message.key)}\t{text}"
    sys.stdout.write(text + "\n")


def message_record(message: Message) -> dict[str, Any]:
    """A message as JSON; ``danube produce --json-lines`` takes it back."""
    record: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": moment(message.timestamp_us),
        "producer": message.producer,
    }
    record |= bytes_fields("key", message.key)
    record |= bytes_fields("value", message.value)
    if message.attributes:
        record["attributes"] = message.attributes
    if message.redelivery_count:
        record["redelivery_count"] = message.redelivery_count
    return record
