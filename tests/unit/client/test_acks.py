"""Acks of one partition: gathered, split, and kept over a broken stream."""

from __future__ import annotations

import pytest

from danube.client.acks import MAX_RANGES, AckBuffer
from danube.core.errors import DiskFull, FailedPrecondition
from danube.core.offsets import OffsetRange
from danube.wire._generated import DanubeBatch_pb2 as pb


def buffer() -> AckBuffer:
    return AckBuffer(lambda: None)


def spans(request: pb.Acknowledge | None) -> list[tuple[int, int]]:
    assert request is not None
    return [(span.start, span.end) for span in request.acked]


async def test_neighbours_become_one_range_and_one_request() -> None:
    acks = buffer()
    done = [acks.ack(offset, offset + 1) for offset in (3, 4, 5, 9, 8, 6)][-1]
    request = acks.next_request()
    assert spans(request) == [(3, 7), (8, 10)]
    assert acks.next_request() is None
    later = acks.ack(20, 21)
    acks.answered(1, 10, None)
    assert done.done()
    assert not later.done()
    assert spans(acks.next_request()) == [(20, 21)]


async def test_the_last_word_on_a_message_counts() -> None:
    acks = buffer()
    acks.ack(0, 10)
    acks.nack([OffsetRange(3, 5)])
    acks.ack(4, 5)
    request = acks.next_request()
    assert spans(request) == [(0, 3), (4, 10)]
    assert request is not None
    assert [(span.start, span.end) for span in request.nacked] == [(3, 4)]


async def test_many_ranges_are_sent_in_parts_and_answered_as_one() -> None:
    acks = buffer()
    done = [acks.ack(offset, offset + 1) for offset in range(0, 5 * MAX_RANGES, 2)][-1]
    sent: list[tuple[int, int]] = []
    number = 0
    while (request := acks.next_request()) is not None:
        number += 1
        assert len(request.acked) <= MAX_RANGES
        assert not done.done()
        sent.extend(spans(request))
        acks.answered(request.request_id, 0, None)
    assert number == 3
    assert sent == [(offset, offset + 1) for offset in range(0, 5 * MAX_RANGES, 2)]
    assert done.done()


async def test_a_broken_stream_repeats_only_what_has_no_answer() -> None:
    acks = buffer()
    first = acks.ack(0, 1)
    request = acks.next_request()
    assert request is not None
    acks.opened(0)
    again = acks.next_request()
    assert spans(again) == [(0, 1)]
    assert again is not None
    acks.answered(again.request_id - 1, 0, None)  # of the broken stream: too late
    assert not first.done()
    acks.answered(again.request_id, 1, None)
    assert first.done()
    acks.opened(1)
    assert acks.next_request() is None


async def test_a_refused_request_fails_those_who_wait_for_it_alone() -> None:
    acks = buffer()
    first = acks.ack(0, 1)
    acks.next_request()
    second = acks.ack(1, 2)
    acks.answered(1, 0, DiskFull("no room"))
    with pytest.raises(DiskFull):
        await first
    assert not second.done()
    assert spans(acks.next_request()) == [(1, 2)]


async def test_a_cursor_that_went_back_fails_old_acks() -> None:
    acks = buffer()
    acks.opened(100)
    done = acks.ack(100, 110)
    acks.opened(50)
    with pytest.raises(FailedPrecondition, match="reset from 100 to 50"):
        await done
    assert acks.idle
