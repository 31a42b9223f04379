"""What consumers of exclusive and shared subscriptions can rely on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from danube.core.errors import InvalidRequest, SubscriptionBusy, Unsupported
from danube.core.offsets import OffsetRange
from danube.dispatch.cursor import Cursor
from danube.dispatch.decisions import Chunk, CursorMoved, Decision, Deliver, Disconnect, Fetch
from danube.dispatch.kinds import make_subscription
from danube.dispatch.subscription import Limits, Subscription


class Bench:
    """A subscription over a log of chunks of ten messages, ten bytes each message."""

    def __init__(self, kind: str, durable: int = 100, limits: Limits | None = None) -> None:
        self.machine: Subscription = make_subscription(kind, Cursor(0), durable, limits or Limits())
        self.got: list[tuple[int, int, int, int]] = []

    def run(self, decisions: Sequence[Decision]) -> None:
        """Carry decisions out at once, fetches included."""
        todo = list(decisions)
        while todo:
            decision = todo.pop(0)
            if isinstance(decision, Deliver):
                for span in decision.spans:
                    self.got.append(
                        (decision.consumer_id, span.start, span.end, decision.redelivery_count)
                    )
            elif isinstance(decision, Fetch):
                end = min(decision.end, decision.start + 40)
                chunks = list(_chunks(decision.start, end))
                todo += self.machine.fetched(decision.fetch_id, chunks, end, [])

    def offsets(self, consumer: int) -> list[int]:
        """Everything a consumer was sent, in the order it was sent."""
        return [o for c, start, end, _ in self.got if c == consumer for o in range(start, end)]


def _chunks(start: int, end: int) -> Iterable[Chunk]:
    while start < end:
        stop = min(end, (start // 10 + 1) * 10)
        yield Chunk(start, stop, 10 * (stop - start))
        start = stop


def test_an_exclusive_consumer_gets_everything_in_order() -> None:
    bench = Bench("exclusive")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    assert bench.offsets(1) == list(range(100))


def test_a_second_consumer_is_refused_while_the_first_lives() -> None:
    bench = Bench("exclusive")
    bench.machine.joined(1, "a")
    with pytest.raises(SubscriptionBusy, match="'a'"):
        bench.machine.joined(2, "b")
    bench.machine.left(1)
    bench.machine.joined(2, "b")


def test_nothing_is_sent_without_credit() -> None:
    bench = Bench("exclusive")
    assert bench.machine.joined(1, "a") == []
    bench.run(bench.machine.credit(1, 150))
    assert bench.offsets(1) == list(range(20)), "two chunks of 100 bytes spend 150 bytes of credit"


def test_a_consumer_without_credit_stops_nobody_else() -> None:
    bench = Bench("shared")
    bench.run(bench.machine.joined(1, "slow"))
    bench.run(bench.machine.joined(2, "quick"))
    bench.run(bench.machine.credit(1, 1))
    bench.run(bench.machine.credit(2, 10_000))
    assert len(bench.offsets(1)) == 10
    assert len(bench.offsets(2)) == 90


def test_shared_consumers_take_turns() -> None:
    bench = Bench("shared", durable=0)
    for consumer in (1, 2):
        bench.run(bench.machine.joined(consumer, str(consumer)))
        bench.run(bench.machine.credit(consumer, 10_000))
    bench.run(bench.machine.appended(100))
    assert len(bench.offsets(1)) == len(bench.offsets(2)) == 50


def test_what_a_lost_consumer_held_is_delivered_again_in_order_and_counted() -> None:
    bench = Bench("shared")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    bench.run(bench.machine.acked([OffsetRange(0, 15), OffsetRange(50, 60)]))
    bench.run(bench.machine.joined(2, "b"))
    bench.run(bench.machine.credit(2, 10_000))
    bench.run(bench.machine.left(1))
    assert bench.offsets(2) == [*range(15, 50), *range(60, 100)]
    assert {count for consumer, _, _, count in bench.got if consumer == 2} == {1}


def test_a_nacked_message_comes_again_and_an_acknowledged_one_never() -> None:
    bench = Bench("shared")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    bench.run(bench.machine.acked([OffsetRange(0, 30)]))
    bench.got.clear()
    bench.run(bench.machine.nacked(1, [OffsetRange(25, 35)]))
    assert bench.got == [(1, 30, 35, 1)]


def test_the_window_bounds_what_is_unacknowledged() -> None:
    bench = Bench("exclusive", limits=Limits(max_unacked_messages=25))
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    assert bench.offsets(1) == list(range(25))
    bench.run(bench.machine.acked([OffsetRange(0, 10)]))
    assert bench.offsets(1) == list(range(35))


def test_too_many_gaps_stop_new_deliveries_until_old_ones_are_acknowledged() -> None:
    bench = Bench("exclusive", limits=Limits(max_acked_ranges=3))
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 300))
    bench.run(bench.machine.acked([OffsetRange(i, i + 1) for i in (1, 3, 5)]))
    bench.run(bench.machine.credit(1, 10_000))
    assert bench.offsets(1) == list(range(30))
    bench.run(bench.machine.acked([OffsetRange(0, 30)]))
    assert bench.offsets(1) == list(range(100))


def test_messages_above_the_durable_offset_are_never_fetched() -> None:
    bench = Bench("exclusive", durable=15)
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    assert bench.offsets(1) == list(range(15))
    bench.run(bench.machine.appended(17))
    assert bench.offsets(1) == list(range(17))


def test_a_lost_range_counts_as_acknowledged() -> None:
    machine = make_subscription("exclusive", Cursor(0), 30, Limits())
    machine.joined(1, "a")
    (fetch,) = machine.credit(1, 1000)
    assert isinstance(fetch, Fetch)
    decisions = machine.fetched(fetch.fetch_id, [Chunk(20, 30, 1)], 30, [OffsetRange(0, 20)])
    assert isinstance(decisions[0], CursorMoved)
    assert machine.cursor.offset == 20


def test_a_reset_sends_consumers_away_and_ignores_the_fetch_under_way() -> None:
    machine = make_subscription("exclusive", Cursor(50), 100, Limits())
    machine.joined(1, "a")
    (old,) = machine.credit(1, 1000)
    assert isinstance(old, Fetch)
    moved, gone = machine.reset(10)
    assert isinstance(moved, CursorMoved)
    assert isinstance(gone, Disconnect)
    assert gone.consumer_id == 1
    assert (machine.cursor.generation, machine.cursor.offset) == (2, 10)
    machine.joined(2, "a")
    (new,) = machine.credit(2, 1000)
    assert isinstance(new, Fetch)
    assert new.start == 10
    assert machine.fetched(old.fetch_id, [Chunk(50, 60, 1)], 60, []) == []


def test_an_acknowledgement_from_before_a_reset_is_ignored() -> None:
    bench = Bench("exclusive")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    bench.machine.reset(0)
    assert bench.machine.acked([OffsetRange(0, 100)]) == []
    assert bench.machine.cursor.offset == 0


def test_retention_moves_a_cursor_up() -> None:
    bench = Bench("exclusive")
    bench.machine.trimmed(40)
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    assert bench.offsets(1) == list(range(40, 100))


def test_a_failed_fetch_is_asked_for_again() -> None:
    machine = make_subscription("exclusive", Cursor(0), 10, Limits())
    machine.joined(1, "a")
    (fetch,) = machine.credit(1, 1000)
    assert isinstance(fetch, Fetch)
    machine.fetch_failed(fetch.fetch_id)
    (again,) = machine.retry()
    assert isinstance(again, Fetch)
    assert again.fetch_id != fetch.fetch_id


def test_a_kind_that_is_not_built_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="key_shared"):
        make_subscription("key_shared", Cursor(0), 0, Limits())


def test_what_was_never_delivered_cannot_be_acknowledged() -> None:
    bench = Bench("exclusive")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 150))
    assert bench.offsets(1) == list(range(20))
    bench.run(bench.machine.acked([OffsetRange(10, 100)]))
    assert list(bench.machine.cursor.acked) == [OffsetRange(10, 20)]


def test_gaps_in_a_fragmented_cursor_are_delivered_after_a_restart() -> None:
    cursor = Cursor(0)
    for offset in (1, 3, 5):
        cursor.ack(offset, offset + 1)
    machine = make_subscription("exclusive", cursor, 100, Limits(max_acked_ranges=3))
    bench = Bench("exclusive")
    bench.machine = machine
    bench.run(machine.joined(1, "a"))
    bench.run(machine.credit(1, 10_000))
    assert bench.offsets(1) == [0, 2, 4]
    bench.run(machine.acked([OffsetRange(0, 1)]))
    assert bench.offsets(1) == [0, 2, 4, *range(6, 100)]


def test_a_consumer_that_acknowledges_nothing_stops_nobody_else() -> None:
    bench = Bench("shared", limits=Limits(max_unacked_messages=40))
    bench.run(bench.machine.joined(1, "hoarder"))
    bench.run(bench.machine.credit(1, 10_000))
    assert len(bench.offsets(1)) == 40
    bench.run(bench.machine.joined(2, "worker"))
    bench.run(bench.machine.credit(2, 10_000))
    for _ in range(10):
        bench.run(bench.machine.acked([OffsetRange(40, 100)]))
    assert bench.offsets(2) == list(range(40, 100))
    assert bench.machine.cursor.offset == 0


def test_nacked_messages_count_against_the_window() -> None:
    machine = make_subscription("shared", Cursor(0), 100, Limits(max_unacked_messages=30))
    bench = Bench("shared")
    bench.machine = machine
    bench.run(machine.joined(1, "a"))
    bench.run(machine.credit(1, 300))
    machine.nacked(1, [OffsetRange(0, 30)])
    assert machine.unacked_messages == 30
    bench.run(machine.credit(1, 10_000))
    assert machine.unacked_messages == 30
    assert max(bench.offsets(1)) == 29


def test_a_chunk_that_the_window_holds_back_does_not_hold_back_redeliveries() -> None:
    bench = Bench("exclusive", limits=Limits(max_unacked_messages=15))
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    assert bench.machine.has_buffered
    bench.got.clear()
    bench.run(bench.machine.nacked(1, [OffsetRange(0, 15)]))
    assert bench.got == [(1, 0, 10, 1), (1, 10, 15, 1)]


def test_one_consumer_may_acknowledge_what_another_holds() -> None:
    bench = Bench("shared")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    bench.run(bench.machine.joined(2, "b"))
    bench.run(bench.machine.acked([OffsetRange(0, 100)]))
    bench.run(bench.machine.credit(2, 10_000))
    bench.run(bench.machine.left(1))
    assert bench.offsets(2) == []
    assert bench.machine.unacked_messages == 0


def test_nobody_can_give_back_what_another_holds() -> None:
    bench = Bench("shared")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 10_000))
    bench.run(bench.machine.joined(2, "b"))
    bench.run(bench.machine.credit(2, 10_000))
    bench.run(bench.machine.nacked(2, [OffsetRange(0, 100)]))
    assert bench.offsets(2) == []


def test_redelivery_counts_grow_with_every_return() -> None:
    bench = Bench("exclusive", durable=10)
    for consumer in range(4):
        bench.run(bench.machine.joined(consumer, "a"))
        bench.run(bench.machine.credit(consumer, 10_000))
        bench.run(bench.machine.left(consumer))
    assert [count for _, _, _, count in bench.got] == [0, 1, 2, 3]


def test_nothing_behind_an_unexplained_gap_is_delivered() -> None:
    machine = make_subscription("exclusive", Cursor(0), 30, Limits())
    machine.joined(1, "a")
    (fetch,) = machine.credit(1, 1000)
    assert isinstance(fetch, Fetch)
    chunks = [Chunk(0, 10, 1), Chunk(20, 30, 1)]
    delivered, again = machine.fetched(fetch.fetch_id, chunks, 30, [])
    assert isinstance(delivered, Deliver)
    assert delivered.chunk == chunks[0]
    assert isinstance(again, Fetch)
    assert again.start == 10


def test_a_chunk_beyond_the_durable_offset_is_delivered_up_to_it() -> None:
    machine = make_subscription("exclusive", Cursor(0), 7, Limits())
    machine.joined(1, "a")
    (fetch,) = machine.credit(1, 1000)
    assert isinstance(fetch, Fetch)
    (delivered,) = machine.fetched(fetch.fetch_id, [Chunk(0, 10, 1, "frame")], 10, [])
    assert isinstance(delivered, Deliver)
    assert delivered.spans == (OffsetRange(0, 7),)
    assert delivered.chunk.frame == "frame"


def test_waiting_messages_far_apart_are_not_fetched_with_what_lies_between() -> None:
    bench = Bench("shared", durable=100_000)
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 1_000_000))
    bench.run(bench.machine.acked([OffsetRange(10, 90_000)]))
    decisions = bench.machine.left(1)
    assert decisions == []
    bench.machine.joined(2, "b")
    (fetch,) = bench.machine.credit(2, 1_000)
    assert isinstance(fetch, Fetch)
    assert (fetch.start, fetch.end) == (0, 10)


def test_memory_is_let_go_when_the_last_consumer_leaves() -> None:
    bench = Bench("exclusive")
    bench.run(bench.machine.joined(1, "a"))
    bench.run(bench.machine.credit(1, 1))
    assert bench.machine.has_buffered
    bench.machine.left(1)
    assert not bench.machine.has_buffered


def test_a_consumer_id_in_use_is_refused() -> None:
    bench = Bench("shared")
    bench.machine.joined(1, "a")
    with pytest.raises(InvalidRequest, match="connected already"):
        bench.machine.joined(1, "b")
