"""Brokers for tests, ours and our users': in a process of their own, or in this one.

    with BrokerProcess(tmp_path / "data") as broker:      # a real process, which can be killed
        with danube.blocking.connect(broker.url) as client: ...
        broker.kill()
        broker.start()

    async with LocalBroker() as broker:                    # in this process, on this event loop
        async with danube.connect(broker.url) as client: ...

    with LocalBroker() as broker:                          # the same from code without a loop
        with danube.blocking.connect(broker.url) as client: ...

Both take ports that are free, and settings by their dotted keys (``log.roll_age_s``).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from danube.core.errors import FailedPrecondition, Unavailable

if TYPE_CHECKING:
    from typing import Self

    from danube.broker.server import Broker
    from danube.log.engine import LogEngine

READY: Final = re.compile(rb"danube broker ready on (\S+)")
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
LAST_WORDS_BYTES: Final = 4_000

SettingValues = Mapping[str, object]
"""Dotted keys to values: ``{"log.roll_age_s": 0.1}``."""


def free_port() -> int:
    """A loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    """Whether there is a process of that id (that we may signal)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Running(Protocol):
    """What is asked of a broker's process; ``subprocess.Popen`` is one."""

    returncode: int | Any

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code."""

    def send_signal(self, sig: int) -> None:
        """Send a signal."""

    def kill(self) -> None:
        """SIGKILL."""


class BrokerProcess:
    """``danube broker`` on one data directory and one port, through kills and restarts.

    Entering it as a context manager starts it, leaving it stops it in order.

    Args:
        data_dir: journal, metadata and tables.
        port: of the loopback interface; 0 takes a free one at the first start and keeps it.
        log_path: where its output goes; default: beside the data directory.
        settings: by dotted keys; ``broker.metrics_listen`` gets a port of its own if absent.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        log_path: Path | None = None,
        settings: SettingValues | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.url = f"127.0.0.1:{port}"
        self.log_path = log_path or data_dir.parent / f"{data_dir.name}.log"
        self.settings = dict(settings or {})
        self._process: Running | None = None

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        return self._running().pid

    @property
    def arguments(self) -> list[str]:
        """What follows ``danube`` on the command line."""
        where = ["--data-dir", str(self.data_dir), "--listen", self.url]
        changed = [f"--set={key}={value}" for key, value in self.settings.items()]
        return ["broker", *where, *changed]

    @property
    def command(self) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "danube.cli.main", *self.arguments]

    def start(self) -> float:
        """Start it and wait until it serves; returns how long that took, in seconds.

        Raises:
            RuntimeError: it ended or did not become ready; the message has its last words.
        """
        began = time.monotonic()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path.touch()
        offset = self.log_path.stat().st_size
        self._process = self._spawn()
        self._wait_until_ready(offset, began)
        return time.monotonic() - began

    def _spawn(self) -> Running:
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for us, who stop it in order.
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_ready(self, offset: int, began: float) -> None:
        with self.log_path.open("rb") as log:
            log.seek(offset)
            said = b""
            while (found := READY.search(said)) is None or not said.endswith(b"\n"):
                said += log.read()
                if self._running().poll() is not None or _over(began, START_TIMEOUT_S):
                    said += log.read()
                    self.stop()
                    words = said.decode(errors="replace").strip()[-LAST_WORDS_BYTES:]
                    raise RuntimeError(f"the broker did not start; it said:\n{words}")
                time.sleep(0.01)
        self.url = found[1].decode()

    def said(self) -> str:
        """Everything that it and its predecessors wrote."""
        return self.log_path.read_text(errors="replace")

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

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until it has ended by itself; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        return self._running().wait(timeout_s)

    def leave_running(self) -> int:
        """Let go of it without stopping it; returns its process id."""
        process, self._process = self._running(), None
        # A Popen that is collected while its process runs warns; this one is meant to stay.
        process.returncode = 0
        return process.pid

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM now (Linux)."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        if found is None:
            raise RuntimeError(f"process {self.pid} has no memory any more; it has ended")
        return int(found[1]) * 1024

    def _running(self) -> Running:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class LocalBroker:
    """A broker in this process: the same code as ``danube broker``, without its signals.

    As an async context manager it runs on the caller's event loop; as a plain one on a loop in a
    thread of its own. It can be stopped and started again on the same data and port.

    Args:
        data_dir: journal, metadata and tables; default: a temporary directory, removed at the end.
        settings: by dotted keys.
    """

    def __init__(self, data_dir: Path | None = None, settings: SettingValues | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory() if data_dir is None else None
        self.data_dir = data_dir or Path(self._temporary.name if self._temporary else "") / "data"
        self.settings = {"broker.listen": "127.0.0.1:0", "broker.metrics_listen": ""}
        self.settings |= {key: str(value) for key, value in (settings or {}).items()}
        self.failure: BaseException | None = None
        """What the journal's disk did; a broker process would have ended with it."""
        self.prepare: Callable[[Broker], None] = _leave_alone
        """Called with every new broker before it starts: the place to put faults in."""
        self._broker: Broker | None = None
        self._thread: _LoopThread | None = None

    @property
    def url(self) -> str:
        """Where it listens, ``host:port``."""
        return self.settings["broker.listen"]

    @property
    def broker(self) -> Broker:
        """The running broker.

        Raises:
            FailedPrecondition: it does not run.
        """
        if self._broker is None:
            raise FailedPrecondition("the local broker does not run; start it first")
        return self._broker

    @property
    def engine(self) -> LogEngine:
        """The running broker's log engine; to be used on its event loop only."""
        return self.broker.engine

    async def start(self) -> None:
        """Recover and serve. Raises what ``danube.broker.server.Broker.start`` does."""
        from danube.broker.server import Broker
        from danube.broker.settings import BrokerSettings
        from danube.core.settings import load

        flags = {**self.settings, "broker.data_dir": str(self.data_dir)}
        broker = Broker(load(BrokerSettings, None, {}, flags).model)
        broker.on_failure = self._failed
        self.failure = None
        self.prepare(broker)
        try:
            await broker.start()
        except BaseException:
            await broker.abandon()
            raise
        self._broker = broker
        self.settings["broker.listen"] = broker.url

    async def stop(self) -> None:
        """Drain, roll, release, close; only close when the disk has failed. Idempotent."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await (broker.stop() if self.failure is None else broker.abandon())

    async def crash(self) -> None:
        """End as kill -9 would: nobody is told, nothing is rolled or released."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.abandon()

    def _failed(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def _clean(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        finally:
            self._clean()

    def __enter__(self) -> Self:
        self._thread = _LoopThread(self)
        self._thread.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        try:
            if thread is not None:
                thread.end()
        finally:
            self._clean()


class _LoopThread:
    """An event loop in a thread for as long as one broker is used by blocking code."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="danube-local-broker", daemon=True)

    def begin(self) -> None:
        """Start the broker and wait until it serves."""
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise Unavailable(f"the local broker did not start within {START_TIMEOUT_S:g} s")
        self._raise()

    def end(self) -> None:
        """Stop the broker and the thread."""
        assert self._loop is not None
        assert self._leave is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        await self._broker.start()
        self._ready.set()
        await self._leave.wait()
        await self._broker.stop()


def _leave_alone(broker: Broker) -> None:
    """Change nothing."""


def _over(began: float, timeout_s: float) -> bool:
    return time.monotonic() - began > timeout_s
