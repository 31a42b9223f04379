"""Exactly once: rolls, lost replies, writers that slept, strangers in the log."""

from __future__ import annotations

import json

import pytest

from danube.core.errors import Corruption, ForeignCommit, Unavailable
from danube.core.stores import ObjectStoreUnavailable
from danube.lake.actions import COMMIT_ID
from danube.lake.layout import commit_key, table_key
from danube.lake.replay import Loaded
from danube.objects.faulty import Crashed, Fault, FaultyObjects
from danube.objects.memory import MemoryObjects
from tests.unit.lake.lake_samples import (
    HOUR_S,
    NOW_US,
    TOPIC,
    HandClock,
    faulty,
    filled,
    newest,
    offsets_in,
    once,
    open_table,
    owner,
    part,
)

LOG = table_key(TOPIC) + "/_delta_log/"


# -- the ordinary way -------------------------------------------------------------------------


def test_rolls_continue_where_the_last_one_ended() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert table.roll([part(100, 130)]).rolled == {0: 130}
    assert offsets_in(store, newest(store)) == list(range(130))


def test_one_delta_commit_carries_all_partitions() -> None:
    store = MemoryObjects()
    table = open_table(store)
    table.fence({0: 1, 1: 1, 2: 1})
    version = table.snapshot.version
    result = table.roll([part(0, 20, partition=p) for p in range(3)])
    assert result.version == version + 1
    assert result.rolled == {0: 20, 1: 20, 2: 20}


def test_a_roll_needs_the_table_to_be_fenced_by_this_broker() -> None:
    store = MemoryObjects()
    owner(store, 1, 0)
    other = open_table(store, seed=1)
    result = other.roll([part(0, 10, epoch=1)])
    assert result.rolled == {}
    assert "not fenced by this broker" in result.dropped[0]
    assert offsets_in(store, newest(store)) == []


def test_a_roll_that_was_done_before_changes_nothing() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    table.roll([part(0, 100)])
    version = table.snapshot.version
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert table.snapshot.version == version


def test_a_roll_that_was_half_done_adds_only_the_rest() -> None:
    store = MemoryObjects()
    table = owner(store, 1, 0)
    table.roll([part(0, 55)])
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert offsets_in(store, newest(store)) == list(range(100))


# -- lost replies -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.TIMEOUT, Fault.REFUSED])
def test_a_reply_that_was_lost_neither_loses_nor_doubles_a_roll(fault: Fault) -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", fault))
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert offsets_in(inner, newest(inner)) == list(range(100))


def test_a_fence_whose_reply_was_lost_is_known_to_be_ours() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = open_table(store)
    plans.append(once("create", Fault.LOST_REPLY))
    table.fence({0: 7})
    assert newest(inner).epoch(0) == 7


def test_only_the_random_id_tells_a_lost_reply_from_somebody_elses_commit() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    mine = owner(store, 1, 0)
    done: list[int] = []

    def beaten_while_the_reply_is_lost(operation: str, key: str) -> Fault | None:
        if operation == "create" and not done:
            done.append(1)
            open_table(inner, seed=1).fence({0: 2})
            return Fault.TIMEOUT
        return None

    plans.append(beaten_while_the_reply_is_lost)
    result = mine.roll([part(0, 10)])
    assert result.rolled == {}
    assert offsets_in(inner, newest(inner)) == []


def test_a_commit_that_landed_after_we_gave_up_counts_once() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", Fault.LATE, times=3))
    with pytest.raises(ObjectStoreUnavailable, match="next snapshot"):
        table.roll([part(0, 100)])
    store.deliver_late()
    assert table.roll([part(0, 100)]).rolled == {0: 100}
    assert offsets_in(inner, newest(inner)) == list(range(100))


def test_a_commit_that_lands_under_the_next_attempt_counts_once() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", Fault.LATE, times=3))
    with pytest.raises(ObjectStoreUnavailable):
        table.roll([part(0, 60)])

    def delivered(operation: str, key: str) -> Fault | None:
        if operation == "create":
            store.deliver_late()
        return None

    plans.append(delivered)
    # The first attempt wins the version; ours sees it, drops out, and says how far it went.
    assert table.roll([part(0, 100)]).rolled == {0: 60}
    assert table.roll([part(60, 100)]).rolled == {0: 100}
    assert offsets_in(inner, newest(inner)) == list(range(100))


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_crash_around_the_commit_is_resolved_by_the_next_owner(fault: Fault) -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    table = owner(store, 1, 0)
    plans.append(once("create", fault))
    with pytest.raises(Crashed):
        table.roll([part(0, 10)])
    successor = owner(inner, 2, 1)
    off = successor.snapshot.off(0)
    assert off == (10 if fault is Fault.CRASH_AFTER else 0)
    successor.roll([part(off, 20, epoch=2)])
    assert offsets_in(inner, newest(inner)) == list(range(20))


