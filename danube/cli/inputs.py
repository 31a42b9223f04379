"""What ``danube produce`` reads: an argument, lines, or JSON lines. Pure; bounded line by line."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from danube.core.errors import InvalidRequest
from danube.core.limits import MIB

MAX_LINE_BYTES: Final = 64 * MIB
"""Longest line that is read; a longer one is not a message of any topic."""

FIELDS: Final = frozenset(
    {"value", "value_base64", "key", "key_base64", "attributes"}
    # What `danube read --output json` adds; ignored, so that its output can be produced again.
    | {"topic", "partition", "offset", "timestamp", "append_time", "producer", "redelivery_count"}
)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to publish."""

    value: bytes
    key: bytes | None = None
    attributes: dict[str, str] | None = None


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of ``stream`` without their ends.

    Raises:
        InvalidRequest: a line is longer than :data:`MAX_LINE_BYTES`.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 2):
        number += 1
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > MAX_LINE_BYTES:
            raise InvalidRequest(
                f"line {number} is longer than {MAX_LINE_BYTES // MIB} MiB; send it as a file of "
                "its own format, not as one message"
            )
        yield line


def plain(stream: BinaryIO, key: bytes | None) -> Iterator[Outgoing]:
    """One message per line, all with ``key``."""
    return (Outgoing(line, key) for line in lines(stream))


def json_lines(stream: BinaryIO, key: bytes | None) -> Iterator[Outgoing]:
    """One message per line, each a JSON object; empty lines are skipped.

    ``value`` is taken as it is when it is text and as compact JSON otherwise, ``value_base64`` is
    for other bytes; ``key`` or ``key_base64`` and ``attributes`` may be absent.

    Raises:
        InvalidRequest: a line is not such an object; the message has its number.
    """
    for number, line in enumerate(lines(stream), 1):
        if line.strip():
            try:
                yield _parse(line, key)
            except ValueError as error:
                raise InvalidRequest(f"line {number}: {error}") from None


def _parse(line: bytes, key: bytes | None) -> Outgoing:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(item, dict):
        raise ValueError('not a JSON object; write {"value": …, "key": …, "attributes": {…}}')
    unknown = sorted(item.keys() - FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; there are value, key, attributes")
    value = _bytes(item, "value")
    if value is None:
        raise ValueError('no value; give "value" or "value_base64"')
    own_key = _bytes(item, "key")
    return Outgoing(value, key if own_key is None else own_key, _attributes(item.get("attributes")))


def _bytes(item: dict[str, Any], name: str) -> bytes | None:
    encoded = item.get(f"{name}_base64")
    if encoded is not None:
        if item.get(name) is not None:
            raise ValueError(f"both {name} and {name}_base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"{name}_base64 is not base64") from None
    found = item.get(name)
    if found is None:
        return None
    if isinstance(found, str):
        return found.encode()
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def _attributes(found: Any) -> dict[str, str] | None:
    if found is None:
        return None
    if isinstance(found, dict) and all(isinstance(text, str) for text in found.values()):
        return found or None
    raise ValueError("attributes are not an object of texts")
