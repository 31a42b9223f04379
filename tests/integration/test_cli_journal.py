from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import danube
from danube.cli.exits import Exit
from danube.cli.main import app
from danube.testing.brokers import BrokerProcess

MARK = b"find-me-in-the-journal"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--output", "json")
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that was killed with three messages in its journal, each a flush of its own."""
    process = BrokerProcess(tmp_path / "data", settings={"log.roll_age_s": 3600})
    process.start()
    with danube.blocking.connect(process.url) as client:
        client.admin.create_topic("/cli/journal")
        with client.producer("/cli/journal") as producer:
            for value in (b"before", MARK, b"after"):
                producer.send(value)
    process.kill()
    yield process
    process.stop()


def damage(data_dir: Path) -> Path:
    """Flip one bit in the message that carries the mark."""
    for path in sorted((data_dir / "journal").glob("*.segment")):
        content = bytearray(path.read_bytes())
        at = content.find(MARK)
        if at >= 0:
            content[at] ^= 1
            path.write_bytes(content)
            return path
    raise AssertionError("the message is not in the journal")


def test_a_dump_shows_every_message_with_its_offset(broker: BrokerProcess) -> None:
    dumped = lines("journal", "dump", str(broker.data_dir))
    assert {line["what"] for line in dumped} == {"segment", "flush", "entry"}
    frames = [line for line in dumped if line.get("kind") == "MESSAGES"]
    assert [frame["base_offset"] for frame in frames] == [0, 1, 2]
    shown = run("journal", "dump", str(broker.data_dir / "journal")).stdout
    assert "offsets [1, 2)" in shown
    assert run("journal", "dump", str(broker.data_dir), "--damaged").exit_code == Exit.OK


def test_a_whole_journal_is_not_repaired(broker: BrokerProcess) -> None:
    (report,) = lines("journal", "repair", str(broker.data_dir))
    assert report["was_whole"]
    assert report["quarantined"] == []
    assert "nothing was changed" in run("journal", "repair", str(broker.data_dir)).stderr


def test_a_damaged_message_is_named_quarantined_and_recorded_as_lost(
    broker: BrokerProcess,
) -> None:
    path = damage(broker.data_dir)
    before = path.read_bytes()
    found = run("journal", "dump", str(broker.data_dir), "--damaged")
    assert found.exit_code == Exit.DAMAGED
    assert "damaged body" in found.stdout

    (planned,) = lines("journal", "repair", str(broker.data_dir), "--dry-run")
    assert planned["dry_run"]
    assert path.read_bytes() == before

    (report,) = lines("journal", "repair", str(broker.data_dir))
    lost = [(each["partition"], each["start"], each["end"]) for each in report["lost"]]
    assert lost == [(0, 1, 2)]
    assert [Path(kept).read_bytes() for kept in report["quarantined"]] == [before]

    broker.start()
    url = ["--service-url", broker.url]
    refused = run("read", "/cli/journal", *url)
    assert refused.exit_code == Exit.DAMAGED
    assert "[1, 2)" in refused.stderr
    assert run("read", "/cli/journal", "--skip-lost", *url).stdout == "before\nafter\n"
    assert run("verify", "/cli/journal", *url).exit_code == Exit.OK


def test_a_journal_in_use_is_not_repaired(broker: BrokerProcess) -> None:
    broker.start()
    result = run("journal", "repair", str(broker.data_dir))
    assert result.exit_code == Exit.PRECONDITION
    assert "stop it before a repair" in result.stderr


def test_a_directory_without_a_journal_is_wrong_usage(tmp_path: Path) -> None:
    for command in ("dump", "repair"):
        result = run("journal", command, str(tmp_path))
        assert result.exit_code == Exit.USAGE
        assert "there is no journal" in result.stderr
