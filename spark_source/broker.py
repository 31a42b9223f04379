"""The calls the source makes to brokers: blocking, with deadlines, repeated while one is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from danube.core.errors import SubscriptionBusy, Unsupported
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.blocking import PASSING, Patience, batch_stub, retrying, translated_stream

Cursors: TypeAlias = Mapping[str, tuple[str, Mapping[int, int]]]
"""Topic -> its id, and partition -> next offset to read."""

STREAM_TIMEOUT_S: Final = 120.0
"""Deadline of one Read stream. One that ends by it goes on where it was."""

TELL_TIMEOUT_S: Final = 2.0
"""Deadline of a heartbeat, and of the last word of a run: nobody waits long for a courtesy."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker (any) by its url. Picklable: channels belong to the process, not to this object.

    Attributes:
        url: host:port.
        retry_timeout_s: how long a broker may be away.
    """

    url: str
    retry_timeout_s: float

    def lookup(self, topic: str) -> pb.LookupResponse:
        """Where the topic's partitions live, and their offsets.

        Raises:
            TopicNotFound: there is none of that name.
            Unsupported: the topic is not reliable, so it has no offsets.
        """
        request = pb.LookupRequest(topic=topic)
        found = retrying(
            f"looking up {topic} at {self.url}",
            self.patience(),
            lambda timeout: batch_stub(self.url).Lookup(request, timeout=timeout),
        )
        if not found.reliable:
            raise Unsupported(
                f"{topic} is not a reliable topic: it keeps no messages and has no offsets, so "
                "Spark cannot read it; create a reliable topic"
            )
        return found

    def plan(self, ranges: Sequence[pb.TopicRange]) -> pb.PlanResponse:
        """How to read ``ranges``."""
        request = pb.PlanRequest(ranges=ranges)
        return retrying(
            f"planning a read of {ranges[0].topic} at {self.url}",
            self.patience(),
            lambda timeout: batch_stub(self.url).Plan(request, timeout=timeout),
        )

    def register(self, subscription: str, run_id: Callable[[], str], cursors: Cursors) -> str:
        """Take the subscription for this run and set its cursors.

        A run that ended without a word holds the name until the broker stops waiting for it, so
        a busy name is tried again for a while.

        Args:
            subscription: its name.
            run_id: asked for the run's id before each try.
            cursors: where the run starts.

        Returns:
            The run's id that was accepted.

        Raises:
            SubscriptionBusy: another live run has it.
        """

        def attempt(timeout_s: float) -> str:
            request = pb.RegisterQueryRequest(
                subscription=subscription, run_id=run_id(), cursors=_cursors(cursors)
            )
            batch_stub(self.url).RegisterQuery(request, timeout=timeout_s)
            return request.run_id

        return retrying(
            f"registering subscription {subscription!r} at {self.url}",
            Patience(self.retry_timeout_s, retry_on=(*PASSING, SubscriptionBusy)),
            attempt,
        )

    def move(self, subscription: str, run_id: str, cursors: Cursors) -> None:
        """Move the run's cursors. Raises SubscriptionBusy when another run took the name."""
        request = pb.MoveCursorRequest(
            subscription=subscription, run_id=run_id, cursors=_cursors(cursors)
        )
        retrying(
            f"moving the cursor of {subscription!r} at {self.url}",
            self.patience(),
            lambda timeout: batch_stub(self.url).MoveCursor(request, timeout=timeout),
        )

    def beat(self, subscription: str, run_id: str, cursors: Cursors) -> None:
        """Repeat the run's position, once and without patience: the next beat comes anyway."""
        self._tell(subscription, run_id, cursors, finished=False)

    def finish(self, subscription: str, run_id: str, cursors: Cursors) -> None:
        """Tell that the run ends, once and without patience."""
        self._tell(subscription, run_id, cursors, finished=True)

    def _tell(self, subscription: str, run_id: str, cursors: Cursors, *, finished: bool) -> None:
        request = pb.MoveCursorRequest(
            subscription=subscription, run_id=run_id, cursors=_cursors(cursors), finished=finished
        )
        retrying(
            f"telling {self.url} of the run of {subscription!r}",
            Patience(0.0, retry_on=()),
            lambda _: batch_stub(self.url).MoveCursor(request, timeout=TELL_TIMEOUT_S),
        )

    def read(self, url: str, request: pb.ReadRequest) -> Iterator[pb.ReadResponse]:
        """Frames of one range from the broker at ``url``; ends or fails as the stream does."""
        responses = batch_stub(url or self.url).Read(request, timeout=STREAM_TIMEOUT_S)
        return translated_stream(responses)

    def owner(self, topic: str, partition: int) -> str:
        """The url of the partition's owner, or "" while there is none."""
        for info in self.lookup(topic).partitions:
            if info.partition == partition:
                return info.broker_url
        return ""

    def patience(self) -> Patience:
        """A new wait with this broker's time-out."""
        return Patience(self.retry_timeout_s)


def _cursors(cursors: Cursors) -> list[pb.QueryCursor]:
    return [
        pb.QueryCursor(topic=topic, topic_id=topic_id, next=dict(following))
        for topic, (topic_id, following) in cursors.items()
    ]
