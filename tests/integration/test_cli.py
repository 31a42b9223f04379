from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from danube.cli.exits import Exit
from danube.cli.main import app
from danube.testing.brokers import BrokerProcess, free_port

DANUBE = [sys.executable, "-m", "danube.cli.main"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    work = tmp_path_factory.mktemp("cli")
    process = BrokerProcess(work / "data", free_port(), work / "broker.log")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def url(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DANUBE_SERVICE_URL", broker.url)
    return broker.url


def run(*arguments: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=input)


def done(*arguments: str, input: str | bytes | None = None) -> list[Any]:
    """Run with JSON output; the values on stdout."""
    result = run(*arguments, "--output", "json", input=input)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def values(topic: str) -> list[str]:
    return [message["value"] for message in done("read", topic)]


def test_a_topic_is_created_listed_described_and_deleted(url: str) -> None:
    (created,) = done("topics", "create", "/cli/life", "--partitions", "2", "--retention", "7d")
    assert created["created"] is True
    assert "/cli/life" in [topic["topic"] for topic in done("topics", "list", "cli")]
    (described,) = done("topics", "describe", "/cli/life")
    assert described["topic_id"] == created["topic_id"]
    assert described["retention_ms"] == 7 * 86_400_000
    assert [row["partition"] for row in described["partition_offsets"]] == [0, 1]
    assert done("topics", "delete", "/cli/life", "--yes") == [
        {"topic": "/cli/life", "deleted": True}
    ]
    assert run("topics", "describe", "/cli/life").exit_code == Exit.NOT_FOUND


def test_tables_show_what_json_has(url: str) -> None:
    done("topics", "create", "/cli/table")
    assert "/cli/table" in run("topics", "list").stdout
    described = run("topics", "describe", "/cli/table").stdout
    assert "durable" in described
    assert url in described


def test_creating_twice_is_a_precondition_unless_it_may_exist(url: str) -> None:
    done("topics", "create", "/cli/twice")
    again = run("topics", "create", "/cli/twice")
    assert again.exit_code == Exit.PRECONDITION
    assert "/cli/twice" in again.stderr
    assert done("topics", "create", "/cli/twice", "--if-not-exists")[0]["created"] is False


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["topics", "describe", "/cli/nowhere"], Exit.NOT_FOUND),
        (["topics", "delete", "/cli/nowhere", "--yes"], Exit.NOT_FOUND),
        (["produce", "/cli/nowhere", "text"], Exit.NOT_FOUND),
        (["read", "/cli/nowhere"], Exit.NOT_FOUND),
        (["consume", "/cli/nowhere", "-s", "s"], Exit.NOT_FOUND),
        (["verify", "/cli/nowhere"], Exit.NOT_FOUND),
        (["roll", "/cli/nowhere"], Exit.NOT_FOUND),
        (["subscriptions", "list", "/cli/nowhere"], Exit.NOT_FOUND),
        (["subscriptions", "describe", "/cli/nowhere", "s"], Exit.NOT_FOUND),
        (["sinks", "forget", "q", "s", "--yes"], Exit.NOT_FOUND),
        (["topics", "create", "no-slash"], Exit.USAGE),
        (["topics", "create", "/cli/x y"], Exit.USAGE),
        (["read", "cli"], Exit.USAGE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.name,
)
def test_a_wrong_request_ends_with_its_code_and_one_sentence(
    url: str, arguments: list[str], code: Exit
) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.stderr
    assert result.stderr.startswith("danube: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_lines_of_stdin_are_messages(url: str) -> None:
    done("topics", "create", "/cli/lines")
    (report,) = done("produce", "/cli/lines", input="one\ntwo\nthree\n")
    assert report["messages"] == 3
    assert report["offsets"] == {"0": "0-2"}
    assert values("/cli/lines") == ["one", "two", "three"]


def test_a_copy_made_of_json_lines_equals_its_original(url: str) -> None:
    done("topics", "create", "/cli/original")
    done("topics", "create", "/cli/copy")
    done("produce", "/cli/original", "text", "--key", "k", "--attribute", "a=b")
    done("produce", "/cli/original", input=b"\xff\xfe\nlast\n")
    original = run("read", "/cli/original", "--output", "json").stdout
    done("produce", "/cli/copy", "--json-lines", input=original)
    parts = ("key", "value", "value_base64", "attributes", "offset")
    first, second = (
        [{name: item.get(name) for name in parts} for item in done("read", topic)]
        for topic in ("/cli/original", "/cli/copy")
    )
    assert first == second
    assert first[0]["attributes"] == {"a": "b"}
    assert first[1]["value_base64"]


def test_a_bad_json_line_fails_but_what_came_before_is_published(url: str) -> None:
    done("topics", "create", "/cli/partly")
    result = run("produce", "/cli/partly", "--json-lines", input='{"value": "good"}\nbad\n')
    assert result.exit_code == Exit.USAGE
    assert "line 2" in result.stderr
    assert values("/cli/partly") == ["good"]


def test_reading_takes_offsets_counts_and_partitions(url: str) -> None:
    done("topics", "create", "/cli/slices", "--partitions", "2")
    for partition in ("0", "1"):
        lines = "".join(f"{partition}-{number}\n" for number in range(5))
        done("produce", "/cli/slices", "--partition", partition, input=lines)
    part = ["read", "/cli/slices", "--partition", "1"]
    assert run(*part, "--start", "2", "--end", "4").stdout == "1-2\n1-3\n"
    assert run(*part, "--count", "1").stdout == "1-0\n"
    assert run(*part, "--start", "latest").stdout == ""
    assert len(values("/cli/slices")) == 10
    metadata = run(*part, "--start", "4", "--metadata").stdout.split("\t")
    assert (metadata[0], metadata[-1]) == ("1:4", "1-4\n")


def test_what_was_printed_is_acknowledged_and_does_not_come_again(url: str) -> None:
    done("topics", "create", "/cli/acks")
    done("produce", "/cli/acks", input="a\nb\nc\n")
    consume = ["consume", "/cli/acks", "--subscription", "s", "--start", "earliest"]
    assert run(*consume, "--count", "2", "--no-ack").stdout == "a\nb\n"
    assert run(*consume, "--count", "2").stdout == "a\nb\n"
    assert run(*consume, "--count", "1").stdout == "c\n"
    assert run(*consume, "--idle", "0.5").stdout == ""
    (described,) = done("subscriptions", "describe", "/cli/acks", "s")
    assert described["lag_messages"] == 0
    assert described["partitions"][0]["cursor"] == 3


def test_a_subscription_is_created_reset_and_deleted(url: str) -> None:
    done("topics", "create", "/cli/subs")
    done("produce", "/cli/subs", input="a\nb\n")
    done("subscriptions", "create", "/cli/subs", "later")
    (listed,) = done("subscriptions", "list", "/cli/subs")
    assert (listed["subscription"], listed["lag_messages"]) == ("later", 0)
    done("subscriptions", "reset", "/cli/subs", "later", "--to", "1")
    consume = ["consume", "/cli/subs", "--subscription", "later", "--count", "1"]
    assert run(*consume).stdout == "b\n"
    done("subscriptions", "reset", "/cli/subs", "later", "--to", "earliest")
    assert run(*consume).stdout == "a\n"
    done("subscriptions", "delete", "/cli/subs", "later", "--yes")
    assert done("subscriptions", "list", "/cli/subs") == []
    missing = run("subscriptions", "describe", "/cli/subs", "later")
    assert missing.exit_code == Exit.NOT_FOUND
    assert "it has: none" in missing.stderr


def test_a_rolled_topic_passes_verification(url: str) -> None:
    done("topics", "create", "/cli/proof")
    done("produce", "/cli/proof", input="".join(f"{n}\n" for n in range(1000)))
    done("roll", "/cli/proof")
    (result,) = done("verify", "/cli/proof")
    assert (result["finished"], result["findings"], result["messages"]) == (True, [], 1000)
    (described,) = done("topics", "describe", "/cli/proof")
    assert described["partition_offsets"][0]["rolled"] == 1000
    assert described["table_uri"].startswith("file://")


def test_no_sinks_is_said_and_not_an_error(url: str) -> None:
    result = run("sinks", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no sinks" in result.stderr


def test_a_reader_that_closes_its_pipe_ends_the_command_quietly(url: str) -> None:
    done("topics", "create", "/cli/pipe")
    done("produce", "/cli/pipe", input="".join(f"{n:050}\n" for n in range(20_000)))
    process = subprocess.Popen(
        [*DANUBE, "read", "/cli/pipe"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().strip() == b"0" * 50
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 0


def test_ctrl_c_ends_a_consumer_without_a_traceback(url: str) -> None:
    done("topics", "create", "/cli/endless")
    done("produce", "/cli/endless", "seen")
    process = subprocess.Popen(
        [*DANUBE, "consume", "/cli/endless", "-s", "s", "--start", "earliest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"seen\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED
    assert err == b""


def broker_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A broker that is expected to end by itself."""
    return subprocess.run(
        [*DANUBE, "broker", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_broker_tells_where_its_settings_come_from(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[broker]\nlog_level = 'debug'\n")
    arguments = ["--print-config", "--config", str(config), "--listen", "127.0.0.1:7"]
    result = subprocess.run(
        [*DANUBE, "broker", *arguments, "--output", "json"],
        env={**os.environ, "DANUBE_BROKER__LOG_FORMAT": "json", "DANUBE_SERVICE_URL": "other:1"},
        capture_output=True,
        text=True,
        check=True,
    )
    settings = {item["key"]: item for item in map(json.loads, result.stdout.splitlines())}
    assert settings["broker.log_level"]["origin"] == f"file {config}"
    assert settings["broker.log_format"]["origin"] == "environment DANUBE_BROKER__LOG_FORMAT"
    assert settings["broker.listen"]["value"] == "127.0.0.1:7"
    assert settings["journal.segment_bytes"]["origin"] == "default"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "insecure"),
        (["--listen", "nonsense:port"], "host:port"),
        (["--set", "journal.segment_byts=1"], "segment_bytes"),
        (["--set", "broker.drain_timeout_s=soon"], "drain_timeout_s"),
        (["--config", "/nowhere/broker.toml"], "/nowhere/broker.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_broker_refuses_wrong_settings_and_says_which(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = broker_command("--data-dir", str(tmp_path / "data"), *arguments)
    assert result.returncode == Exit.USAGE
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_broker_needs_a_data_directory(tmp_path: Path) -> None:
    result = broker_command()
    assert result.returncode == Exit.USAGE
    assert "data" in result.stderr


def test_a_second_broker_on_the_same_directory_or_port_is_refused(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    same_directory = broker_command("--data-dir", str(broker.data_dir), "--listen", "127.0.0.1:0")
    assert same_directory.returncode not in (0, None)
    assert str(broker.data_dir) in same_directory.stderr
    same_port = broker_command("--data-dir", str(tmp_path / "data"), "--listen", broker.url)
    assert same_port.returncode != 0
    assert broker.url in same_port.stderr
    assert "Traceback" not in same_directory.stderr + same_port.stderr


def test_sigterm_stops_a_broker_in_order(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", free_port(), tmp_path / "log")
    process.start()
    os.kill(process.pid, signal.SIGTERM)
    running = process._running()
    assert running.wait(30) == 0
    process.stop()
