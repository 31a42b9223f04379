"""Retention plans: whole files, oldest first, and never what somebody still needs."""

from __future__ import annotations

import pytest

from danube.lake.snapshot import FileInfo, Snapshot
from danube.upkeep.retention import HOUR_US, Needed, RetentionPolicy, plan_retention

NOW_US = 1000 * HOUR_US


def file(partition: int, start: int, end: int, *, age_hours: int, size: int = 100) -> FileInfo:
    time_us = NOW_US - age_hours * HOUR_US
    path = f"partition={partition}/{start}"
    return FileInfo(
        path, path, partition, start, end, end - start, size, 0, 10**18, time_us, time_us
    )


def table(**txn: int) -> Snapshot:
    """Partition 0: three files, 30, 20 and 10 hours old; partition 1: one of 25 hours."""
    files = {
        0: (
            file(0, 0, 10, age_hours=30),
            file(0, 10, 20, age_hours=20),
            file(0, 25, 30, age_hours=10),
        ),
        1: (file(1, 0, 50, age_hours=25),),
    }
    txns = {"off/0": 30, "off/1": 60, "maint/0": 4, **txn}
    return Snapshot(9, 0.0, "t", files, txns)


def planned(
    policy: RetentionPolicy, needed: dict[int, Needed] | None = None, cap_hours: int = 1000
) -> dict[int, tuple[int, int, int]]:
    """Per partition: how many files go, the new start, the messages Spark loses."""
    plans = plan_retention(
        table(),
        policy,
        {0: Needed(), 1: Needed()} if needed is None else needed,
        now_us=NOW_US,
        spark_cap_hours=cap_hours,
    )
    assert all(plan.maint == table().maint(plan.partition) for plan in plans)
    return {plan.partition: (len(plan.files), plan.new_start, plan.capped) for plan in plans}


def hours(count: int) -> int:
    return count * 3_600_000


def test_without_a_policy_everything_stays() -> None:
    assert planned(RetentionPolicy()) == {}


def test_files_go_by_the_age_of_their_newest_message() -> None:
    assert planned(RetentionPolicy(max_age_ms=hours(40))) == {}
    assert planned(RetentionPolicy(max_age_ms=hours(28))) == {0: (1, 10, 0)}
    assert planned(RetentionPolicy(max_age_ms=hours(22))) == {0: (1, 10, 0), 1: (1, 60, 0)}


def test_the_log_starts_after_a_lost_range_that_nothing_is_left_before() -> None:
    assert planned(RetentionPolicy(max_age_ms=hours(15)))[0] == (2, 25, 0)
    assert planned(RetentionPolicy(max_age_ms=hours(1)))[0] == (3, 30, 0)


def test_only_whole_files_go_so_the_table_overshoots_by_less_than_one() -> None:
    assert planned(RetentionPolicy(max_bytes=400)) == {}
    assert planned(RetentionPolicy(max_bytes=301)) == {}
    assert planned(RetentionPolicy(max_bytes=300)) == {0: (1, 10, 0)}
    assert planned(RetentionPolicy(max_bytes=200)) == {0: (1, 10, 0), 1: (1, 60, 0)}


@pytest.mark.parametrize(
    ("acknowledged", "expected"),
    [(None, {}), (9, {}), (10, {0: (1, 10, 0)}), (25, {0: (2, 25, 0)}), (30, {0: (3, 30, 0)})],
)
def test_until_ack_lets_go_what_every_subscription_acknowledged(
    acknowledged: int | None, expected: dict[int, tuple[int, int, int]]
) -> None:
    policy = RetentionPolicy(until_acked=True)
    assert planned(policy, {0: Needed(acknowledged)}) == expected


def test_until_ack_and_an_age_must_both_allow_it() -> None:
    policy = RetentionPolicy(max_age_ms=hours(15), until_acked=True)
    assert planned(policy, {0: Needed(10)}) == {0: (1, 10, 0)}
    assert planned(policy, {0: Needed(30)}) == {0: (2, 25, 0)}


def test_a_spark_query_holds_what_it_still_needs() -> None:
    policy = RetentionPolicy(max_age_ms=hours(1))
    assert planned(policy, {0: Needed(spark_floor=10)}) == {0: (1, 10, 0)}
    assert planned(policy, {0: Needed(spark_floor=9)}) == {}
    assert planned(policy, {0: Needed(spark_floor=30)}) == {0: (3, 30, 0)}


def test_past_the_hard_cap_files_go_and_what_spark_loses_is_counted() -> None:
    policy = RetentionPolicy(max_age_ms=hours(1))
    assert planned(policy, {0: Needed(spark_floor=5)}, cap_hours=15) == {0: (2, 25, 15)}


def test_partitions_of_others_are_left_alone() -> None:
    assert planned(RetentionPolicy(max_bytes=1), {1: Needed()}) == {1: (1, 60, 0)}
