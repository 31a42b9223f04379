"""All settings of a broker: its own, and those of the rooms it composes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from danube.core.errors import InvalidSettings
from danube.core.settings import Settings
from danube.journal.flush import largest_flush
from danube.journal.settings import JournalSettings
from danube.lake.settings import LakeSettings
from danube.log.settings import LogSettings
from danube.upkeep.settings import UpkeepSettings


class ServerSettings(Settings):
    """Where the broker keeps its data, listens and reports."""

    data_dir: Path | None = None
    """Directory of journal, metadata and tables. Required."""
    listen: str = "127.0.0.1:6650"
    """Address of the client port. One that is not loopback needs ``insecure``."""
    advertise: str = ""
    """Address that clients are told; default: the listen address."""
    insecure: bool = False
    """Allow a listen address that other machines can reach, without encryption or identity."""
    metrics_listen: str = "127.0.0.1:0"
    """Address of the Prometheus port; port 0 takes a free one, empty turns it off."""
    drain_timeout_s: float = Field(default=10.0, gt=0)
    """How long a graceful stop waits for calls under way."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe events that are written."""
    log_format: Literal["text", "json"] = "text"
    """Events as text for people or as JSON lines."""


class DispatchSettings(Settings):
    """Subscriptions of consumers."""

    max_credit_bytes: int = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    """Most credit that one consumer may have outstanding."""
    outbox_bytes: int = Field(default=256 * 1024 * 1024, ge=1024 * 1024)
    """Deliveries that wait for their consumers to take them, over all consumers."""
    max_reads_count: int = Field(default=64, ge=1, le=4096)
    """Reads without a subscription that are served at the same time; further ones wait."""
    max_unacked_messages: int = Field(default=100_000, ge=1)
    """Messages of one subscription and partition that may be delivered and not acknowledged."""
    max_acked_ranges_count: int = Field(default=10_000, ge=1)
    """Gaps that acknowledgements may leave in one cursor before new deliveries wait."""
    read_ahead_bytes: int = Field(default=2 * 1024 * 1024, ge=64 * 1024)
    """What is read for one subscription and partition at a time."""
    query_ttl_s: float = Field(default=15.0, gt=0)
    """A Spark run that was silent for so long may be replaced by another one."""


class BrokerSettings(Settings):
    """One broker process."""

    broker: ServerSettings = ServerSettings()
    """The process."""
    journal: JournalSettings = JournalSettings()
    """The journal."""
    log: LogSettings = LogSettings()
    """Topic logs: limits, memory, rolling, staging."""
    lake: LakeSettings = LakeSettings()
    """Delta tables and their Parquet files."""
    dispatch: DispatchSettings = DispatchSettings()
    """Subscriptions."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """Retention, clean-up, Delta checkpoints."""


ENTRY_OVERHEAD_BYTES = 4096
"""What a frame takes in a segment beside itself, at most."""


def check_limits(settings: BrokerSettings) -> None:
    """Refuse limits that contradict each other at the start, and not at the first large message.

    Raises:
        InvalidSettings: a message would not fit a frame, or a frame not a segment.
    """
    log, segment_bytes = settings.log, settings.journal.segment_bytes
    if log.max_message_bytes > log.max_frame_bytes:
        raise InvalidSettings(
            f"log.max_message_bytes is {log.max_message_bytes} and log.max_frame_bytes is "
            f"{log.max_frame_bytes}: such messages fit no frame; lower the one or raise the other"
        )
    if log.max_frame_bytes + ENTRY_OVERHEAD_BYTES > largest_flush(segment_bytes):
        raise InvalidSettings(
            f"log.max_frame_bytes is {log.max_frame_bytes} and journal.segment_bytes is "
            f"{segment_bytes}: such frames fit no segment; lower the one or raise the other"
        )
