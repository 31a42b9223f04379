"""Publishing as fast as it goes beside a roller, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pyarrow as pa

from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import Stopwatch, in_turns
from benchmarks.messaging.publishing import Publisher, publisher
from benchmarks.payloads import random_records
from benchmarks.results import Figure, Row, Setup, compared

AT_LEAST = 0.8
PIECE_MIB = 16
AT_ONCE = 2


def run(bench: Bench) -> Iterator[Row]:
    """1 KiB messages for some seconds, into a broker that rolls as it does by default."""
    records = random_records(PIECE_MIB * MIB, 1024)
    shares: list[float] = []
    with (
        bench.broker() as rolling,
        bench.broker(NO_ROLLS) as still,
        bench.entered(publisher(rolling.url)) as rolled,
        bench.entered(publisher(still.url)) as kept,
    ):
        figures = in_turns(
            {
                "rolling": _publisher(bench, rolled, records, shares),
                "still": _publisher(bench, kept, records, []),
            },
            bench.repeats,
        )
    share = sum(shares) / len(shares)
    yield compared(
        bench.name,
        "publish while rolling, 1 KiB",
        Figure.of("B/s", figures["rolling"]),
        Figure.of("B/s", figures["still"]),
        Setup(
            payload="1 KiB random",
            batch=f"{PIECE_MIB} MiB at a time, {AT_ONCE} at once, {bench.sizes.rolling_s:g} s long",
            durability="disk",
            client="send_batch of Arrow, asyncio, as fast as it goes",
            peer="the same into a broker that does not roll meanwhile",
        ),
        at_least=AT_LEAST,
        note=f"{share:.0%} of it was in the table when the last receipt came",
    )


def _publisher(
    bench: Bench, topic: Publisher, records: pa.RecordBatch, shares: list[float]
) -> Callable[[], float]:
    async def publish() -> float:
        before = await _rolled(topic)
        watch, sent = Stopwatch(), 0

        async def sender() -> None:
            nonlocal sent
            while watch.seconds < bench.sizes.rolling_s:
                await topic.producer.send_batch(records)
                sent += 1

        await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
        seconds = watch.seconds
        shares.append((await _rolled(topic) - before) / (sent * records.num_rows))
        await topic.roll()
        return sent * records.nbytes / seconds

    return lambda: bench.wait(publish())


async def _rolled(topic: Publisher) -> int:
    view = await topic.client.topic(topic.topic)
    return view.partition(0).rolled_offset
