"""What ten thousand topics with two subscriptions each cost when nothing is published to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import danube
from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import Repeats, Stopwatch, in_turns
from benchmarks.messaging.publishing import Publisher, publisher
from benchmarks.payloads import random_records
from benchmarks.processes import Process, start_broker
from benchmarks.results import Figure, Row, Setup, compared
from danube.client.client import Client

SUBSCRIPTIONS = 2
AT_ONCE = 64
BYTES_PER_SUBSCRIPTION = 4096
RESTART_S = 10
PUBLISH_AT_LEAST = 0.9


def run(bench: Bench) -> Iterator[Row]:
    """Memory and restart beside those of a broker with one topic; and the publish rate."""
    many, one = bench.new_directory("many") / "data", bench.new_directory("one") / "data"
    created = _create(bench, many)
    restarts = in_turns(
        {"many": lambda: _restart(many), "one": lambda: _restart(one)},
        Repeats(1, min(bench.sizes.repetitions, 3)),
    )
    with (
        start_broker(many, NO_ROLLS) as crowded,
        start_broker(one, NO_ROLLS) as empty,
    ):
        restarted, bare = crowded.resident_bytes(), empty.resident_bytes()
        rates = _publish_rates(bench, crowded, empty)
    for directory in (many, one):
        shutil.rmtree(directory)
    yield _memory(bench, created.resident_bytes, restarted, bare)
    yield from _speeds(bench, created.seconds, restarts, rates)


@dataclass(frozen=True, slots=True)
class _Created:
    seconds: float
    resident_bytes: int


def _setup(bench: Bench) -> Setup:
    return Setup(
        payload="none; 1 KiB random for the rate",
        batch=f"{bench.sizes.idle_topics} topics x {SUBSCRIPTIONS} subscriptions",
        durability="disk",
        client="admin calls, asyncio; send_batch of Arrow for the rate",
        peer="a broker without any topic; with one for the rate",
    )


def _memory(bench: Bench, created: int, restarted: int, bare: int) -> Row:
    """The larger one of both: as the topics were created, and after a restart."""
    subscriptions = bench.sizes.idle_topics * SUBSCRIPTIONS
    most = max(created, restarted)
    extra = (most - bare) / subscriptions
    return Row(
        bench.name,
        "idle topics, resident memory",
        Figure.of("B", [most]),
        Figure.of("B", [bare]),
        most / bare,
        _setup(bench),
        f"≤ {BYTES_PER_SUBSCRIPTION} B more per subscription",
        extra <= BYTES_PER_SUBSCRIPTION,
        f"{extra:.0f} B per subscription; {created // MIB} MiB when they had been created, "
        f"{restarted // MIB} MiB after a restart",
    )


def _speeds(
    bench: Bench,
    creating_s: float,
    restarts: dict[str, list[float]],
    rates: dict[str, list[float]],
) -> Iterator[Row]:
    restart = {name: Figure.of("s", samples) for name, samples in restarts.items()}
    yield Row(
        bench.name,
        "idle topics, restart",
        restart["many"],
        restart["one"],
        restart["many"].value / restart["one"].value,
        _setup(bench),
        f"≤ {RESTART_S} s",
        restart["many"].value <= RESTART_S,
        f"killed, then started until it is ready; creating took {creating_s:.0f} s",
    )
    yield compared(
        bench.name,
        "idle topics, publish rate to one",
        Figure.of("B/s", rates["many"]),
        Figure.of("B/s", rates["one"]),
        _setup(bench),
        at_least=PUBLISH_AT_LEAST,
    )


def _create(bench: Bench, data: Path) -> _Created:
    """Create all topics and subscriptions, then kill the broker."""
    with start_broker(data, NO_ROLLS) as broker:
        with bench.entered(danube.connect(broker.url)) as client:
            watch = Stopwatch()
            bench.wait(_create_all(client, bench.sizes.idle_topics))
            created = _Created(watch.seconds, broker.resident_bytes())
        bench.say(f"created in {created.seconds:.1f} s")
        broker.kill()
    return created


async def _create_all(client: Client, topics: int) -> None:
    async def create(number: int) -> None:
        name = f"/default/idle-{number}"
        await client.admin.create_topic(name)
        for subscription in range(SUBSCRIPTIONS):
            await client.admin.create_subscription(name, f"subscription-{subscription}")

    await each(range(topics), create)


async def each(items: range, work: Callable[[int], Awaitable[None]]) -> None:
    """Do ``work`` for every item, a bounded number at a time."""

    async def worker(first: int) -> None:
        for item in items[first::AT_ONCE]:
            await work(item)

    await asyncio.gather(*(worker(first) for first in range(AT_ONCE)))


def _restart(data: Path) -> float:
    """Seconds until a killed broker is ready again; it is killed once more."""
    watch = Stopwatch()
    with start_broker(data, NO_ROLLS) as broker:
        seconds = watch.seconds
        broker.kill()
    return seconds


def _publish_rates(bench: Bench, crowded: Process, empty: Process) -> dict[str, list[float]]:
    records = random_records(bench.sizes.publish_mib * MIB // 2, 1024)

    def sender(topic: Publisher) -> Callable[[], float]:
        def send() -> float:
            seconds = bench.wait(topic.send_batch(records))
            bench.wait(topic.roll())
            return records.nbytes / seconds

        return send

    with (
        bench.entered(publisher(crowded.url)) as many,
        bench.entered(publisher(empty.url)) as one,
    ):
        return in_turns({"many": sender(many), "one": sender(one)}, bench.repeats)
