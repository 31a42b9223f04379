from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from danube.cli import options, output
from danube.cli.output import OutputFormat


def test_json_rows_are_one_object_per_line_with_every_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"a": 1, "hidden": "x"}, {"a": 2, "hidden": "é"}]
    output.print_rows(rows, ["a"], OutputFormat.JSON, empty="none")
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == rows
    assert printed.err == ""


def test_a_table_shows_its_columns_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic_name": "/a/b", "hidden": "secret"}, {"topic_name": "[bold]", "hidden": ""}]
    output.print_rows(rows, ["topic_name"], OutputFormat.TABLE, empty="none")
    printed = capsys.readouterr().out
    assert "topic name" in printed
    assert "/a/b" in printed
    assert "[bold]" in printed, "names are not markup"
    assert "secret" not in printed


def test_an_empty_listing_is_empty_on_stdout_and_explained_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_rows([], ["a"], OutputFormat.TABLE, empty="there are no topics")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "there are no topics\n")
    output.print_rows([], ["a"], OutputFormat.JSON, empty="there are no topics")
    assert capsys.readouterr() == ("", "")


def test_a_table_in_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = "/namespace/" + "long-" * 30
    output.print_rows([{"topic": name}], ["topic"], OutputFormat.TABLE, empty="")
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (9999, "9999"),
        (1234567, "1\u2009234\u2009567"),
        (0.25, "0.2"),
        ([], "-"),
        (["a", 1], "a, 1"),
        ({"0": "1-2"}, "0=1-2"),
    ],
)
def test_values_read_well(value: Any, shown: str) -> None:
    assert output.shown(value) == shown


def test_a_value_stays_on_its_line() -> None:
    assert output.bytes_text(b"two\nlines") == "two\\nlines"
    assert output.bytes_text(b"\xff\x00") == "\\xff\\x00"
    assert output.bytes_text("größer".encode()) == "größer"


def test_times_are_iso_8601_in_utc() -> None:
    assert output.moment(1_357_016_400_123_456) == "2013-01-01T05:00:00.123Z"
    assert output.plain(datetime(2013, 1, 1, 5, tzinfo=UTC)) == "2013-01-01T05:00:00.000Z"
    assert output.moment(-62_135_596_800_000_000) == "0001-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250ms", 250), ("90s", 90_000), ("1.5m", 90_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_durations_have_a_unit(text: str, milliseconds: int) -> None:
    assert options.duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("64k", 65536), ("10MiB", 10 << 20), ("2G", 2 << 30)]
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert options.size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        ("17", 17),
        ("2013-01-01T05:00:00Z", datetime(2013, 1, 1, 5, tzinfo=UTC)),
        ("2013-01-01", datetime(2013, 1, 1, tzinfo=UTC)),
    ],
)
def test_start_positions_are_words_offsets_and_times(text: str, position: Any) -> None:
    assert options.start_position(text) == position


def test_a_start_position_can_be_some_time_ago() -> None:
    before = datetime.now(UTC) - timedelta(minutes=15)
    assert timedelta() <= options.start_position("15m") - before < timedelta(minutes=1)


@pytest.mark.parametrize(
    "parse",
    [
        lambda: options.duration_ms("soon"),
        lambda: options.size_bytes("big"),
        lambda: options.start_position("newest"),
        lambda: options.start_position("-5"),
        lambda: options.subscription_kind("broadcast"),
        lambda: options.key_values(["a"], "a setting"),
        lambda: options.key_values(["a=1", "a=2"], "a setting"),
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(parse: Any) -> None:
    with pytest.raises(typer.BadParameter):
        parse()
