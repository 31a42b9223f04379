"""Settings of the topic log."""

from __future__ import annotations

from pydantic import Field

from danube.core.limits import DEFAULT_MAX_FRAME_BYTES, DEFAULT_MAX_MESSAGE_BYTES, MIB
from danube.core.settings import Settings


class LogSettings(Settings):
    """What can be set of the topic log."""

    max_message_bytes: int = Field(default=DEFAULT_MAX_MESSAGE_BYTES, ge=1, le=64 * MIB)
    """Largest message of a topic that sets no limit of its own. Official Danube clients cannot
    receive messages above the default."""
    max_frame_bytes: int = Field(default=DEFAULT_MAX_FRAME_BYTES, ge=64 * 1024, le=48 * MIB)
    """Largest frame."""
    max_uncompressed_bytes: int = Field(default=32 * MIB, ge=64 * 1024)
    """Largest size that a frame's body may expand to."""
    max_in_flight_bytes: int = Field(default=128 * MIB, ge=MIB)
    """Appends that wait for their flush, over all topics."""
    tail_cache_bytes: int = Field(default=128 * MIB, ge=0)
    """Newest frames kept in memory, over all topics."""
    roll_age_s: float = Field(default=3.0, gt=0)
    """Age of the oldest un-rolled message that starts a roll of a busy topic."""
    roll_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Un-rolled bytes of a topic that start a roll, and about what one Delta commit takes."""
    max_delta_commits_per_s: float = Field(default=10.0, gt=0)
    """With many topics to roll, their age grows so that this rate holds."""
    roll_thread_count: int = Field(default=2, ge=1, le=64)
    """Rolls at the same time."""
    read_thread_count: int = Field(default=4, ge=1, le=64)
    """Reads from journal and tables at the same time."""
    ceiling_step_offsets: int = Field(default=16 * 1024 * 1024, ge=1)
    """How many offsets ahead the offset ceiling is reserved in metadata."""
    staged_bytes: int = Field(default=8 * 1024 * MIB, ge=MIB)
    """Disk that staged sets of Spark sinks may take, over all topics."""
    staged_ttl_s: float = Field(default=6 * 3600.0, gt=0)
    """A staged set that no commit has pinned is dropped after this time."""
    pin_ttl_s: float = Field(default=60.0, gt=0)
    """A pin without a decision is aborted, by compare-and-set, after this time."""
    resolve_interval_s: float = Field(default=2.0, gt=0)
    """How often pins without an outcome are looked up."""
    max_producers_count: int = Field(default=10_000, ge=1)
    """Producers that a partition remembers to recognise duplicates."""
    producer_ttl_s: float = Field(default=24 * 3600.0, gt=0)
    """Idle producers are forgotten after this time."""
