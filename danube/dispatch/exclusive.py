"""Exclusive: one consumer at a time."""

from __future__ import annotations

from danube.core.errors import SubscriptionBusy
from danube.dispatch.decisions import Chunk
from danube.dispatch.subscription import Consumer, Subscription


class ExclusiveSubscription(Subscription):
    """The first consumer has it until it leaves; all messages go to it, in order."""

    def _admit(self, name: str) -> None:
        for holder in self.consumers.values():
            raise SubscriptionBusy(
                f"the subscription is exclusive and consumer {holder.name!r} has it; stop that "
                "one, or use a shared subscription"
            )

    def _choose(self, chunk: Chunk) -> Consumer | None:
        holder = next(iter(self.consumers.values()), None)
        return holder if holder is not None and holder.credit_bytes > 0 else None