# -- sleeping writers -------------------------------------------------------------------------


def test_a_writer_that_slept_past_log_clean_up_does_not_trust_a_free_version() -> None:
    """Its next version was taken, cleaned up, and is free again: linking it must not count."""
    inner = MemoryObjects()
    clock = HandClock()
    sleeper = owner(inner, 1, 0, clock)
    sleeper.roll([part(0, 10)])
    asleep = sleeper.snapshot.version
    taker = owner(inner, 2, 1, clock)
    taker.roll([part(10, 30, epoch=2)])
    clock.forward(100 * HOUR_S)
    # As log clean-up would: a Delta checkpoint stands for what is deleted. Here the log is long
    # enough for the sleeper's own eyes, so its next version simply vanishes.
    inner.delete([commit_key(sleeper.log.table, asleep + 1)])
    with pytest.raises(Corruption, match="missing"):
        sleeper.roll([part(10, 20)])


def test_a_commit_made_on_a_snapshot_that_grew_old_in_between_is_checked_again() -> None:
    inner = MemoryObjects()
    store, plans = faulty(inner)
    clock = HandClock()
    table = owner(store, 1, 0, clock)
    slept: list[int] = []

    def sleep_before_creating(operation: str, key: str) -> Fault | None:
        if operation == "create" and not slept:
            slept.append(1)
            clock.forward(100 * HOUR_S)
        return None

    plans.append(sleep_before_creating)
    loads: list[int] = []
    load = table.log.load

    def counted() -> Loaded:
        loads.append(1)
        return load()

    table.log.load = counted  # type: ignore[method-assign]
    table.fence({0: 2})
    assert loads == [1]
    assert newest(inner).epoch(0) == 2


def test_files_that_waited_too_long_for_their_commit_are_not_committed() -> None:
    inner = MemoryObjects()
    clock = HandClock()
    slept: list[int] = []

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "create" and key.endswith(".parquet") and not slept:
            slept.append(1)
            clock.forward(13 * HOUR_S)
        return None

    table = owner(FaultyObjects(inner, plan), 1, 0, clock)
    with pytest.raises(Unavailable, match="roll again"):
        table.roll([part(0, 10)])
    assert table.roll([part(0, 10)]).rolled == {0: 10}


# -- strangers --------------------------------------------------------------------------------


def stranger(store: MemoryObjects, version: int, *actions: dict[str, object]) -> None:
    info = {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "Other/1.0"}}
    lines = "\n".join(json.dumps(action) for action in (info, *actions))
    store.create(f"{LOG}{version:020}.json", lines.encode())


FOREIGN_ADD = {
    "add": {
        "path": "partition=0/part-1.parquet",
        "partitionValues": {"partition": "0"},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
    }
}


@pytest.mark.parametrize(
    ("action", "held"),
    [
        (FOREIGN_ADD, "added files"),
        ({"remove": {"path": "partition=0/x", "dataChange": False}}, "removed files"),
        ({"metaData": {"id": "x"}}, "metadata"),
        ({"protocol": {"minReaderVersion": 3}}, "protocol"),
        ({"domainMetadata": {"domain": "x"}}, "domainMetadata"),
        ({"txn": {"appId": "off/0", "version": 5}}, "state"),
    ],
)
def test_a_foreign_commit_stops_the_topic_and_names_the_version(
    action: dict[str, object], held: str
) -> None:
    store = MemoryObjects()
    table = filled(store)
    version = table.snapshot.version + 1
    stranger(store, version, action)
    with pytest.raises(ForeignCommit, match=rf"version {version}.*Other/1.0.*{held}.*To go on"):
        table.roll([part(40, 50)])
    with pytest.raises(ForeignCommit):
        newest(store)


def test_a_foreign_commit_that_changes_nothing_of_ours_is_stepped_over() -> None:
    store = MemoryObjects()
    table = filled(store)
    stranger(store, table.snapshot.version + 1, {"txn": {"appId": "etl", "version": 5}})
    assert table.roll([part(40, 50)]).rolled == {0: 50}
    assert newest(store).txn["etl"] == 5


def test_every_commit_of_ours_has_its_own_random_id() -> None:
    store = MemoryObjects()
    filled(store)
    found = [store.get(info.key) for info in store.list(LOG)]
    infos = [json.loads(data.splitlines()[0])["commitInfo"] for data in found]
    assert len({info[COMMIT_ID] for info in infos}) == len(infos) == 6
    assert all(info["timestamp"] == NOW_US // 1000 for info in infos)


def test_transactions_carry_no_time_that_would_let_them_expire() -> None:
    store = MemoryObjects()
    filled(store)
    text = b"".join(store.get(info.key) for info in store.list(LOG))
    assert b"lastUpdated" not in text
    assert b"setTransactionRetentionDuration" not in text
