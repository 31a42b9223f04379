"""Runs every code block of the README, in order, as a reader would."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from danube.testing.brokers import BrokerProcess, free_port
from tests.integration.spark.conftest import spark as spark

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURES = {"mermaid"}
DEFAULT_URL = "127.0.0.1:6650"


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks() -> list[Block]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [Block(language, code) for language, code in BLOCK.findall(text)]


class Reader:
    """Somebody who follows the README: one directory, one shell, one Python.

    The only differences: another port, and the two make commands, which set up everything and would
    run this test again, are only checked to exist.
    """

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self.home = home
        self.url = f"127.0.0.1:{free_port()}"
        self.names: dict[str, Any] = {"spark": spark, "__name__": "readme"}
        self.broker: BrokerProcess | None = None
        self.loop = asyncio.new_event_loop()

    def follow(self, block: Block) -> str:
        text = block.text.replace(DEFAULT_URL, self.url)
        if block.language == "python":
            # Spark's JVM may have been started in another directory.
            return self._python(text.replace('"./', f'"{self.home}/'))
        assert block.language == "bash", f"who runs {block.language!r}?"
        if text.startswith("make "):
            return self._make(text)
        if text.startswith("danube broker "):
            return self._start_broker(text)
        return self._shell(text)

    def _shell(self, text: str) -> str:
        bin_dir = str(Path(sys.executable).parent)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.home,
            env={
                **os.environ,
                "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
                "DANUBE_SERVICE_URL": self.url,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _python(self, text: str) -> str:
        code = compile(text, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)
        if inspect.iscoroutine(result):
            self.loop.run_until_complete(result)
        return ""

    def _make(self, text: str) -> str:
        for line in text.strip().splitlines():
            target = line.split("#")[0].split()[1]
            done = subprocess.run(
                ["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr.decode()}"
        return ""

    def _start_broker(self, text: str) -> str:
        program, command, flag, data_dir = text.split()
        assert (program, command, flag) == ("danube", "broker", "--data-dir")
        port = int(self.url.rpartition(":")[2])
        self.broker = BrokerProcess(self.home / data_dir, port, self.home / "broker.log")
        self.broker.start()
        return ""

    def close(self) -> None:
        for query in self.names["spark"].streams.active:
            query.stop()
        self.loop.close()
        if self.broker is not None:
            self.broker.stop()


@pytest.fixture
def reader(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    somebody = Reader(tmp_path, spark)
    yield somebody
    somebody.close()


def test_every_block_is_run_or_a_picture() -> None:
    found = blocks()
    assert {block.language for block in found} <= {"bash", "python", *PICTURES}
    assert sum(block.language == "python" for block in found) >= 3
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("```") == 2 * len(found)


def test_the_two_commands_come_first() -> None:
    first = blocks()[0].text
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]


def test_a_reader_of_the_readme_gets_what_it_says(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = ""
    for block in blocks():
        if block.language not in PICTURES:
            printed += reader.follow(block) + capsys.readouterr().out
    query = reader.names["query"]
    query.processAllAvailable()
    assert query.exception() is None
    assert '{"city": "Wien"}' in printed, "danube read shows what was published"
    assert "MessageId(partition=" in printed, "send tells where the message is"
    assert reader.names["table"].to_pyarrow_table(columns=["value"]).num_rows == 3
    copied = reader.follow(Block("bash", "danube read /default/copy"))
    assert sorted(copied.splitlines()) == [f'{{"city": "{c}"}}' for c in ("Graz", "Linz", "Wien")]
