"""What every partition of one broker shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from danube.core.clock import Clock, IdSource
from danube.core.errors import StagedFull
from danube.core.stores import ObjectStore
from danube.journal.journal import Journal
from danube.lake.settings import LakeSettings
from danube.log.cache import TailCache
from danube.log.settings import LogSettings
from danube.log.workers import Workers
from danube.log.writing import JournalWriter
from danube.metadata.catalog import Catalog

if TYPE_CHECKING:
    from danube.log.decisions import SinkCoordinator


@dataclass(slots=True)
class StagedBudget:
    """The staged sets' share of the disk."""

    capacity_bytes: int
    used_bytes: int = 0

    def take(self, size: int) -> None:
        """Count ``size`` more bytes.

        Raises:
            StagedFull: the share is spent.
        """
        if self.used_bytes + size > self.capacity_bytes:
            raise StagedFull(
                f"staged sets hold {self.used_bytes} bytes and {size} more would exceed their "
                f"share of the disk, {self.capacity_bytes} bytes; raise log.staged_bytes, or "
                "write smaller batches"
            )
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Count ``size`` bytes less."""
        self.used_bytes -= size


@dataclass(slots=True)
class LogContext:
    """Services and settings, made once by the engine."""

    journal: Journal
    writer: JournalWriter
    catalog: Catalog
    store: ObjectStore
    settings: LogSettings
    lake_settings: LakeSettings
    clock: Clock
    ids: IdSource
    workers: Workers
    cache: TailCache
    staged: StagedBudget
    sinks: SinkCoordinator
