"""Which whole files a topic's policy lets go. Pure: files, cursors and the time are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from danube.lake.snapshot import FileInfo, Snapshot

HOUR_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a topic was created with; nothing set keeps everything.

    Attributes:
        max_age_ms: a file may go once its newest message was appended longer ago than this.
        max_bytes: the oldest files may go while the topic's others hold at least this much.
        until_acked: a file may go only when every subscription has acknowledged all of it; with
            neither of the others set, it goes as soon as that is so.
    """

    max_age_ms: int | None = None
    max_bytes: int | None = None
    until_acked: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """What readers of one partition still need.

    Attributes:
        acknowledged: everything below was acknowledged by every subscription; None if the topic
            has no subscription.
        spark_floor: everything from here on a registered Spark query still has to read; None if
            there is none.
    """

    acknowledged: int | None = None
    spark_floor: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What leaves one partition.

    Attributes:
        partition: its number.
        maint: the snapshot's, so that a table that has changed since voids the plan.
        files: the oldest live files, all below ``new_start``.
        new_start: the new log start offset: where the next file or what is not rolled yet begins.
        capped: messages that a Spark query still needed and that go all the same.
    """

    partition: int
    maint: int
    files: tuple[FileInfo, ...]
    new_start: int
    capped: int


def plan_retention(
    snapshot: Snapshot,
    policy: RetentionPolicy,
    needed: Mapping[int, Needed],
    *,
    now_us: int,
    spark_cap_hours: int,
) -> list[RetentionPlan]:
    """Plan for every partition named in ``needed``; partitions of which nothing goes are left out.

    Args:
        snapshot: the table.
        policy: the topic's.
        needed: per partition that may be retired, what readers still need.
        now_us: wall clock, microseconds since 1970.
        spark_cap_hours: how long past its policy a file waits for Spark.
    """
    if policy == RetentionPolicy():
        return []
    surplus = _surplus(snapshot, policy)
    plans: list[RetentionPlan] = []
    for partition in sorted(needed):
        going: list[FileInfo] = []
        capped = 0
        for file in snapshot.partition_files(partition):
            if not _may_go(file, policy, needed[partition], file.path in surplus, now_us):
                break
            floor = needed[partition].spark_floor
            if floor is not None and file.end > floor:
                if not _past_cap(file, policy, now_us, spark_cap_hours):
                    break
                capped += file.end - max(file.start, floor)
            going.append(file)
        if going:
            plans.append(_plan(snapshot, partition, going, capped))
    return plans


def _may_go(
    file: FileInfo, policy: RetentionPolicy, needed: Needed, surplus: bool, now_us: int
) -> bool:
    if policy.until_acked:
        if needed.acknowledged is None or file.end > needed.acknowledged:
            return False
        if policy.max_age_ms is None and policy.max_bytes is None:
            return True
    return surplus or _too_old(file, policy, now_us)


def _too_old(file: FileInfo, policy: RetentionPolicy, now_us: int) -> bool:
    if policy.max_age_ms is None:
        return False
    return file.max_append_time_us < now_us - policy.max_age_ms * 1000


def _past_cap(file: FileInfo, policy: RetentionPolicy, now_us: int, cap_hours: int) -> bool:
    allowed_us = (policy.max_age_ms or 0) * 1000 + cap_hours * HOUR_US
    return file.max_append_time_us < now_us - allowed_us


def _surplus(snapshot: Snapshot, policy: RetentionPolicy) -> set[str]:
    """The oldest files without which the topic still holds ``max_bytes``."""
    if policy.max_bytes is None:
        return set()
    files = sorted(snapshot.all_files(), key=lambda file: (file.max_append_time_us, file.start))
    left = sum(file.size_bytes for file in files)
    found: set[str] = set()
    for file in files:
        if left - file.size_bytes < policy.max_bytes:
            break
        left -= file.size_bytes
        found.add(file.path)
    return found


def _plan(
    snapshot: Snapshot, partition: int, going: Sequence[FileInfo], capped: int
) -> RetentionPlan:
    files = snapshot.partition_files(partition)
    # Past lost ranges too: the log starts at a message or where the next one will be.
    next_start = files[len(going)].start if len(going) < len(files) else snapshot.off(partition)
    return RetentionPlan(partition, snapshot.maint(partition), tuple(going), next_start, capped)
