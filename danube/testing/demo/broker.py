"""The demo's broker: a process of its own, killed and started again on the same data and port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Final

READY: Final = "danube broker ready"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0


def free_port() -> int:
    """A loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BrokerProcess:
    """``danube broker`` on a data directory.

    Args:
        data_dir: journal, metadata and tables.
        port: of the loopback interface, the same after every restart.
        log_path: where its output goes.
    """

    def __init__(self, data_dir: Path, port: int, log_path: Path) -> None:
        self.data_dir = data_dir
        self.url = f"127.0.0.1:{port}"
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        return self._running().pid

    @property
    def command(self) -> list[str]:
        """The command line."""
        where = ["--data-dir", str(self.data_dir), "--listen", self.url]
        return [sys.executable, "-m", "danube.cli.main", "broker", *where]

    def start(self) -> float:
        """Start it and wait until it serves; returns how long that took, in seconds.

        Raises:
            RuntimeError: it ended or did not become ready; the message has its last words.
        """
        began = time.monotonic()
        offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for the demo, which stops it in order.
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        with self.log_path.open("rb") as log:
            log.seek(offset)
            self._wait_until_ready(log, began)
        return time.monotonic() - began

    def _wait_until_ready(self, log: IO[bytes], began: float) -> None:
        said = b""
        while READY.encode() not in said:
            said += log.read()
            if self._running().poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                said += log.read()
                self.stop()
                words = said.decode(errors="replace").strip()[-2000:]
                raise RuntimeError(f"the broker did not start; it said:\n{words}")
            time.sleep(0.02)

    def kill(self) -> int:
        """SIGKILL, as a power cut would; returns the process id that is no more."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._process = None
        return process.pid

    def stop(self) -> None:
        """Stop it in order (drain, roll, release); by force when that takes too long."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def leave_running(self) -> int:
        """Let go of it without stopping it; returns its process id."""
        process, self._process = self._running(), None
        # A Popen that is collected while its process runs warns; this one is meant to stay.
        process.returncode = 0
        return process.pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process


def is_running(pid: int) -> bool:
    """Whether there is a process of that id (that we may signal)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
