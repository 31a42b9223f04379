"""The query's cursor at the broker: a subscription of kind ``spark`` that shows its lag."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Final

from spark_source.broker import Broker
from spark_source.offsets import SourceOffsets

HEARTBEAT_S: Final = 5.0
"""Repeat the position this often while a query idles, so that the broker knows the run lives."""


class QueryCursor:
    """Registers one run of a query and moves its cursors. Lives in the driver's reader.

    Args:
        broker: any broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._run_id = uuid.uuid4().hex
        self._told: SourceOffsets | None = None
        self._told_at_s = 0.0
        self._finished = False

    @property
    def subscription(self) -> str:
        """Its name; empty before the first call."""
        return "" if self._told is None else self._told.subscription

    def reached(self, offsets: SourceOffsets, topic_ids: Mapping[str, str]) -> None:
        """Everything below ``offsets`` is done.

        The first call of a run takes the subscription; later ones move it, or repeat the position
        when the last was some seconds ago.

        Args:
            offsets: per topic, the next to read.
            topic_ids: of the topics as they are now; others have no cursor any more.

        Raises:
            SubscriptionBusy: another live run has the name.
        """
        if self._finished:
            return
        now = time.monotonic()
        cursors = {
            name: (topic.topic_id, topic.next)
            for name, topic in offsets.topics.items()
            if topic_ids.get(name) == topic.topic_id
        }
        if self._told is None:
            self._broker.register(offsets.subscription, self._run_id, cursors)
        elif offsets != self._told or now - self._told_at_s >= HEARTBEAT_S:
            self._broker.move(offsets.subscription, self._run_id, cursors)
        else:
            return
        self._told, self._told_at_s = offsets, now

    def finish(self) -> None:
        """The run is over: another may take the name at once. Does nothing the second time."""
        if self._told is None or self._finished:
            return
        self._finished = True
        self._broker.finish(self._told.subscription, self._run_id, {})
