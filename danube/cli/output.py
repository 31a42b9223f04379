"""What commands print: tables for people, JSON for programs; results to stdout, the rest to stderr.

With ``--output json`` stdout holds nothing but JSON: one object, or one object per line where a
command prints many things. Bytes that are UTF-8 become text under their own name, others base64
under ``<name>_base64``.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

Row = Mapping[str, Any]

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class OutputFormat(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def print_rows(
    rows: Iterable[Row], columns: Sequence[str], output: OutputFormat, *, empty: str
) -> None:
    """Many things of one kind: a table with ``columns``, or one JSON object per line.

    Args:
        rows: values by name; JSON prints all of them, the table the columns.
        columns: names of the columns, in order; ``_`` is shown as a space.
        output: which of the two.
        empty: what a person is told on stderr when there are none.
    """
    if output is OutputFormat.JSON:
        for row in rows:
            print_json(row)
        return
    listed = list(rows)
    if not listed:
        note(empty)
        return
    _print_table(listed, columns)


def print_record(record: Row, output: OutputFormat) -> None:
    """One thing: a line per value, or one JSON object."""
    if output is OutputFormat.JSON:
        print_json(record)
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        sys.stdout.write(f"{name.replace('_', ' '):<{width}}  {shown(value)}\n")


def _print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(
            name.replace("_", " "), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(shown(row.get(name))) for name in columns))
    console().print(table)


def console(*, stderr: bool = False) -> Any:
    """A rich console. A pipe gets wide lines: a table that was cut could not be searched."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 240, highlight=False)


def note(text: str) -> None:
    """Something a person wants to know that is not the result."""
    sys.stderr.write(text + "\n")


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: times as ISO 8601, anything unknown as text."""
    match value:
        case None | str() | int() | float():
            return value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case _:
            return str(value)


def shown(value: Any) -> str:
    """A value as a person reads it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.1f}"
        case int():
            return f"{value:,}".replace(",", "\u2009") if abs(value) >= 10_000 else str(value)
        case list() | tuple():
            return ", ".join(map(shown, value)) or "-"
        case dict():
            return ", ".join(f"{key}={shown(item)}" for key, item in value.items()) or "-"
        case _:
            return str(value)


def bytes_fields(name: str, value: bytes | None) -> dict[str, Any]:
    """``value`` as JSON: text under ``name`` where it is UTF-8, else base64 under another name."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def bytes_text(value: bytes | None) -> str:
    """``value`` for a person: text, or Python's escapes where it is not UTF-8."""
    if value is None:
        return ""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return repr(value)[2:-1]
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def size(count: float) -> str:
    """Bytes with a unit a person can take in."""
    for unit in UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"


def moment(microseconds: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return str(plain(datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)))
