"""The sink's coordinator: what is decided, what is refused, what is given up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from danube.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    StaleSink,
    Unavailable,
)
from danube.log.decisions import (
    BatchAborted,
    CommitRequest,
    Resolution,
    SetRef,
    commit_id_of,
)
from danube.metadata.catalog import SinkRecord
from tests.unit.log.sink_world import TIMEOUT_S, TOPIC, World, names

WEEK_US = 7 * 24 * 3600 * 1_000_000


async def record_of(world: World) -> SinkRecord:
    found = await world.coordinator().list()
    assert len(found) == 1
    return found[0]


# -- deciding ------------------------------------------------------------------------------


async def test_a_committed_batch_is_visible_whole_and_its_record_finished() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1, 0)
    outcome = await world.coordinator().commit(request)
    assert (outcome.already, outcome.lost) == (False, ())
    assert world.visible(0) == names(request, world, 0)
    assert world.visible(1) == names(request, world, 1)
    record = await record_of(world)
    assert (record.last_batch_id, record.run_id, record.finished) == (0, "run", True)
    assert record.commit_id == outcome.commit_id
    assert [(item.topic, item.partition.partition) for item in record.participants] == [
        (TOPIC, 0),
        (TOPIC, 1),
    ]


async def test_a_staged_batch_is_invisible_until_its_commit() -> None:
    world = await World.create()
    world.stage(0, 0, 1)
    assert world.visible(0) == world.visible(1) == []


async def test_a_commit_asked_again_is_answered_and_not_repeated() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    first = await world.coordinator().commit(request)
    again = await world.coordinator().commit(request)
    assert (again.already, again.commit_id) == (True, first.commit_id)
    world.check_whole()


async def test_a_batch_run_again_after_its_decision_is_dropped() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(3, 0))
    again = world.stage(3, 0, 1, run_id="restarted")
    outcome = await world.coordinator().commit(again)
    assert outcome.already
    assert world.partitions[0].staged == world.partitions[1].staged == set()
    assert world.visible(1) == []


async def test_an_empty_batch_is_decided_too() -> None:
    world = await World.create()
    outcome = await world.coordinator().commit(world.stage(0))
    assert not outcome.already
    assert (await record_of(world)).last_batch_id == 0
    assert (await world.coordinator().commit(world.stage(0, 0, run_id="again"))).already
    assert world.visible(0) == []


async def test_batch_ids_begin_anywhere_and_may_skip_some() -> None:
    world = await World.create()
    for batch_id in (41, 42, 50):
        assert not (await world.coordinator().commit(world.stage(batch_id, 0))).already
    assert len(world.visible(0)) == 3


async def test_an_older_batch_is_refused_with_the_command_that_resets_the_sink() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(9, 0))
    request = world.stage(7, 0)
    with pytest.raises(StaleSink, match="danube sinks forget query sink") as refused:
        await world.coordinator().commit(request)
    assert "batch 9" in str(refused.value)
    assert world.pinned == 1


async def test_the_next_batch_waits_until_the_last_is_finished() -> None:
    world = await World.create()
    last = world.stage(0, 0, 1)
    world._gate = away_at(world, "written", 1)
    with pytest.raises(Unavailable):
        await world.coordinator().commit(last)
    world._gate = None
    assert world.visible(0) == names(last, world, 0)
    following = world.stage(1, 0)
    with pytest.raises(Unavailable, match="decided and not yet visible"):
        await world.coordinator().commit(following)
    assert (await record_of(world)).last_batch_id == 0
    world.partitions[1].up = True
    await world.coordinator().commit(following)
    assert world.visible(1) == names(last, world, 1)
    world.check_whole()


def away_at(world: World, gate: str, number: int) -> Any:
    """A gate at which, once a decision is made, the owner of a partition goes away."""

    async def at(name: str) -> None:
        if name == gate and world.decided:
            world.partitions[number].up = False

    return at


async def test_what_is_decided_is_finished_when_the_owner_is_back() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    world._gate = away_at(world, "written", 1)
    with pytest.raises(Unavailable, match="batch 0 is decided and not yet visible"):
        await world.coordinator().commit(request)
    world._gate = None
    world.partitions[1].up = True
    outcome = await world.coordinator().commit(request)
    assert outcome.already
    world.check_whole()
    assert world.visible(1) == names(request, world, 1)


async def test_an_owner_away_before_the_decision_ends_the_wait_with_unavailable() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    world.partitions[1].up = False
    before = world.clock.seconds
    with pytest.raises(Unavailable, match="not committed yet"):
        await world.coordinator().commit(request)
    assert TIMEOUT_S <= world.clock.seconds - before < 2 * TIMEOUT_S
    assert not world.decided
    world.partitions[1].up = True
    assert not (await world.coordinator().commit(request)).already
    world.check_whole()


# -- claims --------------------------------------------------------------------------------


async def test_an_owner_that_changed_after_its_pin_is_asked_again() -> None:
    moved = 0
    world = await World.create()

    async def move_once(name: str) -> None:
        nonlocal moved
        if name == "write" and world.pinned and not moved:
            moved += 1
            await world.move(1)

    world._gate = move_once
    outcome = await world.coordinator().commit(world.stage(0, 0, 1))
    assert (moved, outcome.already) == (1, False)
    assert world.pinned == 4
    world.check_whole()


async def test_a_pin_lost_with_its_owner_before_the_decision_fails_the_batch() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)

    async def lose(name: str) -> None:
        if name == "write" and world.pinned and not world.partitions[1].disks_lost:
            await world.lose_disk(1)

    world._gate = lose
    with pytest.raises(FailedPrecondition, match="not here"):
        await world.coordinator().commit(request)
    assert not world.decided


async def test_a_pin_lost_with_its_disk_after_the_decision_is_a_lost_part() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)

    async def lose(name: str) -> None:
        if world.decided and not world.partitions[1].disks_lost:
            await world.lose_disk(1)

    world._gate = lose
    outcome = await world.coordinator().commit(request)
    assert [(part.topic, part.partition.partition) for part in outcome.lost] == [(TOPIC, 1)]
    assert world.visible(0) == names(request, world, 0)
    again = await world.coordinator().commit(request)
    assert (again.already, again.lost) == (True, outcome.lost)


async def test_a_missing_set_fails_the_batch_and_decides_nothing() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    world.partitions[0].staged.clear()
    with pytest.raises(FailedPrecondition, match="run the batch again"):
        await world.coordinator().commit(request)
    assert not world.decided
    assert (await record_of(world)).last_batch_id == -1


# -- runs ----------------------------------------------------------------------------------


async def test_a_newer_run_takes_the_sink_over_and_the_older_is_refused() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(0, 0, run_id="old"))
    await world.coordinator().commit(world.stage(1, 0, run_id="new"))
    for batch_id in (1, 2):
        with pytest.raises(StaleSink, match="taken it over"):
            await world.coordinator().commit(world.stage(batch_id, 0, run_id="old"))
    await world.coordinator().commit(world.stage(2, 0, run_id="new"))
    assert (await record_of(world)).fenced_runs == ("old",)


async def test_a_newer_run_stops_a_commit_of_the_older_that_is_under_way() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(0, 0, run_id="old"))
    old, new = world.stage(1, 0, 1, run_id="old"), world.stage(1, 0, 1, run_id="new")
    taken = False

    async def take_over(name: str) -> None:
        nonlocal taken
        if name == "pinned" and not taken:
            taken = True
            await world.coordinator().commit(new)

    world._gate = take_over
    with pytest.raises(StaleSink, match="run new"):
        await world.coordinator().commit(old)
    assert world.visible(1) == names(new, world, 1)


async def test_a_new_run_that_finds_its_batch_decided_fences_nobody() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(0, 0, run_id="old"))
    await world.coordinator().commit(world.stage(0, 0, run_id="new"))
    assert (await record_of(world)).fenced_runs == ()


async def test_remembered_runs_and_aborts_are_bounded() -> None:
    world = await World.create()
    for number in range(100):
        await world.coordinator().commit(world.stage(number, run_id=f"run{number}"))
        await world.coordinator().abort_pin(f"{number:032x}", "query", "sink", 1000)
    record = await record_of(world)
    assert len(record.fenced_runs) == len(record.aborted) == 32


# -- giving up -----------------------------------------------------------------------------


async def test_an_abort_drops_what_was_staged() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    assert await world.coordinator().abort(request) is False
    assert world.partitions[0].staged == world.partitions[1].staged == set()
    with pytest.raises(BatchAborted, match="run the batch again"):
        await world.coordinator().commit(request)


async def test_an_abort_never_undoes_a_decision() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    world._gate = away_at(world, "written", 1)
    with pytest.raises(Unavailable):
        await world.coordinator().commit(request)
    world._gate = None
    world.partitions[1].up = True
    assert await world.coordinator().abort(request) is True
    assert len(world.partitions[1].pins) == 1
    await world.coordinator().commit(request)
    assert world.visible(1) == names(request, world, 1)


async def test_an_abort_between_pin_and_decision_wins() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    aborted = False

    async def abort(name: str) -> None:
        nonlocal aborted
        if name == "write" and world.pinned and not aborted:
            aborted = True
            assert await world.coordinator().abort(request) is False

    world._gate = abort
    with pytest.raises(BatchAborted):
        await world.coordinator().commit(request)
    assert not world.decided
    assert not any(partition.pins for partition in world.partitions)


async def test_an_abort_without_its_owners_is_made_up_for_by_them() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    world.partitions[1].pins[commit_id_of(request)] = tuple(names(request, world, 1))
    world.partitions[1].labels[commit_id_of(request)] = request.label
    world.partitions[1].up = False
    assert await world.coordinator().abort(request) is False
    world.partitions[1].up = True
    await world.resolve(1, give_up=False)
    assert world.partitions[1].pins == {}
    assert world.partitions[1].staged == set()


async def test_a_pin_whose_driver_vanished_is_resolved_without_it() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    commit_id = commit_id_of(request)
    coordinator = world.coordinator()
    named = (commit_id, "query", "sink", 0)
    assert await coordinator.resolve(*named) is Resolution.UNDECIDED
    assert await coordinator.abort_pin(*named) is Resolution.ABORTED
    assert await coordinator.resolve(*named) is Resolution.ABORTED
    await coordinator.commit(world.stage(1, 0))
    assert await coordinator.resolve(*named) is Resolution.ABORTED


async def test_a_decided_pin_cannot_be_aborted() -> None:
    world = await World.create()
    outcome = await world.coordinator().commit(world.stage(0, 0))
    named = (outcome.commit_id, "query", "sink", 0)
    assert await world.coordinator().resolve(*named) is Resolution.DECIDED
    assert await world.coordinator().abort_pin(*named) is Resolution.DECIDED


async def test_another_commit_id_of_a_decided_batch_is_aborted() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(4, 0))
    for batch_id in (3, 4):
        found = await world.coordinator().resolve("other", "query", "sink", batch_id)
        assert found is Resolution.ABORTED
    assert await world.coordinator().resolve("other", "query", "sink", 5) is Resolution.UNDECIDED


async def test_a_record_that_went_and_came_again_decides_nothing_old() -> None:
    world = await World.create()
    request = world.stage(0, 0)
    done = False

    async def abort_and_expire(name: str) -> None:
        nonlocal done
        if name == "write" and world.pinned and not done:
            done = True
            await world.resolve(0, give_up=True)
            assert await world.coordinator().expire(world.clock.now_us() + 2 * WEEK_US) == 1

    world._gate = abort_and_expire
    with pytest.raises(FailedPrecondition, match="run the batch again"):
        await world.coordinator().commit(request)
    assert not world.decided


# -- topics that go ------------------------------------------------------------------------


async def test_a_topic_deleted_before_the_decision_fails_the_batch() -> None:
    world = await World.create()
    request = world.stage(0, 0)
    await world.catalog.delete_topic(world.topic)
    with pytest.raises(NotFound):
        await world.coordinator().commit(request)


async def test_a_topic_deleted_after_the_decision_does_not_hold_the_sink_up() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)

    async def delete(name: str) -> None:
        if world.decided and await world.catalog.topic(world.topic.name) is not None:
            await world.catalog.delete_topic(world.topic)

    world._gate = delete
    outcome = await world.coordinator().commit(request)
    assert {part.kind for part in outcome.lost} == {"deleted"}
    assert (await record_of(world)).finished


# -- metadata that fails -------------------------------------------------------------------


async def test_a_write_whose_reply_was_lost_is_found_again() -> None:
    world = await World.create()
    lost = 0

    async def lose_replies(name: str) -> None:
        nonlocal lost
        if name == "written" and lost < 3:
            lost += 1
            raise Unavailable("the reply was lost")

    request = world.stage(0, 0, 1)
    world._gate = lose_replies
    outcome = await world.coordinator().commit(request)
    assert (lost, outcome.commit_id) == (3, commit_id_of(request))
    world.check_whole()
    assert (await record_of(world)).finished


async def test_two_calls_for_the_same_batch_make_one_commit() -> None:
    world = await World.create(gate=lambda name: asyncio.sleep(0))
    request = world.stage(0, 0, 1)
    outcomes = await asyncio.gather(*(world.coordinator().commit(request) for _ in range(5)))
    assert {outcome.commit_id for outcome in outcomes} == {commit_id_of(request)}
    assert sum(not outcome.already for outcome in outcomes) <= 1
    world.check_whole()


# -- crashes -------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


async def steps_of_a_commit() -> int:
    """How many gates a commit goes through."""
    steps = 0

    async def count(name: str) -> None:
        nonlocal steps
        steps += 1

    world = await World.create(gate=count)
    await world.coordinator().commit(world.stage(0, 0, 1))
    return steps


@pytest.mark.parametrize("restart", ["same request", "new run", "never"])
async def test_a_crash_at_every_step_leaves_the_batch_whole_or_absent(restart: str) -> None:
    steps = await steps_of_a_commit()
    assert steps > 10
    for fatal in range(steps):
        world = await World.create()
        left = fatal
        crashed = False

        async def crash(name: str) -> None:
            nonlocal left, crashed
            crashed = crashed or left == 0
            left -= 1
            if crashed:
                raise Crash

        request = world.stage(0, 0, 1)
        world._gate = crash
        with pytest.raises(Crash):
            await world.coordinator().commit(request)
        world._gate = None
        await asyncio.sleep(0)
        if restart == "same request":
            await world.coordinator().commit(request)
        elif restart == "new run":
            await world.coordinator().commit(world.stage(0, 1, 0, run_id="restarted"))
        for number in (0, 1):
            await world.resolve(number, give_up=True)
        world.check_whole()
        parts = [len(world.visible(number)) for number in (0, 1)]
        assert parts == ([1, 1] if restart != "never" or world.decided else [0, 0])


# -- upkeep --------------------------------------------------------------------------------


async def test_a_decided_batch_is_finished_without_its_driver() -> None:
    world = await World.create()
    world._gate = away_at(world, "written", 1)
    with pytest.raises(Unavailable):
        await world.coordinator().commit(world.stage(0, 0, 1))
    world._gate = None
    world.partitions[1].up = True
    assert await world.coordinator().finish_open() == 1
    assert await world.coordinator().finish_open() == 0
    assert (await record_of(world)).finished
    world.check_whole()


async def test_a_forgotten_sink_starts_anew() -> None:
    world = await World.create()
    await world.coordinator().commit(world.stage(9, 0))
    await world.coordinator().forget("query", "sink")
    assert await world.coordinator().list() == []
    assert not (await world.coordinator().commit(world.stage(2, 0))).already
    with pytest.raises(NotFound, match="danube sinks list"):
        await world.coordinator().forget("query", "other")


async def test_an_unfinished_sink_is_finished_before_it_is_forgotten() -> None:
    world = await World.create()
    world._gate = away_at(world, "written", 1)
    with pytest.raises(Unavailable):
        await world.coordinator().commit(world.stage(0, 0, 1))
    world._gate = None
    with pytest.raises(Unavailable, match="decided and not yet visible"):
        await world.coordinator().forget("query", "sink")
    world.partitions[1].up = True
    await world.coordinator().forget("query", "sink")
    world.check_whole()


async def test_records_of_batch_writes_go_after_a_week_and_streaming_ones_stay() -> None:
    world = await World.create()
    coordinator = world.coordinator()
    await coordinator.commit(replace(world.stage(0, 0), query_id="batch", streaming=False))
    await coordinator.commit(replace(world.stage(0, 0), query_id="stream"))
    await coordinator.abort_pin("c", "given up", "sink", 0)
    now = world.clock.now_us()
    assert await coordinator.expire(now + WEEK_US) == 0
    assert await coordinator.expire(now + WEEK_US + 1) == 2
    assert [record.query_id for record in await coordinator.list()] == ["stream"]


async def test_an_unfinished_record_does_not_expire() -> None:
    world = await World.create()
    world._gate = away_at(world, "written", 1)
    with pytest.raises(Unavailable):
        await world.coordinator().commit(replace(world.stage(0, 0, 1), streaming=False))
    world._gate = None
    assert await world.coordinator().expire(world.clock.now_us() + 2 * WEEK_US) == 0


async def test_sinks_are_listed_page_by_page() -> None:
    world = await World.create()
    for number in range(5):
        await world.coordinator().commit(replace(world.stage(0), query_id=f"q{number}"))
    first = await world.coordinator().list(limit=3)
    rest = await world.coordinator().list((first[-1].query_id, "sink"), limit=3)
    assert [item.query_id for item in (*first, *rest)] == ["q0", "q1", "q2", "q3", "q4"]


# -- requests ------------------------------------------------------------------------------


async def test_a_commit_id_belongs_to_its_staged_sets() -> None:
    world = await World.create()
    request = world.stage(0, 0, 1)
    reordered = replace(request, sets=request.sets[::-1])
    assert commit_id_of(request) == commit_id_of(reordered)
    others = [
        world.stage(0, 0, 1),
        replace(request, batch_id=1),
        replace(request, run_id="r"),
        replace(request, sink_name="s"),
        replace(request, sets=request.sets[:1]),
    ]
    assert len({commit_id_of(item) for item in [request, *others]}) == 6


@pytest.mark.parametrize(
    "changes",
    [{"batch_id": -1}, {"run_id": ""}, {"query_id": ""}, {"sink_name": ""}],
)
async def test_a_request_without_its_names_is_refused(changes: dict[str, Any]) -> None:
    world = await World.create()
    with pytest.raises(InvalidRequest):
        await world.coordinator().commit(replace(world.stage(0), **changes))


async def test_a_set_named_twice_is_refused() -> None:
    world = await World.create()
    one = SetRef("s", TOPIC, world.partition_id(0))
    with pytest.raises(InvalidRequest, match="twice"):
        await world.coordinator().commit(CommitRequest("q", "s", 0, "r", (one, one)))


async def test_a_batch_of_too_many_partitions_says_what_to_do() -> None:
    world = await World.create()
    sets = tuple(SetRef(str(n), TOPIC, world.partition_id(n)) for n in range(5000))
    with pytest.raises(InvalidRequest, match="repartition"):
        await world.coordinator().commit(CommitRequest("q", "s", 0, "r", sets))
