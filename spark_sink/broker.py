"""The sink's calls to brokers: blocking, with deadlines, repeated while one is away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from danube.core.errors import OutcomeUnknown, Unsupported
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire.blocking import PASSING, Patience, batch_stub, retrying
from spark_sink.messages import StagedPart

ABORT_TIMEOUT_S: Final = 5.0
"""Deadline of an abort: it only hurries what the broker does by itself later."""


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
        """Where the topic's partitions live, and its limits.

        Raises:
            TopicNotFound: there is none of that name.
            Unsupported: the topic is not reliable.
        """
        request = pb.LookupRequest(topic=topic)
        found = retrying(
            f"looking up {topic} at {self.url}",
            Patience(self.retry_timeout_s),
            lambda timeout: batch_stub(self.url).Lookup(request, timeout=timeout),
        )
        if not found.reliable:
            raise Unsupported(
                f"{topic} is not a reliable topic: it keeps nothing, so Spark cannot write to it "
                "exactly once; create a reliable topic"
            )
        return found

    def commit(
        self,
        *,
        query_id: str,
        sink_name: str,
        batch_id: int,
        run_id: str,
        parts: Sequence[StagedPart],
        streaming: bool,
    ) -> pb.CommitBatchResponse:
        """Decide the batch and make it visible; the same answer however often it is asked.

        Raises:
            StaleSink: the sink has decided a later batch, or another run took the query over.
            Unavailable: an owner was away for too long; the decision may have been made, and a
                restart finishes it.
        """
        request = pb.CommitBatchRequest(
            query_id=query_id,
            sink_name=sink_name,
            batch_id=batch_id,
            run_id=run_id,
            sets=_sets(parts),
            streaming=streaming,
        )
        return retrying(
            f"committing batch {batch_id} of sink {sink_name!r} at {self.url}",
            Patience(self.retry_timeout_s, retry_on=(*PASSING, OutcomeUnknown)),
            lambda timeout: batch_stub(self.url).CommitBatch(request, timeout=timeout),
        )

    def abort(
        self,
        *,
        query_id: str,
        sink_name: str,
        batch_id: int,
        run_id: str,
        parts: Sequence[StagedPart],
    ) -> pb.AbortBatchResponse:
        """Drop staged sets unless the batch was decided. Tries once."""
        request = pb.AbortBatchRequest(
            query_id=query_id,
            sink_name=sink_name,
            batch_id=batch_id,
            run_id=run_id,
            sets=_sets(parts),
        )
        return retrying(
            f"aborting batch {batch_id} of sink {sink_name!r} at {self.url}",
            Patience(0.0, retry_on=()),
            lambda _: batch_stub(self.url).AbortBatch(request, timeout=ABORT_TIMEOUT_S),
        )


def _sets(parts: Sequence[StagedPart]) -> list[pb.StagedSet]:
    return [
        pb.StagedSet(
            set_id=part.set_id,
            topic=part.topic,
            topic_id=part.topic_id,
            partition=part.partition,
            count=part.count,
            bytes=part.bytes,
        )
        for part in parts
    ]
