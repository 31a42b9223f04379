"""confluent-kafka against the broker that librdkafka mocks: its client's own speed, no disk."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from confluent_kafka import Producer

from benchmarks.measure import Stopwatch

TOPIC = "bench"


class MockKafka:
    """A producer with a mock broker in this process; a context manager."""

    def __init__(self) -> None:
        self._producer: Any = Producer(
            {
                "test.mock.num.brokers": 1,
                "bootstrap.servers": "unused",
                "linger.ms": 5,
                "batch.size": 1024 * 1024,
                "message.max.bytes": 4 * 1024 * 1024,
                "queue.buffering.max.kbytes": 64 * 1024,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )

    def produce(self, values: list[bytes]) -> float:
        """Produce every value and wait for all; returns messages per second."""
        producer, lost = self._producer, []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                lost.append(error)

        produce = producer.produce
        watch = Stopwatch()
        for value in values:
            while True:
                try:
                    produce(TOPIC, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
        producer.flush()
        seconds = watch.seconds
        if lost:
            raise RuntimeError(f"the mock broker refused {len(lost)} messages: {lost[0]}")
        return len(values) / seconds

    def __enter__(self) -> MockKafka:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._producer.flush()
        self._producer = None
