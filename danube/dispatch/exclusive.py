"""Exclusive: one consumer at a time."""

from __future__ import annotations

from danube.core.errors import SubscriptionBusy
from danube.dispatch.consumers import Consumer
from danube.dispatch.subscription import Subscription


class ExclusiveSubscription(Subscription):
    """The first consumer has it until it leaves; all messages go to it, in order."""

    def _admit(self, name: str) -> None:
        for holder in self.consumers:
            raise SubscriptionBusy(
                f"the subscription is exclusive and consumer {holder.name!r} has it; stop that "
                "one, or use a shared subscription"
            )

    def _choose(self) -> Consumer | None:
        return next(self.consumers.ready(), None)
