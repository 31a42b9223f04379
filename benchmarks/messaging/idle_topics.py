"""What ten thousand topics with two subscriptions each cost when nothing is published to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
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
        memory = {"many": crowded.resident_bytes(), "one": empty.resident_bytes()}
        rates = _publish_rates(bench, crowded, empty)
    for directory in (many, one):
        shutil.rmtree(directory)
    yield from _rows(bench, created, memory, restarts, rates)


def _rows(
    bench: Bench,
    created: float,
    memory: dict[str, int],
    restarts: dict[str, list[float]],
    rates: dict[str, list[float]],
) -> Iterator[Row]:
    topics = bench.sizes.idle_topics
    subscriptions = topics * SUBSCRIPTIONS
    setup = Setup(
        payload="none; 1 KiB random for the rate",
        batch=f"{topics} topics x {SUBSCRIPTIONS} subscriptions",
        durability="disk",
        client="admin calls, asyncio; send_batch of Arrow for the rate",
        peer="a broker without any topic; with one for the rate",
    )
    extra = (memory["many"] - memory["one"]) / subscriptions
    resident = {name: Figure.of("B", [value]) for name, value in memory.items()}
    yield Row(
        bench.name, "idle topics, resident memory", resident["many"], resident["one"],
        memory["many"] / memory["one"], setup,
        f"≤ {BYTES_PER_SUBSCRIPTION} B more per subscription", extra <= BYTES_PER_SUBSCRIPTION,
        f"{extra:.0f} B per subscription, measured after a restart",
    )  # fmt: skip
    restart = {name: Figure.of("s", samples) for name, samples in restarts.items()}
    yield Row(
        bench.name, "idle topics, restart", restart["many"], restart["one"],
        restart["many"].value / restart["one"].value, setup,
        f"≤ {RESTART_S} s", restart["many"].value <= RESTART_S,
        f"killed, then started until it is ready; creating took {created:.0f} s",
    )  # fmt: skip
    yield compared(
        bench.name,
        "idle topics, publish rate to one",
        Figure.of("B/s", rates["many"]),
        Figure.of("B/s", rates["one"]),
        setup,
        at_least=PUBLISH_AT_LEAST,
    )


def _create(bench: Bench, data: Path) -> float:
    """Create all topics and subscriptions, then kill the broker; returns the seconds it took."""
    with start_broker(data, NO_ROLLS) as broker:
        with bench.entered(danube.connect(broker.url)) as client:
            watch = Stopwatch()
            bench.wait(_create_all(client, bench.sizes.idle_topics))
            seconds = watch.seconds
        bench.say(f"created in {seconds:.1f} s, {broker.resident_bytes() // MIB} MiB resident")
        broker.kill()
    return seconds


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
