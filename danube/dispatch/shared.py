"""Shared: any number of consumers, chunks dealt out in turn to whoever has credit."""

from __future__ import annotations

from danube.dispatch.decisions import Chunk
from danube.dispatch.subscription import Consumer, Subscription


class SharedSubscription(Subscription):
    """A slow consumer runs out of credit and is passed over; it stops nobody else."""

    def _admit(self, name: str) -> None:
        return None

    def _choose(self, chunk: Chunk) -> Consumer | None:
        for consumer_id in list(self.consumers):
            # Rotate: the consumer looked at goes to the end of the line.
            consumer = self.consumers.pop(consumer_id)
            self.consumers[consumer_id] = consumer
            if consumer.credit_bytes > 0:
                return consumer
        return None
