"""What must come out, computed by pandas from the CSV alone, and the comparison with what did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from danube.testing.demo.flights import LATE_MINUTES


class Window(NamedTuple):
    """Departures of one airport in one hour. Minutes are whole, so sums compare exactly."""

    hour: str
    origin: str
    flights: int
    departed: int
    total_delay_minutes: int
    worst_delay_minutes: int | None


class LateFlight(NamedTuple):
    """A flight more than two hours late."""

    time_hour: str
    carrier: str
    flight: int
    tailnum: str | None
    dep_delay: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How what came out differs from what was expected.

    Attributes:
        missing: expected and not there.
        surplus: there (or there once more) and not expected.
        examples: a few of both, as text.
    """

    missing: int
    surplus: int
    examples: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.surplus)


def windows(flights: pa.Table) -> list[Window]:
    """Departures per origin and hour, by pandas."""
    frame = flights.select(["time_hour", "origin", "dep_delay"]).to_pandas()
    grouped = frame.groupby(["time_hour", "origin"])["dep_delay"]
    result = grouped.agg(flights="size", departed="count", total="sum", worst="max").reset_index()
    return [
        Window(
            row.time_hour.strftime("%Y-%m-%dT%H:%M:%SZ"),
            row.origin,
            int(row.flights),
            int(row.departed),
            int(row.total),
            None if row.departed == 0 else int(row.worst),
        )
        for row in result.itertuples(index=False)
    ]


def late_flights(flights: pa.Table) -> list[LateFlight]:
    """Flights that left more than two hours late, by pandas."""
    frame = flights.select(list(LateFlight._fields)).to_pandas()
    late = frame[frame["dep_delay"] > LATE_MINUTES]
    return [
        LateFlight(
            row.time_hour.strftime("%Y-%m-%dT%H:%M:%SZ"),
            row.carrier,
            int(row.flight),
            row.tailnum if isinstance(row.tailnum, str) else None,
            int(row.dep_delay),
        )
        for row in late.itertuples(index=False)
    ]


def window_of(event: Mapping[str, Any]) -> Window:
    """A window as the query wrote it into its topic."""
    return Window(
        event["hour"],
        event["origin"],
        event["flights"],
        event["departed"],
        event["total_delay_minutes"],
        event.get("worst_delay_minutes"),
    )


def late_flight_of(event: Mapping[str, Any]) -> LateFlight | None:
    """The flight if it left more than two hours late, else None."""
    delay = event.get("dep_delay")
    if delay is None or delay <= LATE_MINUTES:
        return None
    return LateFlight(
        event["time_hour"], event["carrier"], event["flight"], event.get("tailnum"), delay
    )


def compare(expected: Iterable[tuple[Any, ...]], found: Iterable[tuple[Any, ...]]) -> Difference:
    """Compare as bags: order does not matter, duplicates do."""
    want, have = Counter(expected), Counter(found)
    missing, surplus = want - have, have - want
    examples = [f"missing: {item}" for item in list(missing)[:3]]
    examples += [f"surplus: {item}" for item in list(surplus)[:3]]
    return Difference(missing.total(), surplus.total(), examples)
