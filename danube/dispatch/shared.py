"""Shared: any number of consumers, chunks dealt out in turn to whoever has credit."""

from __future__ import annotations

from danube.dispatch.consumers import Consumer
from danube.dispatch.subscription import Subscription


class SharedSubscription(Subscription):
    """A slow consumer runs out of credit or of its share and is passed over; it stops nobody."""

    def _admit(self, name: str) -> None:
        return None

    def _choose(self) -> Consumer | None:
        return next(self.consumers.ready(), None)
