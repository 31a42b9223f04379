"""What names one run of a query, so that two live runs on one subscription are told apart.

A query that was stopped says nothing (Spark kills its source's process), so the broker would take
its run for alive until a time-out. Where the subscription's name was generated, it is known to this
query's Spark checkpoint alone, and Spark lets no two runs of one checkpoint live in one driver: a
new run in the same driver has the same id there and goes on at once. Runs with a name the user gave
have an id of their own each, since two queries may have been given one name by mistake.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from pathlib import Path

_STAT_START_TIME = 19
"""Field of /proc/PID/stat behind the command's name: when the process began."""


def run_id(*, generated_name: bool) -> str:
    """32 hex digits for this run.

    Args:
        generated_name: the subscription's name was generated, not given by the user.
    """
    driver = _driver() if generated_name else None
    if driver is None:
        return uuid.uuid4().hex
    return hashlib.sha256(driver.encode()).hexdigest()[:32]


def _driver() -> str | None:
    """The driver this process was started for; None where that cannot be told for sure.

    Spark's source processes are children of the driver's JVM, or of its one Python daemon.
    """
    parent = os.getppid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{parent}/stat").read_text()
    except OSError:
        return None
    # The command's name is in parentheses and may hold anything, also spaces and parentheses.
    started = stat.rpartition(")")[2].split()[_STAT_START_TIME]
    return f"{socket.gethostname()} {boot} {parent} {started}"
