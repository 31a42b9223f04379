from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from danube.cli import exits, session
from danube.cli.exits import Exit
from danube.cli.main import app
from danube.core import errors

ROOT = Path(__file__).parents[3]
COMMANDS = [
    ["broker"],
    ["topics", "create"],
    ["topics", "list"],
    ["topics", "describe"],
    ["topics", "delete"],
    ["subscriptions", "list"],
    ["subscriptions", "describe"],
    ["subscriptions", "create"],
    ["subscriptions", "reset"],
    ["subscriptions", "delete"],
    ["sinks", "list"],
    ["sinks", "forget"],
    ["produce"],
    ["consume"],
    ["read"],
    ["verify"],
    ["roll"],
    ["journal", "dump"],
    ["journal", "repair"],
    ["version"],
]


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(app, list(arguments), **options)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_prints_json(command: list[str]) -> None:
    result = run(*command, "--help", env={"COLUMNS": "100", "TERM": "dumb"})
    assert result.exit_code == 0
    assert "--output" in result.stdout


def test_the_exit_codes_are_in_the_help() -> None:
    result = run("--help", env={"COLUMNS": "100"})
    for code in set(Exit) - {Exit.OK}:
        assert f"{code.value} " in result.stdout
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidName("x"), Exit.USAGE),
        (errors.TopicNotFound("x"), Exit.NOT_FOUND),
        (errors.SubscriptionNotFound("x"), Exit.NOT_FOUND),
        (errors.Unavailable("x"), Exit.UNAVAILABLE),
        (errors.DeadlineExceeded("x"), Exit.UNAVAILABLE),
        (errors.AlreadyExists("x"), Exit.PRECONDITION),
        (errors.SubscriptionBusy("x"), Exit.PRECONDITION),
        (errors.DiskFull("x"), Exit.EXHAUSTED),
        (errors.DataLost("x"), Exit.DAMAGED),
        (errors.Corruption("x"), Exit.DAMAGED),
        (errors.OutcomeUnknown("x"), Exit.FAILED),
        (errors.DanubeError("x"), Exit.FAILED),
    ],
)
def test_an_error_has_its_exit_code(error: errors.DanubeError, code: Exit) -> None:
    assert exits.exit_code(error) is code


def test_an_error_is_one_sentence_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise errors.TopicNotFound("there is no topic /a/b; create it first")

    monkeypatch.setattr("danube.cli.topics.with_client", refuse)
    result = run("topics", "describe", "/a/b")
    assert result.exit_code == Exit.NOT_FOUND
    assert result.stderr == "danube: there is no topic /a/b; create it first\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["topics", "create"],
        ["topics", "create", "/a/b", "--partitions", "-1"],
        ["topics", "create", "/a/b", "--retention", "soon"],
        ["subscriptions", "reset", "/a/b", "s"],
        ["subscriptions", "reset", "/a/b", "s", "--to", "newest"],
        ["subscriptions", "create", "/a/b", "s", "--type", "broadcast"],
        ["consume", "/a/b"],
        ["consume", "/a/b", "-s", "x", "--count", "0"],
        ["read", "/a/b", "--follow", "--end", "5"],
        ["produce", "/a/b", "text", "--json-lines"],
        ["produce", "/a/b", "--attribute", "a=b"],
        ["topics", "list", "--output", "yaml"],
        ["broker", "--set", "no-equals-sign"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_so_on_stderr(arguments: list[str]) -> None:
    result = run(*arguments, input="")
    assert result.exit_code == Exit.USAGE
    assert result.stdout == ""
    assert result.stderr


def test_deleting_asks_first_and_takes_no_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("danube.cli.topics.with_client", lambda *_a, **_o: called.append("yes"))
    assert run("topics", "delete", "/a/b", input="n\n").exit_code == Exit.FAILED
    assert not called
    assert run("topics", "delete", "/a/b", "--yes").exit_code == Exit.OK
    assert called


@pytest.mark.parametrize("arguments", [["--service-url", "elsewhere:1"], []])
def test_the_service_url_comes_from_flag_or_environment(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(url: str, *_args: Any, **_options: Any) -> list[Any]:
        seen.append(url)
        return []

    monkeypatch.setattr("danube.cli.topics.with_client", note)
    run("topics", "list", *arguments, env={"DANUBE_SERVICE_URL": "elsewhere:1"})
    assert seen == ["elsewhere:1"]


def test_no_broker_ends_with_4(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.setattr(session, "ADMIN_PATIENCE_S", 0.2)
    result = run("topics", "list", "--service-url", f"127.0.0.1:{unused_tcp_port}")
    assert result.exit_code == Exit.UNAVAILABLE
    assert result.stderr.startswith("danube: no broker answers")
    assert result.stderr.count("\n") == 1


def test_a_bad_address_is_wrong_usage() -> None:
    result = run("topics", "list", "--service-url", "not an address")
    assert result.exit_code == Exit.USAGE
    assert "write it as host:port" in result.stderr


def test_version_is_one_json_object() -> None:
    result = run("version", "--output", "json")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)) >= {"danube-spark", "python", "pyarrow"}


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    program = (
        "import sys; import danube.cli.main; "
        "print([name for name in ('grpc', 'pyarrow', 'deltalake', 'rich', 'pandas', 'pyspark') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_without_the_broker_extra_the_broker_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "grpc_health.v1", None)
    for name in [name for name in sys.modules if name.startswith("danube.broker.")]:
        if not name.endswith("settings"):
            monkeypatch.delitem(sys.modules, name)
    result = run("broker", "--data-dir", str(tmp_path))
    assert result.exit_code == Exit.FAILED
    assert "pip install 'danube-spark[broker]'" in result.stderr
