"""Runs a notebook's code cells in one namespace, as a kernel would: ``python -m ... NOTEBOOK``.

A process of its own, because a notebook starts and stops its own Spark session. Whatever broker a
notebook that fails leaves behind is stopped here, because it is in no process group of ours.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import linecache
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from danube.testing.brokers import BrokerProcess

TIMEOUT_S = 150


def cells(notebook: Path, kind: str = "code") -> list[str]:
    """The sources of a notebook's cells of one kind, in order."""
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def run(notebook: Path) -> None:
    """Run every code cell. Raises what the first one that fails does, and TimeoutError."""
    names: dict[str, Any] = {"__name__": "__main__"}
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(TIMEOUT_S)
    try:
        with asyncio.Runner() as runner:
            for number, source in enumerate(cells(notebook), 1):
                _run_cell(f"{notebook.name}[{number}]", source, names, runner)
    finally:
        signal.alarm(0)
        for value in names.values():
            if isinstance(value, BrokerProcess):
                value.stop()


def _run_cell(name: str, source: str, names: dict[str, Any], runner: asyncio.Runner) -> None:
    # A traceback shows the cell's lines if it can look them up.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        runner.run(result)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the notebook did not end within {TIMEOUT_S} s")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
