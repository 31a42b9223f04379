"""Brokers and peers as processes of their own: free ports, a ready line, an end that is certain."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Final

READY: Final = re.compile(r"ready on (\S+:\d+)")
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 120.0


class ProcessFailed(RuntimeError):
    """A process did not get ready; the message ends with what it wrote."""


class Process:
    """A Python process that prints ``... ready on HOST:PORT`` and serves until it is told to stop.

    What it writes to standard error goes to ``log``.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self.url = self._wait_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _wait_ready(self) -> str:
        lines: Queue[str | None] = Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        try:
            while (line := lines.get(timeout=START_TIMEOUT_S)) is not None:
                if found := READY.search(line):
                    return found[1]
        except Empty:
            pass
        written = self._log.read_text(errors="replace")[-4000:]
        raise ProcessFailed(f"{self._process.args!r} did not get ready: {written}")

    def _read(self, lines: Queue[str | None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put(line)
        lines.put(None)

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM now (VmRSS)."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        """Processor time that all of its threads have used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would do."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.stop()
        if self._process.stdout is not None:
            self._process.stdout.close()


def start_broker(data_dir: Path, settings: Mapping[str, object] | None = None) -> Process:
    """A broker on a free port of loopback, with ``settings`` (``section.key``) changed."""
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    changed = [f"--set={key}={value}" for key, value in (settings or {}).items()]
    arguments = [
        *("-m", "danube.cli.main", "broker"),
        *("--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--metrics-listen", ""),
        *changed,
    ]
    return Process(arguments, data_dir.parent / f"{data_dir.name}.log")


def start_peer(module: str, directory: Path) -> Process:
    """``python -m module`` as a peer."""
    return Process(["-m", module], directory / f"{module}.log")
