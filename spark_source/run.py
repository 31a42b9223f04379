"""What names one run of a query, so that two live runs on one subscription are told apart.

A query that was stopped says nothing (Spark kills its source's process), so the broker takes its
run for alive until a time-out. But who starts it again in the same driver need not wait: while a
run lives, its process holds a name in the kernel, which goes with the process however it ends. Who
gets that name is the driver's only run on the subscription and has the id that its predecessor
had; who does not, because another query of the driver has it, gets an id of its own, which the
broker refuses.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import uuid
from pathlib import Path

_STAT_START_TIME = 19
"""Field of /proc/PID/stat behind the command's name: when the process began."""


class RunName:
    """The id of a run, 32 hex digits.

    Args:
        subscription: the one it reads under.
    """

    def __init__(self, subscription: str) -> None:
        self._own = uuid.uuid4().hex
        self._shared = _name_in_driver(subscription)
        self._held: socket.socket | None = None

    def current(self) -> str:
        """The id to use now; asked again before each try, as a predecessor may just have died."""
        if self._shared is None:
            return self._own
        if self._held is None:
            self._held = _hold(self._shared)
        return self._own if self._held is None else self._shared

    def release(self) -> None:
        """The run is over: another of this driver may have the name."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _hold(name: str) -> socket.socket | None:
    """Take ``name`` among Linux's abstract sockets: no file, nothing to clean up."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(f"\0danube-spark-{name}")
    except OSError:
        found.close()
        return None
    return found


def _name_in_driver(subscription: str) -> str | None:
    """A name for (this driver, subscription); None where drivers cannot be told apart for sure.

    Spark's source processes are children of the driver's JVM, or of its one Python daemon.
    """
    if sys.platform != "linux":
        return None
    parent = os.getppid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{parent}/stat").read_text()
    except OSError:
        return None
    # The command's name is in parentheses and may hold anything, also spaces and parentheses.
    started = stat.rpartition(")")[2].split()[_STAT_START_TIME]
    whole = "\n".join((socket.gethostname(), boot, str(parent), started, subscription))
    return hashlib.sha256(whole.encode()).hexdigest()[:32]
