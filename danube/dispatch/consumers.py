"""The consumers of one subscription: credit, shares of the window, whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Consumer:
    """One connected consumer.

    ``credit_bytes`` may become negative: a chunk goes to whoever has any credit at all, or a chunk
    larger than the credit could never be delivered. ``unacked`` counts messages.
    """

    consumer_id: int
    name: str
    credit_bytes: int = 0
    unacked: int = 0


class Consumers:
    """Connected consumers in the order of their turns.

    Args:
        window: un-acknowledged messages that all of them together may hold.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._by_id: dict[int, Consumer] = {}

    def add(self, consumer: Consumer) -> None:
        """Connect; the new one's turn is last."""
        self._by_id[consumer.consumer_id] = consumer

    def get(self, consumer_id: int) -> Consumer | None:
        """The connected consumer with that id."""
        return self._by_id.get(consumer_id)

    def remove(self, consumer_id: int) -> Consumer | None:
        """Disconnect."""
        return self._by_id.pop(consumer_id, None)

    def served(self, consumer: Consumer) -> None:
        """It had its turn; the others come first now."""
        self._by_id[consumer.consumer_id] = self._by_id.pop(consumer.consumer_id)

    @property
    def share(self) -> int:
        """Un-acknowledged messages that one consumer may hold."""
        return max(1, self._window // max(1, len(self._by_id)))

    def room(self, consumer: Consumer) -> int:
        """Messages that the consumer's share still has room for."""
        return max(0, self.share - consumer.unacked)

    def held(self) -> int:
        """Messages that count against the window.

        What a consumer holds beyond its share (it was alone before) does not count: it must not
        stop those that came later.
        """
        share = self.share
        return sum(min(item.unacked, share) for item in self)

    def ready(self) -> Iterator[Consumer]:
        """Those with credit and room, whose turn is next first."""
        share = self.share
        return (item for item in self if item.credit_bytes > 0 and item.unacked < share)

    def credit_bytes(self) -> int:
        """The credit of all that could take something."""
        return sum(item.credit_bytes for item in self.ready())

    def __contains__(self, consumer_id: int) -> bool:
        return consumer_id in self._by_id

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)
