"""Settings of the tables."""

from __future__ import annotations

from pydantic import Field

from danube.core.limits import MIB
from danube.core.settings import Settings


class LakeSettings(Settings):
    """How topics' tables are written."""

    file_bytes: int = Field(default=128 * MIB, ge=MIB, le=1024 * MIB)
    """Largest Parquet file, counted before compression; also what a roll holds in memory twice."""

    row_group_rows: int = Field(default=50_000, ge=100)
    """Rows per row group in fresh files: what a reader that seeks has to decode."""

    row_group_bytes: int = Field(default=64 * MIB, ge=64 * 1024)
    """Largest row group before compression, when messages are large."""

    compression_level: int = Field(default=1, ge=1, le=22)
    """Level of zstd."""

    store_attempts: int = Field(default=3, ge=1, le=100)
    """How often one Delta commit or file is put while the store does not answer."""

    conflict_attempts: int = Field(default=100, ge=1)
    """How many Delta commits of others one of ours gives way to before it is given up for now."""

    log_retention_hours: int = Field(default=168, ge=1)
    """Age after which log clean-up may remove Delta commits; a snapshot older than half of it is
    void until refreshed."""

    uncommitted_hours: int = Field(default=12, ge=1)
    """A Parquet file that waited this long for its Delta commit is written again: upkeep takes
    files without a commit for orphans at twice this age or more."""

    checkpoint_interval_count: int = Field(default=20, ge=1)
    """Delta commits between two Delta checkpoints."""
