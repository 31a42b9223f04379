"""One subscription on one partition, live: carries out what its state machine decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from danube.core import telemetry
from danube.core.errors import DanubeError, OffsetOutOfRange, Unavailable
from danube.core.offsets import OffsetRange
from danube.dispatch.decisions import Chunk, CursorMoved, Decision, Deliver, Disconnect, Fetch
from danube.dispatch.subscription import Subscription
from danube.log.reading import ReadResult, StoredFrame
from danube.log.topic import Owned, TopicLog
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb

LOG = telemetry.get_logger(__name__)
DELIVERED = telemetry.counter("delivered_messages", "Messages sent to consumers.")
REDELIVERED = telemetry.counter("redelivered_messages", "Messages sent to consumers again.")
ACKED = telemetry.counter("acked_messages", "Messages whose acknowledgement was answered.")


@dataclass(slots=True)
class Port:
    """Where one connected consumer's deliveries wait until its stream has taken them.

    The consumer's credit says what it can take; the broker passes on only as much of it as the
    consumer's share of the outbox memory has room for.
    """

    consumer_id: int
    name: str
    credit_bytes: int = 0
    queued_bytes: int = 0
    outbox: asyncio.Queue[pb.SubscribeResponse | DanubeError | None] = field(
        default_factory=asyncio.Queue
    )


class Delivery:
    """Between a state machine (pure) and the log and the consumers' streams (not pure)."""

    def __init__(
        self,
        name: str,
        machine: Subscription,
        topic: TopicLog,
        owned: Owned,
        number: int,
        *,
        share_bytes: Callable[[], int],
    ) -> None:
        self.name = name
        self._share_bytes = share_bytes
        self.machine = machine
        self.ports: dict[int, Port] = {}
        self._topic = topic
        self._log = owned.log
        self._number = number
        self._fetching: set[asyncio.Task[None]] = set()
        self._stop_listening: Callable[[], None] = self._log.on_durable(self._appended)

    def close(self) -> None:
        """Nobody consumes any more: stop listening; the cursor stays with the partition."""
        self._stop_listening()
        for task in self._fetching:
            task.cancel()

    # -- events ----------------------------------------------------------------------------

    def join(self, port: Port) -> None:
        """A consumer connects; one of the same name that is still there is replaced.

        Raises:
            SubscriptionBusy: the kind does not allow one more.
        """
        for other in list(self.ports.values()):
            if other.name == port.name:
                self.disconnect(other, Unavailable(f"consumer {port.name!r} connected again"))
        decisions = self.machine.joined(port.consumer_id, port.name)
        self.ports[port.consumer_id] = port
        self._carry_out(decisions)

    def leave(self, port: Port) -> None:
        """A consumer's stream has ended."""
        if self.ports.pop(port.consumer_id, None) is not None:
            self._carry_out(self.machine.left(port.consumer_id))

    def disconnect(self, port: Port, reason: DanubeError | None) -> None:
        """End a consumer's stream with an error, or in order."""
        self.leave(port)
        port.outbox.put_nowait(reason)

    def add_credit(self, port: Port, size: int) -> None:
        """A consumer can take ``size`` more bytes."""
        most = self.machine.limits.max_credit_bytes
        port.credit_bytes = min(port.credit_bytes + size, most)
        self._pass_credit(port)

    def sent(self, port: Port, response: pb.SubscribeResponse) -> None:
        """A consumer's stream has taken a response out of its port."""
        if response.HasField("delivery"):
            port.queued_bytes -= len(response.delivery.frame)
            self._pass_credit(port)

    def _pass_credit(self, port: Port) -> None:
        """Tell the state machine of as much credit as the port has room for."""
        consumer = self.machine.consumers.get(port.consumer_id)
        if consumer is None:
            return
        room = self._share_bytes() - port.queued_bytes - max(consumer.credit_bytes, 0)
        size = min(port.credit_bytes, room)
        if size > 0:
            port.credit_bytes -= size
            self._carry_out(self.machine.credit(port.consumer_id, size))

    async def acknowledge(
        self, port: Port, acked: list[OffsetRange], nacked: list[OffsetRange]
    ) -> int:
        """Take acks and nacks; returns the cursor's offset once the acks are durable."""
        before = self.machine.cursor.offset + self.machine.cursor.acked.total()
        moved = self._carry_out(self.machine.acked(acked)) if acked else False
        if nacked:
            self._carry_out(self.machine.nacked(port.consumer_id, nacked))
        if moved:
            await self._log.save_cursor(self.name)
            ACKED.inc(self.machine.cursor.offset + self.machine.cursor.acked.total() - before)
        return self.machine.cursor.offset

    async def reset(self, offset: int) -> None:
        """Put the cursor elsewhere; durable when this returns."""
        self._carry_out(self.machine.reset(offset))
        await self._log.save_cursor(self.name)

    def trimmed(self, log_start: int) -> None:
        """Retention has removed messages below ``log_start``."""
        self._carry_out(self.machine.trimmed(log_start))

    def _appended(self) -> None:
        if self._log.refusal is not None:
            # Acknowledgements are refused from now on; a silent stream would tell nobody why.
            for port in list(self.ports.values()):
                self.disconnect(port, self._log.refusal)
            return
        self._carry_out(self.machine.appended(self._log.durable_offset))

    # -- decisions -------------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[Decision]) -> bool:
        """Do what was decided; whether the cursor moved."""
        moved = False
        for decision in decisions:
            if isinstance(decision, Deliver):
                self._deliver(decision)
            elif isinstance(decision, Fetch):
                task = asyncio.create_task(self._fetch(decision))
                self._fetching.add(task)
                task.add_done_callback(self._fetching.discard)
            elif isinstance(decision, CursorMoved):
                moved = True
            elif isinstance(decision, Disconnect):
                self._end(decision)
        return moved

    def _end(self, decision: Disconnect) -> None:
        port = self.ports.get(decision.consumer_id)
        if port is not None:
            self.disconnect(port, Unavailable(f"{decision.reason}: subscribe again"))

    def _deliver(self, decision: Deliver) -> None:
        port = self.ports.get(decision.consumer_id)
        item = decision.chunk.frame
        assert isinstance(item, StoredFrame)
        count = sum(len(span) for span in decision.spans)
        DELIVERED.inc(count)
        if decision.redelivery_count:
            REDELIVERED.inc(count)
        if port is not None:
            frame = item.frame.to_bytes()
            port.queued_bytes += len(frame)
            port.outbox.put_nowait(
                pb.SubscribeResponse(
                    delivery=pb.Delivery(
                        frame=frame,
                        base_offset=item.base_offset,
                        append_time_us=item.append_time_us,
                        spans=translate.spans_of(decision.spans),
                        redelivery_count=decision.redelivery_count,
                    )
                )
            )

    async def _fetch(self, fetch: Fetch) -> None:
        try:
            result = await self._topic.read(
                self._number, fetch.start, end=fetch.end, max_bytes=fetch.max_bytes
            )
        except OffsetOutOfRange:
            self.machine.fetch_failed(fetch.fetch_id)
            self.trimmed(self._log.log_start)
        except DanubeError as error:
            LOG.error("delivery failed", subscription=self.name, error=str(error))
            self.machine.fetch_failed(fetch.fetch_id)
            for port in list(self.ports.values()):
                self.disconnect(port, error)
        else:
            await self._fetched(fetch, result)

    async def _fetched(self, fetch: Fetch, result: ReadResult) -> None:
        if result.next_offset == fetch.start:
            # The tail moved to the table between two looks: the next one finds it there.
            await asyncio.sleep(0)
        chunks = [
            Chunk(item.span.start, item.span.end, item.frame.total_bytes, item)
            for item in result.frames
        ]
        self._carry_out(
            self.machine.fetched(fetch.fetch_id, chunks, result.next_offset, result.lost)
        )
