"""A consumer of the demo, a process of its own: works off flights more than two hours late.

Reads the shared subscription ``late-desk``, writes one JSON line per late flight with its place in
the log, and acknowledges only afterwards. Being killed or cut off in between means that the flight
comes again: whoever reads the lines removes doubles by partition and offset.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from danube.testing.demo.expected import LateFlight, late_flight_of

if TYPE_CHECKING:
    from danube.client.consumer import Consumer, ReceivedBatch

SUBSCRIPTION: Final = "late-desk"
BATCH_MESSAGES: Final = 5_000
IDLE_S: Final = 0.5


def work_off(batch: ReceivedBatch) -> Iterator[dict[str, Any]]:
    """The late flights of a batch with their places."""
    for message in batch:
        late = late_flight_of(json.loads(message.value))
        if late is not None:
            yield {"partition": message.partition, "offset": message.offset, **late._asdict()}


def results(paths: Iterable[Path]) -> tuple[list[LateFlight], int]:
    """What consumers wrote: every late flight once (by partition and offset), and how many doubles.

    A last line without an end (its writer was stopped in the middle) does not count.
    """
    found: dict[tuple[int, int], LateFlight] = {}
    doubles = 0
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            item = json.loads(line)
            place = (item.pop("partition"), item.pop("offset"))
            doubles += place in found
            found[place] = LateFlight(**item)
    return list(found.values()), doubles


async def consume(url: str, topic: str, name: str, out: IO[str]) -> None:
    """Work until SIGTERM."""
    import danube

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with (
        danube.connect(url) as client,
        client.subscribe(
            topic, SUBSCRIPTION, type="shared", start="earliest", consumer_name=name
        ) as consumer,
    ):
        await _consume(consumer, stopping, out)


async def _consume(consumer: Consumer, stopping: asyncio.Event, out: IO[str]) -> None:
    while not stopping.is_set():
        batch = await consumer.receive_batch(BATCH_MESSAGES, timeout_s=IDLE_S)
        if not len(batch):
            continue
        for line in work_off(batch):
            out.write(json.dumps(line) + "\n")
        out.flush()
        await batch.ack()


def main() -> None:
    """``python -m danube.testing.demo.late_desk URL TOPIC NAME FILE``."""
    url, topic, name, path = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(path, "a", encoding="utf-8") as out:
        asyncio.run(consume(url, topic, name, out))


if __name__ == "__main__":
    main()
