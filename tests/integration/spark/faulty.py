"""``format("danube_faulty")``: the sink with places where a test can make it fail, once each.

A fault is a file in the directory of the option ``faultDir``, named after its place, with what is
to happen: ``raise``, ``kill PID PID…`` or ``wait``. It goes off in whichever process comes by.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_danube import DefaultSource
from spark_sink.options import SinkOptions
from spark_sink.writers import DanubeStreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PLACES = ("before-stage", "after-stage", "before-commit", "after-commit")
GIVE_UP_S = 120


class InjectedFault(Exception):
    """What a fault raises."""


class FaultySource(DefaultSource):
    """Danube with faults in its streaming writer."""

    @classmethod
    def name(cls) -> str:
        return "danube_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DanubeStreamWriter:
        faults = Path(self.options["faultDir"])
        return FaultyWriter(SinkOptions.parse(self.options), schema, overwrite, faults)


class FaultyWriter(DanubeStreamWriter):
    """Comes by each place in turn."""

    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, faults: Path
    ) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._faults = faults

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        come_by(self._faults, "before-stage")
        message = super().write(iterator)
        come_by(self._faults, "after-stage")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        come_by(self._faults, "before-commit")
        super().commit(messages, batchId)
        come_by(self._faults, "after-commit")


def come_by(faults: Path, place: str) -> None:
    """Let the fault at ``place`` happen, if there is one and it has not happened yet."""
    reached = faults / f"{place}.reached"
    try:
        (faults / place).rename(reached)
    except FileNotFoundError:
        return
    action, *arguments = reached.read_text().split()
    match action:
        case "raise":
            raise InjectedFault(f"injected {place}")
        case "kill":
            for pid in arguments:
                os.kill(int(pid), signal.SIGKILL)
            _wait_for(faults / "never")
        case "wait":
            _wait_for(faults / f"{place}.go")
        case other:
            raise AssertionError(other)


def _wait_for(path: Path) -> None:
    give_up_at = time.monotonic() + GIVE_UP_S
    while not path.exists():
        if time.monotonic() > give_up_at:
            raise InjectedFault(f"{path.name} never came")
        time.sleep(0.01)


def inject(faults: Path, place: str, action: str) -> None:
    """Put a fault at ``place``."""
    assert place in PLACES
    faults.mkdir(parents=True, exist_ok=True)
    # In one step, because a writer may be looking.
    new = faults / f"{place}.new"
    new.write_text(action)
    new.rename(faults / place)


def happened(faults: Path, place: str) -> bool:
    """Whether the fault at ``place`` went off."""
    return (faults / f"{place}.reached").exists()
