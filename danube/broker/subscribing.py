"""The subscribe stream: credit and acknowledgements in, deliveries out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from danube.broker.delivery import Delivery, Port
from danube.broker.subscriptions import Subscriptions
from danube.broker.topics import require
from danube.core import telemetry
from danube.core.errors import DanubeError, InvalidRequest
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.status import failure_of

LOG = telemetry.get_logger(__name__)
MAX_RANGES = 10_000
"""Ranges in one acknowledgement."""


class SubscribeStream:
    """One consumer's stream to one partition."""

    def __init__(
        self, subscriptions: Subscriptions, requests: AsyncIterator[pb.SubscribeRequest]
    ) -> None:
        self._subscriptions = subscriptions
        self._requests = requests

    async def run(self) -> AsyncIterator[pb.SubscribeResponse]:
        """Answer the stream until the consumer leaves or is told to."""
        first = await anext(aiter(self._requests), None)
        require(first is not None and first.HasField("open"), "open message as its first one")
        assert first is not None
        request = first.open
        record, topic, _ = await self._subscriptions.topics.open(
            request.topic, request.topic_id, request.partition
        )
        delivery, port = await self._subscriptions.join(record, request.partition, request)
        reader: asyncio.Task[None] | None = None
        try:
            yield pb.SubscribeResponse(
                opened=pb.SubscribeOpened(
                    topic_id=str(record.topic_id),
                    consumer_id=port.consumer_id,
                    cursor=delivery.machine.cursor.offset,
                )
            )
            reader = asyncio.create_task(self._read(delivery, port))
            while (item := await port.outbox.get()) is not None:
                if isinstance(item, DanubeError):
                    raise item
                yield item
                delivery.sent(port, item)
        finally:
            self._subscriptions.leave(topic.partition_id(request.partition), delivery, port)
            if reader is not None:
                reader.cancel()
                with suppress(asyncio.CancelledError, DanubeError):
                    await reader

    async def _read(self, delivery: Delivery, port: Port) -> None:
        """Take credit and acknowledgements; the end of the requests ends the stream."""
        try:
            async for request in self._requests:
                kind = request.WhichOneof("kind")
                if kind == "credit":
                    delivery.add_credit(port, request.credit.bytes)
                elif kind == "acknowledge":
                    await self._acknowledge(delivery, port, request.acknowledge)
                else:
                    raise InvalidRequest("a subscribe stream is opened once; send credit or acks")
        except DanubeError as error:
            delivery.disconnect(port, error)
        except Exception:
            # A mistake of ours must not leave the consumer waiting for an answer.
            LOG.exception("subscribe stream failed", subscription=delivery.name)
            delivery.disconnect(port, DanubeError("the broker failed; its log tells why"))
        else:
            delivery.disconnect(port, None)

    async def _acknowledge(self, delivery: Delivery, port: Port, request: pb.Acknowledge) -> None:
        answer = pb.Acknowledged(request_id=request.request_id)
        try:
            if len(request.acked) + len(request.nacked) > MAX_RANGES:
                raise InvalidRequest(
                    f"{len(request.acked) + len(request.nacked)} ranges in one acknowledgement; "
                    f"send at most {MAX_RANGES}"
                )
            acked = translate.ranges_of(request.acked)
            nacked = translate.ranges_of(request.nacked)
            answer.cursor = await delivery.acknowledge(port, acked, nacked)
        except DanubeError as error:
            answer.failure.CopyFrom(failure_of(error))
        port.outbox.put_nowait(pb.SubscribeResponse(acknowledged=answer))
