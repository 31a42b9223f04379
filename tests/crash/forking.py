"""Brokers that start in a tenth of the time: forked from a process that has imported everything.

``python -m tests.crash.forking`` reads one JSON line per broker from standard input (arguments of
``danube`` and the file for its output), forks, and answers with the child's process id. The child
is an ordinary ``danube broker`` from there on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Self

from danube.testing.brokers import BrokerProcess, Running, SettingValues


class Forge:
    """The process that forks brokers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def fork(self, arguments: list[str], log: str) -> int:
        """Start ``danube ARGUMENTS``; returns its process id."""
        request, answers = self._process.stdin, self._process.stdout
        assert request is not None
        assert answers is not None
        request.write(json.dumps([arguments, log]).encode() + b"\n")
        request.flush()
        return int(answers.readline())

    def close(self) -> None:
        """End it; brokers that still run are not touched."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Forked:
    """A process that is not our child, by its file descriptor: no mix-up of process ids."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """0 once it has ended; nobody but its parent knows its exit code."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return 0

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._descriptor], [], [], timeout_s)[0]:
            os.close(self._descriptor)
            self.returncode = 0
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkedBroker(BrokerProcess):
    """A ``BrokerProcess`` that a forge makes."""

    def __init__(self, data_dir: Path, forge: Forge, settings: SettingValues | None = None) -> None:
        super().__init__(data_dir, settings=settings)
        self._forge = forge

    def _spawn(self) -> Running:
        return Forked(self._forge.fork(self.arguments, str(self.log_path)))


def _serve(requests: IO[str]) -> None:
    # Children are not waited for: the kernel takes their remains away.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in requests:
        arguments, log = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(arguments, log)
        print(pid, flush=True)


def _become(arguments: list[str], log: str) -> None:
    """In the child: run the command, never return."""
    from danube.cli.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.argv = ["danube", *arguments]
    code: object = 1
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    # Everything a broker imports, and nothing that starts a thread.
    import danube.broker.main
    import danube.cli.main  # noqa: F401

    _serve(sys.stdin)
