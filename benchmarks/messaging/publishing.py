"""What the questions about publishing share: a topic with a producer, and the frames it sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pyarrow as pa

import danube
from benchmarks.measure import Stopwatch
from danube.client.client import Client
from danube.client.producer import Producer
from danube.client.splitting import Batchable, by_size
from danube.core.batch import normalise_records
from danube.core.frames import encode_frame
from danube.core.limits import DEFAULT_MAX_MESSAGE_BYTES, TARGET_FRAME_BYTES

TOPIC = "/default/bench"


def frames_of(records: pa.RecordBatch) -> list[bytes]:
    """The frames in which the client sends ``records``, but for their identities."""
    whole = normalise_records(records, producer="bench", now_us=0)
    parts = by_size(
        whole, batch_bytes=TARGET_FRAME_BYTES, max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES
    )
    return [_frame(part) for part, _ in parts]


def _frame(records: pa.RecordBatch) -> bytes:
    frame = encode_frame(
        records,
        topic_id=bytes(16),
        partition=0,
        producer_id=0,
        producer_epoch=1,
        first_sequence=0,
    )
    return frame.to_bytes()


@dataclass(slots=True)
class Publisher:
    """A topic that can be filled again and again: rolls between repetitions free its journal."""

    client: Client
    producer: Producer
    topic: str

    async def send_batch(self, records: Batchable) -> float:
        """Publish ``records``; returns the seconds until all are durable."""
        watch = Stopwatch()
        await self.producer.send_batch(records)
        return watch.seconds

    async def roll(self) -> float:
        """Move everything into the table; returns the seconds it took."""
        watch = Stopwatch()
        await self.client.admin.roll(self.topic)
        return watch.seconds


@asynccontextmanager
async def publisher(
    url: str, topic: str = TOPIC, *, linger_ms: float = 5
) -> AsyncIterator[Publisher]:
    """A connected producer for ``topic``, which is created if need be."""
    async with (
        danube.connect(url) as client,
        client.producer(topic, name="bench", create=True, linger_ms=linger_ms) as producer,
    ):
        yield Publisher(client, producer, topic)
