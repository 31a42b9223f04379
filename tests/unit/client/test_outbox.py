"""The producer's buffer, from several threads and up to its bound."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from danube.client.outbox import OpenBatch, Outbox
from danube.core.batch import message_records
from danube.core.errors import FailedPrecondition, MemoryFull


def outbox(
    *, batch_bytes: int = 1000, linger_s: float = 60.0, buffer_bytes: int = 10_000
) -> Outbox:
    return Outbox(batch_bytes=batch_bytes, linger_s=linger_s, buffer_bytes=buffer_bytes)


def put(box: Outbox, value: bytes = b"v", **more: object) -> None:
    arguments: dict[str, object] = {
        "key": None, "attributes": None, "timestamp_us": None, "callback": None,
        "size": 100, "partition": None, "urgent": False, **more,
    }  # fmt: skip
    box.put(value, **arguments)  # type: ignore[arg-type]


def test_a_batch_waits_for_its_linger_unless_it_is_full_or_urgent() -> None:
    box = outbox()
    lane = box.add_lane(lambda: None)
    assert box.take(lane) is None
    put(box)
    waiting = box.take(lane)
    assert isinstance(waiting, float)
    assert 0 < waiting <= 60
    put(box, b"w", urgent=True)
    batch = box.take(lane)
    assert isinstance(batch, OpenBatch)
    assert batch.values == [b"v", b"w"]
    for _ in range(11):
        put(box)
    batch = box.take(lane)
    assert isinstance(batch, OpenBatch)
    assert batch.count == 10


def test_columns_that_few_messages_have_are_filled_up() -> None:
    box = outbox()
    lane = box.add_lane(lambda: None)
    put(box, b"0")
    put(box, b"1", key=b"k")
    put(box, b"2", attributes={"a": "b"})
    put(box, b"3", timestamp_us=7)
    put(box, b"4")
    box.hurry()
    batch = box.take(lane)
    assert isinstance(batch, OpenBatch)
    records = batch.take_records("p", 9)
    assert records.column("key").to_pylist() == [None, b"k", None, None, None]
    assert records.column("attributes").to_pylist() == [None, None, [("a", "b")], None, None]
    times = records.column("timestamp").cast(pa.int64())
    assert times.to_pylist() == [9, 9, 9, 7, 9]


def test_the_loop_is_woken_once_per_batch_and_not_per_message() -> None:
    wakes: list[int] = []
    box = outbox(batch_bytes=10_000, buffer_bytes=1_000_000)
    box.add_lane(lambda: wakes.append(1))
    for _ in range(1000):
        put(box)
    assert len(wakes) <= 11


def test_the_bound_is_kept_and_room_is_given_back() -> None:
    box = outbox(buffer_bytes=250)
    lane = box.add_lane(lambda: None)
    put(box)
    put(box)
    with pytest.raises(MemoryFull):
        put(box)
    assert not box.put_records(message_records([b"x"], now_us=0, producer="p"), 100, 0, print)
    box.hurry()
    batch = box.take(lane)
    assert isinstance(batch, OpenBatch)
    box.release(batch.size)
    put(box)


def test_a_message_above_the_bound_goes_alone() -> None:
    box = outbox(buffer_bytes=50)
    box.add_lane(lambda: None)
    put(box, size=100)
    with pytest.raises(MemoryFull):
        put(box, size=1)


def test_a_thread_that_waits_for_room_gets_it() -> None:
    box = outbox(buffer_bytes=100)
    lane = box.add_lane(lambda: None)
    put(box)
    with pytest.raises(MemoryFull):
        box.wait_for_room(100, 0.0)
    waiter = threading.Thread(target=box.wait_for_room, args=(100, 30.0))
    waiter.start()
    box.hurry()
    batch = box.take(lane)
    assert isinstance(batch, OpenBatch)
    box.release(batch.size)
    waiter.join(30)
    assert not waiter.is_alive()


def test_many_threads_lose_no_message() -> None:
    box = outbox(batch_bytes=5000, buffer_bytes=1 << 30)
    lane = box.add_lane(lambda: None)

    def put_many() -> None:
        for number in range(2000):
            put(box, b"%d" % number)

    threads = [threading.Thread(target=put_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    box.hurry()
    values: list[bytes] = []
    while isinstance(batch := box.take(lane), OpenBatch):
        values.extend(batch.values)
    assert sorted(values) == sorted(b"%d" % n for n in range(2000) for _ in range(4))
    assert box.accepted() == 8000


def test_a_failed_outbox_gives_back_what_it_held_and_takes_no_more() -> None:
    box = outbox()
    box.add_lane(lambda: None)
    for _ in range(15):
        put(box)
    left = box.fail(FailedPrecondition("closed"))
    assert sum(batch.count for _, batch in left) == 15
    with pytest.raises(FailedPrecondition):
        put(box)
    box.wait_for_room(1 << 40, 0.0)
