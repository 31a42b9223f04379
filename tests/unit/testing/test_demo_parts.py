from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from danube.client.messages import MessagesView
from danube.core.batch import MessageBatch, message_records
from danube.testing.brokers import BrokerProcess, free_port
from danube.testing.demo import late_desk, summary
from danube.testing.demo.flights import Step
from danube.testing.demo.publisher import step_records
from danube.testing.demo.query import Totals
from danube.testing.demo.run import Demo, Outcome
from danube.testing.demo.screen import Screen


def late_line(partition: int, offset: int, flight: int) -> str:
    late = {"time_hour": "h", "carrier": "UA", "flight": flight, "tailnum": None, "dep_delay": 200}
    return json.dumps({"partition": partition, "offset": offset, **late}) + "\n"


def test_doubles_are_told_apart_by_partition_and_offset(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.write_text(late_line(0, 1, 7) + late_line(0, 2, 7))
    second.write_text(late_line(0, 2, 7) + late_line(1, 2, 7))
    found, doubles = late_desk.results([first, second])
    assert (len(found), doubles) == (3, 1)


def test_a_line_cut_short_by_a_kill_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text(late_line(0, 1, 7) + late_line(0, 2, 8)[:20])
    found, _ = late_desk.results([path])
    assert [late.flight for late in found] == [7]


def test_the_desk_takes_late_flights_with_their_places() -> None:
    flights = [
        {"time_hour": "h", "carrier": "UA", "flight": number, "tailnum": "N1", "dep_delay": delay}
        for number, delay in enumerate([None, 120, 121, -3])
    ]
    records = message_records([json.dumps(each) for each in flights], producer="p", now_us=0)
    batch: Any = MessagesView("/demo/flights", 3, MessageBatch(40, records), 0)
    assert [(line["partition"], line["offset"]) for line in late_desk.work_off(batch)] == [(3, 42)]


def test_a_step_keeps_flights_without_a_tail_number_keyless() -> None:
    records = step_records(Step(["N1", None], ["{}", "{}"], "2013"))
    assert records["key"].to_pylist() == ["N1", None]
    assert records.schema.field("value").type == pa.string()


def progress(batch: int, rows: int, *, dropped: int = 0, ran: bool = True) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 5, "triggerExecution": 500} if ran else {},
        "eventTime": {"watermark": f"2013-01-0{batch + 1}"},
        "stateOperators": [{"numRowsDroppedByWatermark": dropped}],
    }


def test_progress_reports_add_up_and_count_once() -> None:
    totals = Totals()
    for report in (progress(0, 10), progress(1, 5, dropped=2), progress(0, 10)):
        totals.add(report)
    assert (totals.rows_in, totals.batches, totals.dropped, totals.busy_s) == (15, 2, 2, 1.0)


def test_an_idle_trigger_does_not_hide_the_batch_that_follows_it() -> None:
    totals = Totals()
    totals.add(progress(3, 0, ran=False))
    totals.add(progress(3, 7))
    assert totals.rows_in == 7


def test_a_batch_without_rows_still_tells_what_the_watermark_dropped() -> None:
    totals = Totals()
    totals.add(progress(4, 0, dropped=1))
    assert totals.dropped == 1


def test_an_outcome_passes_only_when_something_was_checked_and_all_of_it_held() -> None:
    outcome = Outcome()
    assert not outcome.passed
    outcome.checks.append(("a", True, ""))
    assert outcome.passed
    outcome.checks.append(("b", False, "why"))
    assert not outcome.passed


def test_the_summary_tells_what_was_killed_when_and_where_the_tables_lie(tmp_path: Path) -> None:
    outcome = Outcome(published=100, publish_busy_s=2.0, seconds=80)
    outcome.events.append((33.3, "SIGKILL of broker process 7"))
    outcome.tables["/demo/flights"] = "file:///data/tables/[x]"
    outcome.lags.append({"subscription": "s", "type": "shared", "messages": 0, "seconds": 0.0})
    outcome.checks.append(("danube verify /demo/flights", False, "a gap at [3, 4)"))
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"), highlight=False)
    summary.print_summary(outcome, console, tmp_path)
    console.file.close()
    text = console.export_text()
    for words in ("50/s", "at 33.3 s", "SIGKILL of broker", "tables/[x]", "[3, 4)", "WRONG"):
        assert words in text


def test_a_broker_that_cannot_start_is_reported_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    broker = BrokerProcess(tmp_path / "file", free_port(), tmp_path / "log")
    with pytest.raises(RuntimeError, match="the broker did not start; it said:"):
        broker.start()


def test_a_kept_broker_of_an_earlier_run_is_not_pulled_from_under_its_user(tmp_path: Path) -> None:
    (tmp_path / "broker.pid").write_text(str(os.getpid()))
    with pytest.raises(SystemExit, match="stop it first: kill"):
        Demo(tmp_path, keep=False).run()
    assert (tmp_path / "broker.pid").exists()


def test_without_a_terminal_events_and_values_are_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen({"flights published": 1000}) as screen:
        screen.event("stopped at [3, 4)", "bold red")
        screen.show("flights published", 400, "until June")
        screen.tick()
        screen.tick()
    printed = capsys.readouterr().out
    assert "stopped at [3, 4)" in printed
    assert printed.count("flights published 400/1,000") == 1, "a line every few seconds"
