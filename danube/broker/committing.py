"""Spark batches committed and aborted over the wire."""

from __future__ import annotations

from collections.abc import Iterable

from danube.core.names import PartitionId
from danube.log.decisions import CommitRequest, SetRef, SinkCoordinator
from danube.metadata.catalog import LostPart
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb


class Commits:
    """The sink's half of the batch service."""

    def __init__(self, sinks: SinkCoordinator) -> None:
        self._sinks = sinks

    async def commit(self, request: pb.CommitBatchRequest) -> pb.CommitBatchResponse:
        """Decide a batch and make it visible; idempotent."""
        wanted = CommitRequest(
            query_id=request.query_id,
            sink_name=request.sink_name,
            batch_id=request.batch_id,
            run_id=request.run_id,
            sets=_sets(request.sets),
            streaming=request.streaming,
        )
        outcome = await self._sinks.commit(wanted)
        return pb.CommitBatchResponse(
            already_committed=outcome.already,
            commit_id=outcome.commit_id,
            lost=[_lost(item) for item in outcome.lost],
        )

    async def abort(self, request: pb.AbortBatchRequest) -> pb.AbortBatchResponse:
        """Drop what a batch has staged, unless it is decided."""
        wanted = CommitRequest(
            query_id=request.query_id,
            sink_name=request.sink_name,
            batch_id=request.batch_id,
            run_id=request.run_id,
            sets=_sets(request.sets),
        )
        return pb.AbortBatchResponse(was_decided=await self._sinks.abort(wanted))


def _sets(items: Iterable[pb.StagedSet]) -> tuple[SetRef, ...]:
    return tuple(
        SetRef(
            translate.set_id(item.set_id),
            item.topic,
            PartitionId(translate.topic_id(item.topic_id), item.partition),
        )
        for item in items
    )


def _lost(item: LostPart) -> pb.LostRange:
    return pb.LostRange(
        topic=item.topic,
        topic_id=str(item.partition.topic_id),
        partition=item.partition.partition,
        start=item.start,
        end=item.end,
        kind=item.kind,
    )
