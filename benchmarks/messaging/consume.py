"""Messages per second out of a subscription: a list of values per batch, and an object each.

A goal: its peer, a Kafka broker, comes later. Beside it stands decoding the same frames from memory
to lists, which is what the interpreter alone would need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import danube
from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import Stopwatch, in_turns
from benchmarks.messaging.publishing import TOPIC, frames_of, publisher
from benchmarks.payloads import random_records
from benchmarks.results import Figure, Row, Setup, compared
from danube.client.client import Client
from danube.core.frames import decode_frame, parse_frame

MESSAGE_BYTES = 100
GOALS = {"list": "goal 3 M/s", "object": "goal 1 M/s"}


def run(bench: Bench) -> Iterator[Row]:
    """100 B messages of the newest end of a topic, every repetition by a new subscription."""
    records = random_records(bench.sizes.publish_mib * MIB // 4, MESSAGE_BYTES)
    frames = frames_of(records)
    number = count()
    with (
        bench.broker(NO_ROLLS) as broker,
        bench.entered(publisher(broker.url)) as topic,
        bench.entered(danube.connect(broker.url)) as client,
    ):
        bench.wait(topic.send_batch(records))
        figures = in_turns(
            {
                "list": lambda: bench.wait(_lists(client, next(number), records.num_rows)),
                "object": lambda: bench.wait(_objects(client, next(number), records.num_rows)),
                "peer": lambda: _decode(frames),
            },
            bench.repeats,
        )
    yield _row(bench, "list", "as a list per batch", "receive_batch, values, one ack", figures)
    yield _row(bench, "object", "as an object each", "async for, one ack per message", figures)


def _row(bench: Bench, name: str, what: str, how: str, figures: dict[str, list[float]]) -> Row:
    return compared(
        bench.name,
        f"consume, 100 B, {what}",
        Figure.of("msg/s", figures[name]),
        Figure.of("msg/s", figures["peer"]),
        Setup(
            payload="100 B random",
            batch="frames of 1 MiB, 8 MiB of credit",
            durability="disk; acks awaited at the end",
            client=f"{how}, asyncio",
            peer="the same frames parsed and decoded to lists of bytes from memory",
        ),
        goal=GOALS[name],
    )


async def _lists(client: Client, number: int, total: int) -> float:
    async with client.subscribe(TOPIC, f"lists-{number}", start="earliest") as consumer:
        watch, got = Stopwatch(), 0
        while got < total:
            batch = await consumer.receive_batch()
            got += len(batch.values)
            last = batch.ack()
            if got == total:
                await last
        seconds = watch.seconds
    await client.admin.delete_subscription(TOPIC, f"lists-{number}")
    return total / seconds


async def _objects(client: Client, number: int, total: int) -> float:
    async with client.subscribe(TOPIC, f"objects-{number}", start="earliest") as consumer:
        watch, got = Stopwatch(), 0
        async for message in consumer:
            assert message.value
            last = consumer.ack(message)
            got += 1
            if got == total:
                await last
                break
        seconds = watch.seconds
    await client.admin.delete_subscription(TOPIC, f"objects-{number}")
    return total / seconds


def _decode(frames: Sequence[bytes]) -> float:
    watch, got = Stopwatch(), 0
    for frame in frames:
        got += len(decode_frame(parse_frame(frame)).column("value").to_pylist())
    return got / watch.seconds
