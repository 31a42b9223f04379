"""Exactly once into a topic: staged, pinned, decided, finished, and a crash around every step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from danube.core.errors import FailedPrecondition, InvalidRequest, StaleSink, TopicReplaced
from danube.log.decisions import SinkCoordinator
from danube.log.sinks import PartitionSinks
from danube.testing.brokers import LocalBroker
from danube.wire._generated import DanubeBatch_pb2 as pb
from tests.integration.broker.raw import Raw, Values, eventually, frame_of, refusal

TOPIC = "/default/sink"


def made(count: int, name: str = "row") -> Values:
    return [b"%s %d" % (name.encode(), n) for n in range(count)]


async def seen(raw: Raw, partition: int = 0) -> list[bytes]:
    return [value for _, value in await raw.read(TOPIC, partition=partition)]


async def stage_two(raw: Raw, topic_id: str, batch_id: int = 0, **label: str) -> list[pb.StagedSet]:
    """One set on each of two partitions."""
    return [
        await raw.stage(TOPIC, topic_id, made(20), batch_id=batch_id, partition=n, chunk=6, **label)
        for n in (0, 1)
    ]


async def test_a_staged_batch_is_invisible_until_its_commit(raw: Raw) -> None:
    topic_id = await raw.create(TOPIC, 2)
    async with raw.consumer(TOPIC, "s") as consumer:
        sets = await stage_two(raw, topic_id)
        assert [item.count for item in sets] == [20, 20]
        assert (await raw.where(TOPIC)).durable_offset == 0
        answer = await raw.commit(sets)
        assert not answer.already_committed
        assert [value for _, value in await consumer.messages(20)] == made(20)
    assert await seen(raw, 1) == made(20)
    again = await raw.commit(sets)
    assert (again.already_committed, again.commit_id) == (True, answer.commit_id)
    assert await seen(raw) == made(20)


async def test_what_is_staged_and_never_committed_is_dropped(broker: LocalBroker, raw: Raw) -> None:
    broker.settings["log.staged_ttl_s"] = "0.2"
    await broker.stop()
    await broker.start()
    topic_id = await raw.create(TOPIC, 2)
    await stage_two(raw, topic_id)
    staged = broker.engine.context.staged
    assert staged.used_bytes > 0
    await eventually(lambda: staged.used_bytes == 0)
    assert await seen(raw) == []


async def test_an_abort_drops_the_sets_and_their_commit_is_refused(raw: Raw) -> None:
    topic_id = await raw.create(TOPIC, 2)
    sets = await stage_two(raw, topic_id)
    assert await raw.abort(sets) is False
    found = await refusal(raw.commit(sets))
    found.check(FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION, "run the batch again")
    assert await seen(raw) == []


async def test_an_abort_after_the_decision_changes_nothing(raw: Raw) -> None:
    topic_id = await raw.create(TOPIC, 2)
    sets = await stage_two(raw, topic_id)
    await raw.commit(sets)
    assert await raw.abort(sets) is True
    assert await seen(raw) == made(20)
    assert (await raw.commit(sets)).already_committed


async def test_a_commit_repeated_after_a_restart_is_answered_as_done(
    broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC, 2)
    sets = await stage_two(raw, topic_id)
    first = await raw.commit(sets)
    for end in (broker.crash, broker.stop):
        await end()
        await broker.start()
        again = await raw.commit(sets)
        assert (again.already_committed, again.commit_id) == (True, first.commit_id)
    assert await seen(raw) == made(20)
    assert await raw.findings(TOPIC) == []


async def test_staged_sets_outlive_a_crash(broker: LocalBroker, raw: Raw) -> None:
    topic_id = await raw.create(TOPIC, 2)
    sets = await stage_two(raw, topic_id)
    await broker.crash()
    await broker.start()
    await raw.commit(sets)
    for partition in (0, 1):
        assert await seen(raw, partition) == made(20)


async def test_a_second_run_of_the_query_fences_the_first(raw: Raw) -> None:
    topic_id = await raw.create(TOPIC, 2)
    await raw.commit(await stage_two(raw, topic_id), 0)
    late = await stage_two(raw, topic_id, batch_id=1)
    fresh = await stage_two(raw, topic_id, batch_id=1, run="second")
    await raw.commit(fresh, 1, run="second")
    found = await refusal(raw.commit(late, 2))
    found.check(StaleSink, grpc.StatusCode.FAILED_PRECONDITION, "stop one of the two drivers")
    # Of its own batch it learns that somebody else has decided it; its rows stay out.
    assert await seen(raw) == [*made(20), *made(20)]


async def test_a_spark_checkpoint_older_than_the_sink_is_told_what_to_do(raw: Raw) -> None:
    topic_id = await raw.create(TOPIC, 2)
    for batch_id in (0, 1):
        await raw.commit(await stage_two(raw, topic_id, batch_id), batch_id)
    found = await refusal(raw.commit(await stage_two(raw, topic_id), 0))
    found.check(StaleSink, grpc.StatusCode.FAILED_PRECONDITION, "danube sinks forget query sink")


async def test_a_stage_stream_that_breaks_leaves_nothing(broker: LocalBroker, raw: Raw) -> None:
    topic_id = await raw.create(TOPIC)
    label = pb.SinkLabel(query_id="q", sink_name="s", run_id="r")
    call = raw.batch.Stage()
    opening = pb.StageOpen(label=label, topic=TOPIC, topic_id=topic_id, set_id="ab" * 16)
    await call.write(pb.StageRequest(open=opening))
    await call.write(pb.StageRequest(frame=frame_of(made(5), topic_id=topic_id).to_bytes()))
    staged = broker.engine.context.staged
    await eventually(lambda: staged.used_bytes > 0)
    call.cancel()
    await eventually(lambda: staged.used_bytes == 0)


async def test_a_staged_set_of_a_stream_that_its_broker_cut_cannot_be_committed(
    broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    label = pb.SinkLabel(query_id="query", sink_name="sink", run_id="run")
    call = raw.batch.Stage()
    opening = pb.StageOpen(label=label, topic=TOPIC, topic_id=topic_id, set_id="cd" * 16)
    await call.write(pb.StageRequest(open=opening))
    await call.write(pb.StageRequest(frame=frame_of(made(5), topic_id=topic_id).to_bytes()))
    await eventually(lambda: broker.engine.context.staged.used_bytes > 0)
    half = pb.StagedSet(set_id="cd" * 16, topic=TOPIC, topic_id=topic_id, count=5)
    found = await refusal(raw.commit([half], sink="hasty"))
    found.check(FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION, "run the batch again")
    await broker.crash()
    await broker.start()
    await eventually(lambda: not broker.engine.context.staged.used_bytes)
    found = await refusal(raw.commit([half]))
    found.check(FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION, "run the batch again")


async def test_a_batch_above_the_staged_share_names_the_setting(
    broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    broker.engine.context.staged.capacity_bytes = 10_000
    rows = [b"x" * 1000] * 30
    found = await refusal(raw.stage(TOPIC, topic_id, rows, chunk=5))
    assert found.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "log.staged_bytes" in str(found.error)
    assert broker.engine.context.staged.used_bytes == 0


async def test_sets_of_a_deleted_topic_are_refused_before_the_decision(
    broker: LocalBroker, raw: Raw
) -> None:
    topic_id = await raw.create(TOPIC)
    staged = await raw.stage(TOPIC, topic_id, made(5))
    await raw.delete(TOPIC)
    found = await refusal(raw.commit([staged]))
    assert found.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
    assert broker.engine.context.staged.used_bytes == 0
    await raw.create(TOPIC)
    found = await refusal(raw.stage(TOPIC, topic_id, made(5)))
    found.check(TopicReplaced, grpc.StatusCode.FAILED_PRECONDITION, "created again")


async def test_malformed_stage_requests_are_refused(raw: Raw) -> None:
    topic_id = await raw.create(TOPIC)
    label = pb.SinkLabel(query_id="q", sink_name="s", run_id="r")

    async def opened(**fields: Any) -> AsyncIterator[pb.StageRequest]:
        given: dict[str, Any] = {"topic": TOPIC, "topic_id": topic_id, "set_id": "ab" * 16}
        yield pb.StageRequest(open=pb.StageOpen(**{**given, "label": label, **fields}))

    async def nothing() -> AsyncIterator[pb.StageRequest]:
        return
        yield

    for requests in (
        nothing(),
        opened(set_id="short"),
        opened(label=pb.SinkLabel()),
        opened(partition=7),
        opened(topic_id="zz"),
    ):
        found = await refusal(raw.batch.Stage(requests))
        found.check(type(found.error), grpc.StatusCode.INVALID_ARGUMENT)
        assert isinstance(found.error, InvalidRequest)


class Stop(Exception):
    """The broker is gone before the next step."""


def cut(method: Callable[..., Any], reached: asyncio.Event, *, after: bool) -> Callable[..., Any]:
    """A step in front of which, or behind which, everything ends; ``reached`` says when."""

    async def cut_off(*given: Any, **named: Any) -> Any:
        if after:
            await method(*given, **named)
        reached.set()
        await asyncio.Event().wait()

    return cut_off


STEPS = {
    "pin": (PartitionSinks, "pin"),
    "decide": (SinkCoordinator, "_decide"),
    "finish": (PartitionSinks, "finish"),
    "mark finished": (SinkCoordinator, "_mark_finished"),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_around_every_step_leaves_the_batch_whole_or_invisible(
    broker: LocalBroker, raw: Raw, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    topic_id = await raw.create(TOPIC, 2)
    sets = await stage_two(raw, topic_id)
    owner, name = STEPS[step]
    reached = asyncio.Event()
    stopped = cut(getattr(owner, name), reached, after=after)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, stopped)
        commit = asyncio.ensure_future(raw.commit(sets))
        await reached.wait()
        await broker.crash()
    await asyncio.gather(commit, return_exceptions=True)
    await broker.start()
    # The driver has vanished. What was decided becomes visible by itself, whole.
    decided = step in ("finish", "mark finished") or (step == "decide" and after)
    if decided:
        for partition in (0, 1):
            await eventually(lambda p=partition: _whole(raw, p))
    else:
        assert [await seen(raw, n) for n in (0, 1)] == [[], []]
    # And one that comes back gets the same answer as ever.
    answer = await raw.commit(sets)
    assert (answer.already_committed, list(answer.lost)) == (decided, [])
    for partition in (0, 1):
        assert await seen(raw, partition) == made(20)
    assert await raw.findings(TOPIC) == []


async def _whole(raw: Raw, partition: int) -> bool:
    found = await seen(raw, partition)
    assert found in ([], made(20)), "a part of a batch is visible"
    return bool(found)
