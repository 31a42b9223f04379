"""What consumers of exclusive and shared subscriptions can rely on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from danube.core.errors import SubscriptionBusy, Unsupported
from danube.core.offsets import OffsetRange
from danube.dispatch.cursor import Cursor
from danube.dispatch.decisions import Chunk, CursorMoved, Decision, Deliver, Fetch
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
    assert bench.offsets(1) == list(range(40)), "what was fetched before is still delivered"
    bench.run(bench.machine.acked([OffsetRange(0, 40)]))
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


def test_a_reset_delivers_from_there_again_and_ignores_the_fetch_under_way() -> None:
    machine = make_subscription("exclusive", Cursor(50), 100, Limits())
    machine.joined(1, "a")
    (old,) = machine.credit(1, 1000)
    assert isinstance(old, Fetch)
    moved, new = machine.reset(10)
    assert isinstance(moved, CursorMoved)
    assert isinstance(new, Fetch)
    assert new.start == 10
    assert machine.fetched(old.fetch_id, [Chunk(50, 60, 1)], 60, []) == []


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
