"""The blocking twin: the same behaviour without a loop, beside one, and at the end of a process."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

import danube
from danube import blocking
from danube.client import portal
from danube.client.admin import Admin as AsyncAdmin
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_broker import ScriptedBroker

TOPIC = "/default/t"


class BrokerThread:
    """A scripted broker in a loop of its own."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Two loops of grpc.aio in one process race for its wake-up pipe; see danube.client.portal.
        self.loop.set_exception_handler(lambda loop, context: None)
        self._end = asyncio.Event()
        await self.broker.start()
        self._ready.set()
        await self._end.wait()
        await self.broker.stop()

    def soon(self, function: object) -> None:
        self.loop.call_soon_threadsafe(function)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.broker.released.set()
        self.soon(self._end.set)
        self._thread.join()


@pytest.fixture
def served() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    yield thread
    thread.stop()


@pytest.fixture
def client(served: BrokerThread) -> Iterator[blocking.Client]:
    with danube.blocking.connect(served.broker.url, settings=QUICK) as connected:
        yield connected


def test_everything_once_around(served: BrokerThread, client: blocking.Client) -> None:
    topic = served.broker.create(TOPIC)
    with client.producer(TOPIC) as producer:
        assert producer.send(b"0", key="k") == danube.MessageId(0, 0)
        for number in range(1, 1000):
            producer.publish(b"%d" % number)
        producer.flush()
        ranges = producer.send_batch(b"%d" % n for n in range(1000, 1010))
        assert ranges == [danube.MessageRange(0, 1000, 1010)]
        assert producer.counts.delivered == 1010
    with client.subscribe(TOPIC, "s", start="earliest") as consumer:
        batch = consumer.receive_batch(1)
        consumer.ack(batch)
        for message in consumer:
            consumer.ack(message, wait=False)
            if message.offset == 1009:
                break
        assert consumer.receive(timeout_s=0.01) is None
    assert topic.partitions[0].cursors["s"].offset == 1010
    assert [m.offset for m in client.reader(TOPIC, start=1005).messages()] == list(
        range(1005, 1010)
    )
    assert client.admin.list_topics()[0].name == TOPIC
    assert [step.messages for step in client.admin.verify(TOPIC)] == [1, 2]


def test_publish_waits_at_the_bound(served: BrokerThread, client: blocking.Client) -> None:
    topic = served.broker.create(TOPIC)
    served.broker.script.append("hold")
    with client.producer(TOPIC, buffer_bytes=5000, linger_ms=0) as producer:
        done = threading.Event()

        def publish() -> None:
            for _ in range(200):
                producer.publish(b"x" * 100)
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        assert not done.wait(0.05)
        served.soon(served.broker.released.set)
        thread.join(30)
        assert done.is_set()
        producer.flush()
    assert topic.partitions[0].end == 200


def test_many_threads_share_a_producer(served: BrokerThread, client: blocking.Client) -> None:
    topic = served.broker.create(TOPIC)
    with client.producer(TOPIC) as producer:

        def publish() -> None:
            for _ in range(500):
                producer.publish(b"x")

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.counts.published == producer.counts.delivered == 2000
    assert topic.partitions[0].end == 2000


def test_errors_are_those_of_the_tree(served: BrokerThread, client: blocking.Client) -> None:
    with pytest.raises(danube.TopicNotFound):
        client.producer(TOPIC)
    with pytest.raises(danube.TopicNotFound):
        next(client.reader(TOPIC))
    with pytest.raises(danube.InvalidName):
        client.subscribe(TOPIC, "a b")


def test_a_generator_that_fails_names_what_was_stored(
    served: BrokerThread, client: blocking.Client
) -> None:
    served.broker.create(TOPIC)

    def values() -> Iterator[bytes]:
        yield from [b"x" * 1000] * 20_000
        raise RuntimeError("the application's own")

    with client.producer(TOPIC) as producer:
        with pytest.raises(RuntimeError) as caught:
            producer.send_batch(values())
        assert "stored all the same" in caught.value.__notes__[0]


def test_a_blocking_call_in_a_callback_is_refused_instead_of_hanging(
    served: BrokerThread, client: blocking.Client
) -> None:
    served.broker.create(TOPIC)
    errors: list[BaseException] = []
    with client.producer(TOPIC) as producer:

        def call_back(delivery: danube.Delivery) -> None:
            try:
                producer.send(b"inside")
            except danube.DanubeError as error:
                errors.append(error)

        producer.publish(b"x", on_delivery=call_back)
        producer.flush()
    assert isinstance(errors[0], danube.FailedPrecondition)


async def test_it_works_beside_a_running_loop(served: BrokerThread) -> None:
    served.broker.create(TOPIC)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with danube.blocking.connect(served.broker.url, settings=QUICK) as client:
        assert client.producer(TOPIC).send(b"x").offset == 0


def test_the_thread_ends_with_the_last_client(served: BrokerThread) -> None:
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == portal.THREAD_NAME]

    first = danube.blocking.connect(served.broker.url)
    second = danube.blocking.connect(served.broker.url)
    assert len(threads()) == 1
    first.close()
    first.close()
    assert len(threads()) == 1
    second.close()
    assert threads() == []


def test_a_failed_connect_leaves_no_thread() -> None:
    settings = QUICK.model_copy(update={"connect_timeout_s": 0.1})
    with pytest.raises(danube.Unavailable):
        danube.blocking.connect("127.0.0.1:1", settings=settings)
    assert portal.THREAD_NAME not in [each.name for each in threading.enumerate()]


def test_a_forgotten_client_sends_its_messages_and_ends_without_a_word(
    served: BrokerThread,
) -> None:
    topic = served.broker.create(TOPIC)
    script = f"""
        import danube
        client = danube.blocking.connect({served.broker.url!r})
        producer = client.producer({TOPIC!r}, linger_ms=10_000)
        producer.publish(b"last words")
        consumer = client.subscribe({TOPIC!r}, "s")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, ours(done.stderr)) == (0, "", "")
    assert topic.partitions[0].values() == [b"last words"]


def test_an_asyncio_client_that_is_not_closed_ends_without_a_word(served: BrokerThread) -> None:
    served.broker.create(TOPIC)
    script = f"""
        import asyncio, danube
        async def main():
            client = await danube.connect({served.broker.url!r})
            producer = await client.producer({TOPIC!r})
            await producer.send(b"x")
            consumer = await client.subscribe({TOPIC!r}, "s", start="earliest")
            await (await consumer.receive_batch()).ack()
        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, ours(done.stderr)) == (0, "", "")


def ours(text: str) -> str:
    """Without what grpc's C core writes for itself."""
    return "".join(line for line in text.splitlines(True) if ".cc:" not in line)


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer", "Reader"])
def test_the_twin_has_the_same_methods(name: str) -> None:
    own = {"outbox", "delivered", "put", "put_records", "to_batches", "enqueue", "ranges_of"}
    own |= {"ready", "opened", "arrived", "next_batch", "ack_and_wait", "nack_and_wait"}

    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if name[0] != "_"} - own

    assert public(getattr(blocking, name)) >= public(getattr(danube, name)) - {"settings"}
    assert public(blocking.Admin) == public(AsyncAdmin)
