"""Every notebook runs from its first cell to its last, and is kept without its outputs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.spark.conftest import REPOSITORY, spark_environment
from tests.integration.spark.notebook import TIMEOUT_S, cells

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
MAX_CELL_LINES = 25
# Beyond the notebook's own time-out: it still has a broker and a JVM to stop.
GRACE_S = 60
# Halves the run: for little data, optimising Spark's code costs more than it saves.
CHEAP_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@each_notebook
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", one) for one in ids)
    for cell in content["cells"]:
        assert set(cell) <= {"cell_type", "id", "metadata", "source", "outputs", "execution_count"}
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@each_notebook
def test_a_notebook_explains_itself_in_small_cells(notebook: Path) -> None:
    texts, codes = cells(notebook, "markdown"), cells(notebook)
    assert texts[0].startswith("# ")
    assert len(texts) >= len(codes) / 2
    assert max(code.count("\n") + 1 for code in codes) <= MAX_CELL_LINES


@pytest.mark.spark  # a JVM of its own, in a process of its own
@pytest.mark.timeout(TIMEOUT_S + GRACE_S + 30)
@each_notebook
def test_a_notebook_runs_from_its_first_cell_to_its_last(notebook: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.notebook", str(notebook)],
        cwd=tmp_path,
        env=spark_environment() | {"TMPDIR": str(tmp_path), "JDK_JAVA_OPTIONS": CHEAP_JVM},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + GRACE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    left = [path.name for path in tmp_path.glob("danube-*")]
    assert left == [], "a notebook removes what it has made"
