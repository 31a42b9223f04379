"""Settings of upkeep."""

from __future__ import annotations

from pydantic import Field

from danube.core.settings import Settings


class UpkeepSettings(Settings):
    """How long things are kept that nobody needs any more."""

    removal_delay_hours: int = Field(default=24, ge=1, le=168)
    """How long objects stay after their file left the table: readers may be at them. At most as
    long as Delta keeps removals in its log (seven days)."""

    orphan_age_hours: int = Field(default=48, ge=24)
    """Age at which a data file that no Delta commit ever named is removed. At least twice
    ``lake.uncommitted_hours``: a slow writer may still commit it."""

    deleted_topic_hours: int = Field(default=24, ge=0)
    """How long the table of a deleted topic stays."""

    clean_interval_minutes: int = Field(default=60, ge=1)
    """How often a table's log and objects are looked through."""

    spark_cap_hours: int = Field(default=72, ge=0)
    """How much longer than its policy says a file stays because a Spark query has not read it;
    after that it goes, and this is announced."""
