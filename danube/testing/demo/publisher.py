"""The demo's producer: a thread that publishes the year, step by step, through a broker restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from danube.testing.demo.flights import Step, closing_value

if TYPE_CHECKING:
    import pyarrow as pa

STOP_TIMEOUT_S: Final = 5.0


class Publisher:
    """Publishes steps one after another, each durable in all partitions before the next begins.

    Args:
        url: the broker.
        topic: where to.
        partitions: how many the topic has.
        steps: the year; consumed in the thread.
        total: flights in all steps.
        duration_s: how long to take, so that there is something to watch.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        partitions: int,
        steps: Iterable[Step],
        *,
        total: int,
        duration_s: float,
    ) -> None:
        self.published = 0
        self.busy_s = 0.0
        self.longest_step_s = 0.0
        self.until = ""
        self.error: BaseException | None = None
        self._url = url
        self._topic = topic
        self._partitions = partitions
        self._steps = steps
        self._total = total
        self._duration_s = duration_s
        self._close_windows = threading.Event()
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-publisher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether all flights are durable."""
        return self._finished.is_set()

    def close_windows(self) -> None:
        """Publish the closing events, one per partition, and wait until they are durable."""
        self._close_windows.set()
        self._thread.join()
        self.check()

    def stop(self) -> None:
        """Give up where it is, whether a broker answers or not."""
        self._stopping.set()
        self._close_windows.set()
        if self._thread.ident is not None:
            # A thread that still waits for a broker is a daemon and ends with the process.
            self._thread.join(STOP_TIMEOUT_S)

    def check(self) -> None:
        """Raise what ended it too early, if something did."""
        if self.error is not None:
            raise RuntimeError(f"publishing failed: {self.error}") from self.error

    def _run(self) -> None:
        try:
            self._publish_all()
        except BaseException as error:
            self.error = error

    def _publish_all(self) -> None:
        import danube

        with (
            danube.blocking.connect(self._url) as client,
            client.producer(self._topic, name="flights-of-2013") as producer,
        ):
            began = time.monotonic()
            for step in self._steps:
                if self._stopping.is_set():
                    return
                self._publish(producer, step)
                ahead_s = began + self._duration_s * self.published / self._total - time.monotonic()
                self._stopping.wait(max(0.0, ahead_s))
            self._finished.set()
            self._close_windows.wait()
            for partition in range(0 if self._stopping.is_set() else self._partitions):
                producer.send(closing_value(), partition=partition)

    def _publish(self, producer: Any, step: Step) -> None:
        began = time.monotonic()
        producer.send_batch(step_records(step))
        spent = time.monotonic() - began
        self.published += len(step)
        self.until = step.until
        self.busy_s += spent
        self.longest_step_s = max(self.longest_step_s, spent)


def step_records(step: Step) -> pa.RecordBatch:
    """A step as the Arrow batch that is published."""
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(
        {"key": pa.array(step.keys, pa.string()), "value": pa.array(step.values, pa.string())}
    )
