"""Settings of the journal."""

from __future__ import annotations

from pydantic import Field

from danube.core.limits import KIB, MIB
from danube.core.settings import Settings


class JournalSettings(Settings):
    """What can be set of the journal."""

    segment_bytes: int = Field(default=64 * MIB, ge=64 * KIB, le=1024 * MIB)
    """Size of a segment file. No entry can be larger; a frame has to fit."""
    flush_bytes: int = Field(default=8 * MIB, ge=4 * KIB)
    """About how much one flush gathers at most; what is above waits for the next sync."""
    queue_bytes: int = Field(default=256 * MIB, ge=64 * KIB)
    """Entries that wait for their flush; above it submitting answers RESOURCE_EXHAUSTED."""
    disk_reserve_bytes: int = Field(default=320 * MIB, ge=0)
    """Free disk that messages and staged sets may not use, so that acknowledgements, journal
    checkpoints, rolls and Delta commits always fit: two segments, the largest roll, a journal
    checkpoint."""
    spare_segments: int = Field(default=4, ge=0, le=1024)
    """Segments that nothing needs any more and that are kept for their next use."""
    checkpoint_segments: int = Field(default=4, ge=1)
    """A journal checkpoint is due once so many segments were filled since the last one began."""
    checkpoint_age_s: float = Field(default=300.0, gt=0)
    """A journal checkpoint is due when a segment that nothing needs waits for one so long."""
    idle_flush_ms: int = Field(default=100, ge=1)
    """After this time without entries an empty flush is written behind the last one, so that
    damage to acknowledged entries cannot be taken for a torn tail."""
    reader_hold_s: float = Field(default=30.0, gt=0)
    """How long a read may keep a segment from being used again."""
    open_segments: int = Field(default=64, ge=1)
    """Segment files that are kept open for reading."""
