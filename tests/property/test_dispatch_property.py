"""Subscriptions against a model that counts every message for itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from danube.core.errors import SubscriptionBusy
from danube.core.offsets import OffsetRange
from danube.dispatch.cursor import Cursor
from danube.dispatch.decisions import Chunk, CursorMoved, Decision, Deliver, Disconnect, Fetch
from danube.dispatch.kinds import make_subscription
from danube.dispatch.subscription import Limits, Subscription

LOG = 250
"""Offsets of the log, at the most."""

OFFSETS = st.integers(0, LOG)
LENGTHS = st.integers(1, 40)


class SubscriptionMachine(RuleBasedStateMachine):
    """Events in any order; fetches are answered late, in part, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.consumers: set[int] = set()
        self.ids = 0
        self.held: dict[int, int] = {}  # offset -> consumer
        self.sent: dict[int, int] = {}  # offset -> times delivered, in this generation and process
        self.done: set[int] = set()  # acknowledged, lost or trimmed
        self.lost: list[OffsetRange] = []
        self.highest = -1
        self.joined_after_delivery = False
        self.fetch: Fetch | None = None
        self.moved = False

    @initialize(
        kind=st.sampled_from(["exclusive", "shared"]),
        frame=st.integers(1, 30),
        window=st.integers(1, 60),
        ranges=st.integers(1, 6),
        start=st.integers(0, 20),
    )
    def begin(self, kind: str, frame: int, window: int, ranges: int, start: int) -> None:
        self.kind = kind
        self.frames = list(range(0, LOG + frame, frame))
        self.limits = Limits(window, ranges, fetch_bytes=60, max_credit_bytes=500)
        self.durable = start
        self.done = set(range(start))
        self.machine: Subscription = make_subscription(kind, Cursor(start), start, self.limits)
        self.cursor = self.machine.cursor.to_state()
        self.append(100)
        self.join()
        self.carry_out(self.machine.credit(self.ids, 100))

    # -- consumers -------------------------------------------------------------------------

    @rule()
    def join(self) -> None:
        self.ids += 1
        busy = self.kind == "exclusive" and bool(self.consumers)
        try:
            decisions = self.machine.joined(self.ids, f"c{self.ids}")
        except SubscriptionBusy:
            assert busy
            return
        assert not busy
        self.joined_after_delivery |= bool(self.consumers and self.held)
        self.consumers.add(self.ids)
        self.carry_out(decisions)

    @precondition(lambda self: not self.consumers)
    @rule()
    def come_back(self) -> None:
        self.join()
        self.carry_out(self.machine.credit(self.ids, 300))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.consumers)))
        self.consumers.discard(consumer)
        self.held = {o: c for o, c in self.held.items() if c != consumer}
        self.carry_out(self.machine.left(consumer))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), size=st.integers(1, 200))
    def give_credit(self, data: st.DataObject, size: int) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.consumers)))
        self.carry_out(self.machine.credit(consumer, size))

    @rule(start=OFFSETS, length=LENGTHS)
    def ack(self, start: int, length: int) -> None:
        offsets = {o for o in range(start, start + length) if o in self.sent}
        new = offsets - self.done
        self.finish(offsets)
        self.moved = False
        self.carry_out(self.machine.acked([OffsetRange(start, start + length)]))
        assert self.moved == bool(new)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack_all_but_some(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(2, 5))
        offsets = sorted(self.held)[::step]
        self.finish(offsets)
        self.carry_out(self.machine.acked([OffsetRange(o, o + 1) for o in offsets]))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), start=OFFSETS, length=LENGTHS)
    def nack(self, data: st.DataObject, start: int, length: int) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.consumers)))
        for offset in range(start, start + length):
            if self.held.get(offset) == consumer:
                del self.held[offset]
        self.carry_out(self.machine.nacked(consumer, [OffsetRange(start, start + length)]))

    @precondition(lambda self: self.held)
    @rule()
    def nack_all(self) -> None:
        for consumer in sorted(set(self.held.values())):
            mine = [offset for offset, holder in self.held.items() if holder == consumer]
            for offset in mine:
                del self.held[offset]
            self.carry_out(self.machine.nacked(consumer, [OffsetRange(o, o + 1) for o in mine]))

    # -- the log ---------------------------------------------------------------------------

    @rule(count=st.integers(1, 60))
    def append(self, count: int) -> None:
        self.durable = min(LOG, self.durable + count)
        self.carry_out(self.machine.appended(self.durable))

    @precondition(lambda self: self.fetch is not None)
    @rule(count=st.integers(1, 4))
    def answer(self, count: int) -> None:
        self.answer_with(count)

    @precondition(lambda self: self.fetch is not None)
    @rule()
    def answer_all(self) -> None:
        for _ in range(20):
            if self.fetch is not None:
                self.answer_with(4)

    def answer_with(self, count: int) -> None:
        fetch, self.fetch = self.fetch, None
        assert fetch is not None
        chunks: list[Chunk] = []
        lost: list[OffsetRange] = []
        at = fetch.start
        while at < fetch.end and len(chunks) < count:
            gone = next((item for item in self.lost if at in item), None)
            if gone is not None:
                lost.append(gone)
                at = gone.end
                continue
            stop = min([self.frame_end(at)] + [i.start for i in self.lost if i.start > at])
            chunks.append(Chunk(at, stop, 10))
            at = stop
        for item in lost:
            self.finish(range(item.start, item.end))
        self.carry_out(self.machine.fetched(fetch.fetch_id, chunks, at, lost))

    def frame_end(self, offset: int) -> int:
        return self.frames[bisect_right(self.frames, offset)]

    @precondition(lambda self: self.fetch is not None)
    @rule()
    def fail(self) -> None:
        assert self.fetch is not None
        self.machine.fetch_failed(self.fetch.fetch_id)
        self.fetch = None
        self.carry_out(self.machine.retry())

    @rule(length=st.integers(1, 20), ahead=st.integers(0, 20))
    def lose(self, length: int, ahead: int) -> None:
        start = self.durable + ahead
        if start + length < LOG and (not self.lost or self.lost[-1].end < start):
            self.lost.append(OffsetRange(start, start + length))

    @rule(start=OFFSETS)
    def trim(self, start: int) -> None:
        start = min(start, self.durable)
        self.finish(range(start))
        self.carry_out(self.machine.trimmed(start))

    # -- the operator, and the process -----------------------------------------------------

    @rule(offset=OFFSETS)
    def reset(self, offset: int) -> None:
        offset = min(offset, self.durable)
        self.done = set(range(offset))
        self.forget()
        self.fetch = None
        generation = self.machine.cursor.generation
        self.carry_out(self.machine.reset(offset))
        assert not self.consumers, "consumers hold what a reset made void"
        assert self.machine.cursor.generation == generation + 1

    @rule()
    def restart(self) -> None:
        """The broker dies; the cursor comes back from the journal."""
        state = self.machine.cursor.to_state()
        self.consumers.clear()
        self.forget()
        self.fetch = None
        self.machine = make_subscription(
            self.kind, Cursor.from_state(state), self.durable, self.limits
        )

    def forget(self) -> None:
        self.held.clear()
        self.sent.clear()
        self.highest = -1
        self.joined_after_delivery = False

    def finish(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.done.add(offset)
            self.held.pop(offset, None)

    # -- decisions -------------------------------------------------------------------------

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Fetch():
                    assert self.fetch is None, "two fetches at a time"
                    assert decision.start < decision.end <= self.durable
                    self.fetch = decision
                case Deliver():
                    self.receive(decision)
                case CursorMoved():
                    self.moved = True
                case Disconnect():
                    self.consumers.remove(decision.consumer_id)

    def receive(self, decision: Deliver) -> None:
        assert decision.consumer_id in self.consumers
        assert decision.spans
        for span in decision.spans:
            assert decision.chunk.start <= span.start < span.end <= decision.chunk.end
            for offset in range(span.start, span.end):
                assert offset < self.durable, "delivered before it is durable"
                assert offset not in self.done, "delivered after it was acknowledged"
                assert offset not in self.held, "delivered while somebody holds it"
                assert decision.redelivery_count == self.sent.get(offset, 0)
                if offset not in self.sent:
                    assert offset > self.highest, "first deliveries are in offset order"
                    self.highest = offset
                    self.check_fragments(offset)
                self.sent[offset] = self.sent.get(offset, 0) + 1
                self.held[offset] = decision.consumer_id

    def check_fragments(self, offset: int) -> None:
        acked = self.machine.cursor.acked
        few = len(acked) < self.limits.max_acked_ranges
        assert few or offset < acked.end, "a fragmented cursor is made to fragment further"

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def the_cursor_is_what_was_acknowledged_and_never_goes_back(self) -> None:
        cursor = self.machine.cursor
        for offset in range(LOG):
            assert cursor.is_acked(offset) == (offset in self.done)
        assert cursor.supersedes(Cursor.from_state(self.cursor))
        self.cursor = cursor.to_state()

    @invariant()
    def the_window_is_respected(self) -> None:
        unacked = set(self.sent) - self.done
        assert self.machine.unacked_messages == len(unacked)
        if not self.joined_after_delivery:
            assert len(unacked) <= self.limits.max_unacked_messages

    @invariant()
    def what_consumers_hold_is_counted(self) -> None:
        for consumer in self.machine.consumers:
            held = sum(1 for holder in self.held.values() if holder == consumer.consumer_id)
            assert consumer.unacked == held

    def teardown(self) -> None:
        """With a consumer, credit and acknowledgements everything is delivered."""
        if not hasattr(self, "machine"):
            return
        self.append(LOG)
        self.lost = [item for item in self.lost if item.end <= self.durable]
        if not self.consumers:
            self.join()
        quiet = 0
        while quiet < 3:
            before = len(self.done)
            for consumer in sorted(self.consumers):
                self.carry_out(self.machine.credit(consumer, 100))
            if self.fetch is not None:
                self.answer_with(4)
            held = sorted(self.held)
            self.finish(held)
            self.carry_out(self.machine.acked([OffsetRange(o, o + 1) for o in held]))
            quiet = 0 if len(self.done) > before else quiet + 1
        assert self.machine.cursor.offset >= self.durable, "something is never delivered"


TestSubscription = SubscriptionMachine.TestCase
TestSubscription.settings = settings(max_examples=100, stateful_step_count=40)
