"""The benchmarks' own parts: turns, figures, sizes, and that every question can be asked."""

from __future__ import annotations

import json
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.bench import Sizes
from benchmarks.measure import Repeats, in_turns, percentile
from benchmarks.payloads import random_records
from benchmarks.questions import QUESTIONS
from benchmarks.results import Figure, Report, Row, Setup, compared

SETUP = Setup("1 KiB random", "one frame", "disk", "ours", "theirs")


def row(ours: float, peer: float, at_least: float | None = None) -> Row:
    figures = Figure.of("B/s", [ours]), Figure.of("B/s", [peer])
    return compared("question", "what", *figures, SETUP, at_least=at_least)


def test_contestants_take_turns_and_warm_ups_are_not_counted() -> None:
    calls: list[str] = []

    def contestant(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    figures = in_turns({"a": lambda: contestant("a"), "b": lambda: contestant("b")}, Repeats(1, 2))

    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert figures == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_a_figure_is_the_median_of_its_repetitions() -> None:
    assert Figure.of("B/s", [3e6, 1e6, 2e6]).value == 2e6
    assert str(Figure.of("B/s", [2.5e9])) == "2.5 GB/s"
    assert str(Figure.of("ms", [0.123])) == "0.123 ms"


def test_a_ratio_below_its_target_is_missed_and_a_goal_has_no_verdict() -> None:
    assert row(6, 10, at_least=0.5).met is True
    assert row(4, 10, at_least=0.5).met is False
    assert row(4, 10).met is None


def test_a_percentile_is_one_of_the_samples() -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], 50) == 3.0
    assert percentile([1.0], 99) == 1.0


def test_the_report_says_for_each_row_what_was_run_and_keeps_every_repetition(
    tmp_path: Path,
) -> None:
    report = Report({"cores": 2}, [row(4, 10, at_least=0.5)], {"other": "ValueError: no"})
    text = StringIO()

    report.print(Console(file=text, width=200))
    report.write_json(tmp_path / "made" / "results.json")

    for part in ("1 KiB random", "one frame", "disk", "theirs", "0.40", "missed", "ValueError"):
        assert part in text.getvalue()
    stored = json.loads((tmp_path / "made" / "results.json").read_text())
    assert stored["rows"][0]["ours"]["samples"] == [4]
    assert stored["rows"][0]["met"] is False


def test_random_records_have_their_size_and_do_not_repeat() -> None:
    records = random_records(10_000, 100)

    values = records.column("value").to_pylist()
    assert len(values) == len(set(values)) == 100
    assert {len(value) for value in values if value is not None} == {100}


def test_every_question_has_a_module_that_answers_it() -> None:
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)
    for question in QUESTIONS:
        assert callable(import_module(question.module).run)


def test_a_size_is_set_by_its_name_and_a_wrong_one_is_refused() -> None:
    assert Sizes().changed({"messages": "7", "latency_s": "0.5"}).messages == 7
    with pytest.raises(ValueError, match="no size mesages"):
        Sizes().changed({"mesages": "7"})


def test_a_wrong_question_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-question"]) == 2
    assert "publish-bytes" in capsys.readouterr().err
