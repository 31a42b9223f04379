from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest


def left_running(work_dir: Path) -> list[str]:
    """Processes whose command line names the directory, as those of the demo do."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(work_dir) in command:
            found.append(command)
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_demo_comes_out_as_pandas_says_and_leaves_nothing_running(tmp_path: Path) -> None:
    work_dir = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "danube.testing.demo", "--work-dir", str(work_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL of broker" in done.stdout
    assert "nothing was lost" in done.stdout
    assert left_running(work_dir) == []
