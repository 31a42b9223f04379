from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from danube.testing.demo import expected, flights


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return flights.load()


@pytest.fixture(scope="module")
def published(year: pa.Table) -> list[flights.Step]:
    return list(flights.steps(year, 20_000))


def small(rows: list[tuple[datetime, str, int | None]]) -> pa.Table:
    """Flights with a time, an origin and a delay."""
    return pa.table(
        {
            "time_hour": pa.array([row[0] for row in rows], pa.timestamp("s", tz="UTC")),
            "origin": [row[1] for row in rows],
            "dest": ["IAH"] * len(rows),
            "carrier": ["UA"] * len(rows),
            "flight": list(range(len(rows))),
            "tailnum": pa.array([None] * len(rows), pa.string()),
            "sched_dep_time": [515] * len(rows),
            "dep_delay": pa.array([row[2] for row in rows], pa.int64()),
            "arr_delay": pa.array([row[2] for row in rows], pa.int64()),
            "distance": [100] * len(rows),
        }
    )


def hour(day: int, of_day: int) -> datetime:
    return datetime(2013, 1, day, of_day, tzinfo=UTC)


def test_the_package_has_the_year_we_know(year: pa.Table) -> None:
    assert year.num_rows == flights.FLIGHTS
    assert year["tailnum"].null_count == flights.WITHOUT_TAIL_NUMBER
    late = year.filter(pc.greater(year["dep_delay"], pa.scalar(flights.LATE_MINUTES)))
    assert late.num_rows == flights.LATE_FLIGHTS


def test_flights_come_in_the_order_of_time(year: pa.Table) -> None:
    hours = year["time_hour"].cast(pa.int64()).to_numpy()
    assert (hours[1:] >= hours[:-1]).all()


def test_steps_hold_every_flight_once_and_never_cut_an_hour(
    year: pa.Table, published: list[flights.Step]
) -> None:
    assert sum(map(len, published)) == year.num_rows
    assert all(len(step) >= 20_000 for step in published[:-1])
    for before, after in pairwise(published):
        assert before.until < json.loads(after.values[0])["time_hour"]


def test_an_event_is_json_keyed_by_tail_number(published: list[flights.Step]) -> None:
    first = json.loads(published[0].values[0])
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    assert set(first) == set(flights.COLUMNS)
    assert published[0].keys[0] == first["tailnum"]
    keyless = sum(step.keys.count(None) for step in published)
    assert keyless == flights.WITHOUT_TAIL_NUMBER


def test_the_closing_event_is_long_after_the_last_flight(published: list[flights.Step]) -> None:
    closing = json.loads(flights.closing_value())
    assert closing["time_hour"] > published[-1].until
    assert expected.late_flight_of(closing) is None


def test_windows_count_cancelled_flights_but_not_their_delays() -> None:
    table = small(
        [
            (hour(1, 5), "JFK", 3),
            (hour(1, 5), "JFK", None),
            (hour(1, 5), "JFK", -4),
            (hour(1, 5), "LGA", None),
            (hour(1, 6), "JFK", 7),
        ]
    )
    assert sorted(expected.windows(table)) == [
        ("2013-01-01T05:00:00Z", "JFK", 3, 2, -1, 3),
        ("2013-01-01T05:00:00Z", "LGA", 1, 0, 0, None),
        ("2013-01-01T06:00:00Z", "JFK", 1, 1, 7, 7),
    ]


def test_late_means_more_than_two_hours() -> None:
    table = small([(hour(1, 5), "JFK", 120), (hour(1, 6), "JFK", 121), (hour(1, 7), "JFK", None)])
    assert expected.late_flights(table) == [("2013-01-01T06:00:00Z", "UA", 1, None, 121)]


def test_the_late_flights_of_the_events_are_those_of_the_csv(
    year: pa.Table, published: list[flights.Step]
) -> None:
    events = (json.loads(value) for step in published for value in step.values)
    found = [late for late in map(expected.late_flight_of, events) if late is not None]
    assert len(found) == flights.LATE_FLIGHTS
    assert not expected.compare(expected.late_flights(year), found)


def test_a_missing_a_surplus_and_a_doubled_window_are_all_found() -> None:
    a, b, c = (("a",), ("b",), ("c",))
    assert not expected.compare([a, b], [b, a])
    difference = expected.compare([a, b], [b, b, c])
    assert (difference.missing, difference.surplus) == (1, 2)
    assert difference.examples[0] == "missing: ('a',)"


def test_a_window_survives_its_way_through_the_topic() -> None:
    (window,) = expected.windows(small([(hour(2, 5), "JFK", None)]))
    event = json.loads(json.dumps({k: v for k, v in window._asdict().items() if v is not None}))
    assert expected.window_of(event) == window
