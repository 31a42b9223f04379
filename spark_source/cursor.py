"""The query's cursor at the broker: a subscription of kind ``spark`` that shows its lag."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from danube.core.errors import DanubeError, SubscriptionBusy
from spark_source.broker import Broker, Cursors
from spark_source.offsets import SourceOffsets
from spark_source.run import RunName

_log = logging.getLogger("danube.spark.source")

HEARTBEAT_S: Final = 3.0
"""Repeat the position this often, so that the broker knows the run lives. A micro-batch may take
an hour in which Spark calls nothing of ours, so a thread does it."""


@dataclass(slots=True)
class _Run:
    """What the thread shares with the cursor."""

    broker: Broker
    subscription: str
    name: RunName
    run_id: str
    cursors: Cursors
    ended: threading.Event = field(default_factory=threading.Event)
    # One call at a time: a late heartbeat must not follow the run's last word.
    calling: threading.Lock = field(default_factory=threading.Lock)
    taken: SubscriptionBusy | None = None


class QueryCursor:
    """Registers one run of a query and moves its cursors. Lives in the driver's reader.

    Args:
        broker: any broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._run: _Run | None = None
        self._told: SourceOffsets | None = None

    @property
    def subscription(self) -> str:
        """Its name; empty before the first call."""
        return "" if self._run is None else self._run.subscription

    def reached(self, offsets: SourceOffsets, topic_ids: Mapping[str, str]) -> None:
        """Everything below ``offsets`` is done.

        The first call of a run takes the subscription, later ones move it.

        Args:
            offsets: per topic, the next to read.
            topic_ids: of the topics as they are now; others have no cursor any more.

        Raises:
            SubscriptionBusy: another live run has the name.
        """
        cursors = {
            name: (topic.topic_id, topic.next)
            for name, topic in offsets.topics.items()
            if topic_ids.get(name) == topic.topic_id
        }
        if self._run is None:
            self._begin(offsets.subscription, cursors)
        elif not self._run.ended.is_set():
            self._move(self._run, offsets, cursors)
        self._told = offsets

    def finish(self) -> None:
        """The run is over: another may take the name at once. Does nothing the second time."""
        run = self._run
        if run is None or run.ended.is_set():
            return
        with run.calling:
            run.ended.set()
            run.name.release()
            run.broker.finish(run.subscription, run.run_id, run.cursors)

    def _begin(self, subscription: str, cursors: Cursors) -> None:
        name = RunName(subscription)
        run_id = self._broker.register(subscription, name.current, cursors)
        run = self._run = _Run(self._broker, subscription, name, run_id, cursors)
        weakref.finalize(self, _abandon, run)
        threading.Thread(target=_beat, args=(run,), name="danube-heartbeat", daemon=True).start()

    def _move(self, run: _Run, offsets: SourceOffsets, cursors: Cursors) -> None:
        if run.taken is not None:
            raise run.taken
        if offsets != self._told:
            with run.calling:
                run.broker.move(run.subscription, run.run_id, cursors)
                run.cursors = cursors


def _abandon(run: _Run) -> None:
    """The reader is gone, and with it the run."""
    run.ended.set()
    run.name.release()


def _beat(run: _Run) -> None:
    while not run.ended.wait(HEARTBEAT_S):
        with run.calling:
            if run.ended.is_set():
                return
            try:
                run.broker.beat(run.subscription, run.run_id, run.cursors)
            except SubscriptionBusy as error:
                run.taken = error
                return
            except DanubeError as error:
                _log.info("the broker could not be told that the query lives: %s", error)
