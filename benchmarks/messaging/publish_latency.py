"""How long ``send`` takes at half of the load it can bear, beside the disk's own sync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.bench import NO_ROLLS, Bench
from benchmarks.measure import in_turns, percentile
from benchmarks.messaging.publishing import Publisher, publisher
from benchmarks.payloads import random_list
from benchmarks.peers.disk import make_recycled_file, sync_times
from benchmarks.results import Figure, Row, Setup

MESSAGE_BYTES = 1024
SENDERS = 64
TICK_S = 0.002
ALLOWED_MS = 1.0
TAIL_FACTOR = 10
SYNCS = 2_000


def run(bench: Bench) -> Iterator[Row]:
    """1 KiB messages at a steady rate; latency counts from when each was due."""
    values = random_list(1000, MESSAGE_BYTES)
    disk_file = bench.directory / "recycled"
    make_recycled_file(disk_file)
    with bench.broker(NO_ROLLS) as broker, bench.entered(publisher(broker.url)) as topic:
        bench.wait(_saturate(topic, values, 0.5))
        most = bench.wait(_saturate(topic, values, bench.sizes.latency_s))
        bench.say(f"{SENDERS} senders, one message each at a time: {most:.0f}/s")
        load = _Load(topic, values, most / 2, bench.sizes.latency_s)

        def ours() -> float:
            return percentile(bench.wait(load.run()), 50)

        def disk() -> float:
            times = sync_times(disk_file, MESSAGE_BYTES, SYNCS)
            load.disk_tails.append(percentile(times, 99) * 1000)
            return percentile(times, 50) * 1000

        figures = in_turns({"ours": ours, "disk": disk}, bench.repeats)
        alone = bench.wait(_one_by_one(topic, values, bench.sizes.latency_s / 2))
    yield from _rows(bench, load, figures, alone)


def _rows(
    bench: Bench, load: _Load, figures: dict[str, list[float]], alone: list[float]
) -> Iterator[Row]:
    setup = Setup(
        payload="1 KiB random",
        batch=f"single messages, {load.per_s:.0f}/s: half of what {SENDERS} senders reach",
        durability="disk: fdatasync before the reply",
        client="send, one task per message, asyncio",
        peer="fdatasync of 1 KiB in a recycled file of the same disk",
    )
    middle = Figure.of("ms", figures["ours"])
    disk = Figure.of("ms", figures["disk"])
    tail = Figure.of("ms", load.tails[bench.repeats.warmups :])
    yield Row(
        bench.name,
        "acknowledged latency, p50",
        middle,
        disk,
        middle.value / disk.value,
        setup,
        f"≤ fdatasync + {ALLOWED_MS:g} ms",
        middle.value <= disk.value + ALLOWED_MS,
        f"one sender alone: p50 {percentile(alone, 50):.2f} ms",
    )
    yield Row(
        bench.name,
        "acknowledged latency, p99 beside p50",
        tail,
        middle,
        tail.value / middle.value,
        setup,
        f"≤ {TAIL_FACTOR}",
        tail.value <= TAIL_FACTOR * middle.value,
        f"the disk's own p99: {Figure.of('ms', load.disk_tails[bench.repeats.warmups :])}",
    )


async def _saturate(topic: Publisher, values: list[bytes], seconds: float) -> float:
    """Messages per second of senders that wait for each acknowledgement."""
    until = time.perf_counter() + seconds
    sent = 0

    async def sender(start: int) -> None:
        nonlocal sent
        at = start
        while time.perf_counter() < until:
            await topic.producer.send(values[at % len(values)])
            sent += 1
            at += SENDERS

    await asyncio.gather(*(sender(number) for number in range(SENDERS)))
    return sent / seconds


async def _one_by_one(topic: Publisher, values: list[bytes], seconds: float) -> list[float]:
    """Milliseconds of each of one sender's messages."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        await topic.producer.send(values[len(took) % len(values)])
        took.append((time.perf_counter() - started) * 1000)
    return took


@dataclass(slots=True)
class _Load:
    """An open loop: messages leave when they are due, however slow the answers are."""

    topic: Publisher
    values: list[bytes]
    per_s: float
    seconds: float
    tails: list[float] = field(default_factory=list)
    disk_tails: list[float] = field(default_factory=list)

    async def run(self) -> list[float]:
        """Milliseconds from when each message was due to its acknowledgement."""
        took: list[float] = []
        started = time.perf_counter()
        sent = 0
        async with asyncio.TaskGroup() as tasks:
            while (now := time.perf_counter()) < started + self.seconds:
                due = int((now - started) * self.per_s)
                while sent < due:
                    tasks.create_task(self._send(sent, started + sent / self.per_s, took))
                    sent += 1
                await asyncio.sleep(TICK_S)
        self.tails.append(percentile(took, 99))
        return took

    async def _send(self, number: int, due: float, took: list[float]) -> None:
        await self.topic.producer.send(self.values[number % len(self.values)])
        took.append((time.perf_counter() - due) * 1000)
