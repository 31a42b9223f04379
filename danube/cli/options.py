"""Options that several commands share, written once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from danube.cli.output import OutputFormat

SERVICE_URL_VARIABLE: Final = "DANUBE_SERVICE_URL"

ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url",
        "-u",
        envvar=SERVICE_URL_VARIABLE,
        metavar="HOST:PORT",
        help="A broker's address.",
    ),
]
DEFAULT_URL: Final = "127.0.0.1:6650"

Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="A table for people, or JSON for programs."),
]

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic, written /namespace/topic.")
]

_AGO: Final = re.compile(r"^(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)$")
_AGO_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"^(?P<number>\d+)\s*(?P<unit>[kKmMgGtT]?)(?:i?[bB])?$")
_SIZE_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration_ms(text: str) -> int:
    """Milliseconds of ``90s``, ``15m``, ``12h``, ``7d`` or ``250ms``.

    Raises:
        typer.BadParameter: anything else.
    """
    found = _AGO.match(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 12h or 7d")
    return round(float(found["number"]) * _AGO_SECONDS[found["unit"]] * 1000)


def size_bytes(text: str) -> int:
    """Bytes of ``500``, ``64k``, ``10M`` or ``2GiB`` (powers of 1024).

    Raises:
        typer.BadParameter: anything else.
    """
    found = _SIZE.match(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write 500, 64k, 10M or 2G")
    return int(found["number"]) * _SIZE_BYTES[found["unit"].lower()]


def start_position(text: str) -> Any:
    """A start position: ``latest``, ``earliest``, an offset, a time, or a duration ago.

    Raises:
        typer.BadParameter: anything else.
    """
    text = text.strip()
    if text in ("latest", "earliest"):
        return text
    if text.isdecimal():
        return int(text)
    if _AGO.match(text):
        return datetime.now(UTC) - timedelta(milliseconds=duration_ms(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a position; give latest, earliest, an offset, a time such as "
            "2026-01-31T12:00:00Z, or how long ago, such as 15m"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def subscription_kind(text: str) -> Any:
    """``exclusive`` or ``shared``; the others of the wire are refused by the broker for now.

    Raises:
        typer.BadParameter: anything else.
    """
    kind = text.lower().replace("-", "_")
    if kind not in ("exclusive", "shared", "failover", "key_shared"):
        raise typer.BadParameter(f"{text!r} is not a type; use exclusive or shared")
    return kind


def key_values(items: list[str], what: str) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a mapping.

    Raises:
        typer.BadParameter: an item without ``=``, or one name twice.
    """
    found: dict[str, str] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{item!r} is not {what}; write it as name=value")
        if name in found:
            raise typer.BadParameter(f"{what} {name!r} was given twice")
        found[name] = value
    return found
