"""The sink's coordinator: Spark's batches become visible exactly once.

    (a) each owner journals a pin (commit id → its staged sets) and confirms it when durable
    (b) one compare-and-set of the sink's single record decides; its transaction also compares the
        claim of every owner, so that no pin can have been lost with its owner in between
    (c) the owners append sink commits, which give the sets their offsets, idempotently
    (d) the record is marked finished, and the driver gets its answer

Pure over a ``MetadataStore`` and ``Owner``: no state of its own, so a coordinator may die anywhere
and any other goes on, at the same time too. Two things make that safe:

* The record is read *before* (a) and must be unchanged in (b). Whatever changes it in between (an
  abort, another decision, a newer run) makes the coordinator begin again with (a), and a pin that
  was dropped in between is not confirmed a second time.
* The record exists before anything is pinned, so "unchanged" never means "absent again".

A new run of the query takes the sink over from the one before when it first commits something
that is not decided; a run that was taken over from is refused from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from danube.core import telemetry
from danube.core.clock import Clock
from danube.core.errors import (
    DanubeError,
    FailedPrecondition,
    NotFound,
    OwnershipLost,
    StaleSink,
    Unavailable,
)
from danube.core.names import PartitionId
from danube.core.stores import Compare, MetadataStore
from danube.log.attempts import Patience, Sleep, all_outcomes, is_passing, raise_first
from danube.log.sink_protocol import (
    BatchAborted,
    CommitOutcome,
    CommitRequest,
    Owner,
    Resolution,
    SetRef,
    SinkLabel,
    commit_id_of,
)
from danube.metadata.catalog import LostPart, Participant, SinkRecord, SinkRecords
from danube.metadata.records import NOTHING_DECIDED

__all__ = [
    "BatchAborted",
    "CommitOutcome",
    "CommitRequest",
    "Owner",
    "Resolution",
    "SetRef",
    "SinkCoordinator",
    "SinkLabel",
    "commit_id_of",
]

LOG = telemetry.get_logger(__name__)
DECIDED = telemetry.counter("sink_decided_batches", "Spark batches decided.")
LOST_PARTS = telemetry.counter("sink_lost_parts", "Parts of decided batches that were lost.")

REMEMBERED_RUNS: Final = 32
REMEMBERED_ABORTS: Final = 32
RACES: Final = 1_000
"""How often a compare-and-set that others keep winning is tried again."""

RECORD_TTL_S: Final = 7 * 24 * 3600
"""How long the record of a batch write stays."""


class SinkCoordinator:
    """Decides and finishes batches of Spark sinks.

    Args:
        store: where the decisions are made.
        owner_of: finds a partition's owner; raises NotFound if its topic is gone, Unavailable.
        clock: for time-outs, and dates of records.
        commit_timeout_s: how long a commit waits for owners that are away, in seconds.
        sleep: waits between attempts.
    """

    def __init__(
        self,
        store: MetadataStore,
        owner_of: Callable[[PartitionId], Awaitable[Owner]],
        clock: Clock,
        *,
        commit_timeout_s: float = 60.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._records = SinkRecords(store)
        self._owner_of = owner_of
        self._clock = clock
        self._timeout_s = commit_timeout_s
        self._sleep = sleep

    # -- commit ----------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> CommitOutcome:
        """Decide a batch and make it visible; asking again gives the same answer.

        A batch without sets is decided too: its batch id must not be used for another one.

        Raises:
            StaleSink: a later batch is decided, or a newer run has taken the sink over.
            BatchAborted: this commit was aborted before it was decided.
            FailedPrecondition: a staged set is gone; the batch has to be written again.
            Unavailable: owners were away for too long; asking again, at any time, goes on.
            NotFound: a topic was deleted before the decision.
        """
        request.check()
        patience = self._patience()
        commit_id = commit_id_of(request)
        while True:
            reason: DanubeError | None = None
            try:
                outcome = await self._attempt(request, commit_id, patience)
            except (Unavailable, OwnershipLost) as error:
                if patience.is_over:
                    raise
                reason = error
            else:
                if outcome is not None:
                    return outcome
            await patience.wait(reason, f"batch {request.batch_id} is not committed yet")

    async def _attempt(
        self, request: CommitRequest, commit_id: str, patience: Patience
    ) -> CommitOutcome | None:
        """(a) to (d); None if the decision found a claim or the record changed: (a) again."""
        record = await self._admit(request, patience)
        if record.last_batch_id == request.batch_id:
            finished = await self._finish(record, patience)
            if record.commit_id != commit_id:
                await self._give_up(request, commit_id)
            return CommitOutcome(True, record.commit_id, finished.lost)
        decided = await self._decide(record, request, commit_id)
        if decided is None:
            return None
        DECIDED.inc()
        LOG.info("batch decided", **request.label.to_fields(), commit_id=commit_id)
        finished = await self._finish(decided, patience)
        return CommitOutcome(False, commit_id, finished.lost)

    async def _admit(self, request: CommitRequest, patience: Patience) -> SinkRecord:
        """The record from which the request may go on; or one that has its batch decided."""
        for _ in range(RACES):
            record = await self._records.read(request.query_id, request.sink_name)
            if record is None:
                admitted = await self._records.write(self._first_record(request), None)
            else:
                _refuse_stale(record, request)
                if record.last_batch_id == request.batch_id:
                    return record
                if not record.finished:
                    await self._finish(record, patience)
                    continue
                if record.run_id == request.run_id:
                    return record
                admitted = await self._records.write(_taken_over(record, request), record)
            if admitted is not None:
                return admitted
        raise _contended(request.query_id, request.sink_name)

    async def _decide(
        self, record: SinkRecord, request: CommitRequest, commit_id: str
    ) -> SinkRecord | None:
        """(a) and (b): the new record, or None if the decision found something changed."""
        if commit_id in record.aborted:
            raise BatchAborted(
                f"batch {request.batch_id} of sink {request.sink_name!r} was given up before it "
                "was decided, and what it had staged is dropped; run the batch again"
            )
        try:
            compares = await self._pin(request, commit_id)
        except (Unavailable, OwnershipLost, NotFound):
            raise
        except FailedPrecondition:
            # The same request may have been committed by another coordinator meanwhile, which
            # turned its staged sets into messages.
            now = await self._records.read(request.query_id, request.sink_name)
            if now is not None and now.revision != record.revision:
                return None
            raise
        return await self._records.write(
            self._decision(record, request, commit_id), record, compares
        )

    async def _pin(self, request: CommitRequest, commit_id: str) -> list[Compare]:
        async def pin(partition: PartitionId, sets: Sequence[SetRef]) -> Sequence[Compare]:
            owner = await self._owner_of(partition)
            return await owner.pin(commit_id, request.label, [item.set_id for item in sets])

        outcomes = await all_outcomes(
            partial(pin, *item) for item in request.by_partition().items()
        )
        raise_first(outcomes)
        found = [item for part in outcomes if not isinstance(part, DanubeError) for item in part]
        return list(dict.fromkeys(found))

    def _first_record(self, request: CommitRequest) -> SinkRecord:
        return SinkRecord(
            request.query_id,
            request.sink_name,
            run_id=request.run_id,
            streaming=request.streaming,
            decided_us=self._clock.now_us(),
        )

    def _decision(self, record: SinkRecord, request: CommitRequest, commit_id: str) -> SinkRecord:
        participants = tuple(
            Participant(sets[0].topic, partition)
            for partition, sets in request.by_partition().items()
        )
        return replace(
            record,
            last_batch_id=request.batch_id,
            commit_id=commit_id,
            participants=participants,
            finished=not participants,
            lost=(),
            streaming=request.streaming,
            decided_us=self._clock.now_us(),
        )

    # -- (c) and (d) -----------------------------------------------------------------------

    async def _finish(self, record: SinkRecord, patience: Patience) -> SinkRecord:
        """Have every participant append its sink commit, then mark the record finished."""
        if record.finished:
            return record
        lost = list(record.lost)
        missing = list(record.participants)
        while missing:
            outcomes = await all_outcomes(
                partial(self._finish_part, record.commit_id, item) for item in missing
            )
            away: list[Participant] = []
            reason: DanubeError | None = None
            for item, outcome in zip(missing, outcomes, strict=True):
                if isinstance(outcome, (Unavailable, OwnershipLost)):
                    away.append(item)
                    reason = outcome
                elif not isinstance(outcome, DanubeError):
                    lost += outcome
            raise_first([item for item in outcomes if not is_passing(item)])
            missing = away
            if reason is not None:
                await patience.wait(
                    reason,
                    f"batch {record.last_batch_id} is decided and not yet visible in "
                    f"{away[0].topic} partition {away[0].partition.partition}",
                )
        return await self._mark_finished(record, tuple(lost))

    async def _finish_part(self, commit_id: str, item: Participant) -> Sequence[LostPart]:
        try:
            owner = await self._owner_of(item.partition)
            return await owner.finish(commit_id)
        except NotFound:
            # Deleted after the decision; its part has gone with it, the others must not hang.
            return [LostPart(item.topic, item.partition, "deleted")]

    async def _mark_finished(self, record: SinkRecord, lost: tuple[LostPart, ...]) -> SinkRecord:
        current: SinkRecord | None = record
        for _ in range(RACES):
            if current is None or current.commit_id != record.commit_id:
                # Another coordinator has finished it, and went on from there.
                return replace(record, finished=True, lost=lost)
            if current.finished:
                return current
            marked = await self._records.write(replace(current, finished=True, lost=lost), current)
            if marked is not None:
                if lost:
                    LOST_PARTS.inc(len(lost))
                    LOG.error("parts of a batch lost", **_names(record), parts=len(lost))
                return marked
            current = await self._records.read(record.query_id, record.sink_name)
        raise _contended(record.query_id, record.sink_name)

    # -- abort -----------------------------------------------------------------------------

    async def abort(self, request: CommitRequest) -> bool:
        """Drop a batch's staged sets unless it is decided, which nothing undoes.

        Returns whether the batch, or a later one, was decided. Owners that are away drop their
        sets later.
        """
        request.check()
        commit_id = commit_id_of(request)
        await self._give_up(request, commit_id)
        record = await self._records.read(request.query_id, request.sink_name)
        return record is not None and record.last_batch_id >= request.batch_id

    async def _give_up(self, request: CommitRequest, commit_id: str) -> None:
        """Make sure that the commit id is never decided, then drop its sets."""
        label = request.label
        resolution = await self.abort_pin(
            commit_id, label.query_id, label.sink_name, label.batch_id
        )
        if resolution is not Resolution.ABORTED:
            return

        async def drop(partition: PartitionId, sets: Sequence[SetRef]) -> None:
            owner = await self._owner_of(partition)
            await owner.unpin(commit_id)
            await owner.drop([item.set_id for item in sets])

        for outcome in await all_outcomes(
            partial(drop, *item) for item in request.by_partition().items()
        ):
            if isinstance(outcome, DanubeError):
                LOG.info("staged sets dropped later", **label.to_fields(), error=str(outcome))

    async def resolve(
        self, commit_id: str, query_id: str, sink_name: str, batch_id: int
    ) -> Resolution:
        """What became of a commit id: for owners that hold a pin and hear nothing more."""
        return _resolution(await self._records.read(query_id, sink_name), commit_id, batch_id)

    async def abort_pin(
        self, commit_id: str, query_id: str, sink_name: str, batch_id: int
    ) -> Resolution:
        """Make an undecided commit id undecidable; only then may its pins be dropped.

        Changing the record is what does it: a coordinator that has confirmed pins must confirm
        them again before it can decide. Returns ABORTED, or DECIDED if that came first.
        """
        for _ in range(RACES):
            record = await self._records.read(query_id, sink_name)
            found = _resolution(record, commit_id, batch_id)
            if found is not Resolution.UNDECIDED:
                return found
            before = record or SinkRecord(
                query_id, sink_name, run_id="", streaming=False, decided_us=self._clock.now_us()
            )
            aborted = (*before.aborted, commit_id)[-REMEMBERED_ABORTS:]
            if await self._records.write(replace(before, aborted=aborted), record) is not None:
                return Resolution.ABORTED
        raise _contended(query_id, sink_name)

    # -- upkeep ----------------------------------------------------------------------------

    async def finish_open(self) -> int:
        """Finish decided batches whose drivers and coordinators have vanished; how many."""
        count = 0
        async for record in self._every_record():
            if record.finished:
                continue
            try:
                await self._finish(record, self._patience())
            except DanubeError as error:
                # One sink whose owner is away or damaged must not keep the others waiting.
                LOG.warning("batch not finished yet", **_names(record), error=str(error))
            else:
                count += 1
        return count

    async def forget(self, query_id: str, sink_name: str) -> None:
        """Forget what a sink has decided, so that its query may start anew.

        What its batches wrote stays. An unfinished batch is finished first.

        Raises:
            NotFound: there is no such sink.
            Unavailable: its last batch cannot be finished now.
        """
        for _ in range(RACES):
            record = await self._records.read(query_id, sink_name)
            if record is None:
                raise NotFound(
                    f"there is no sink {sink_name!r} of query {query_id}; "
                    "`danube sinks list` shows those that are known"
                )
            if not record.finished:
                await self._finish(record, self._patience())
            elif await self._records.remove(record):
                return
        raise _contended(query_id, sink_name)

    async def expire(self, now_us: int) -> int:
        """Remove records of batch writes, and of sinks that never decided, after a week.

        Args:
            now_us: wall clock, microseconds.
        """
        oldest_us = now_us - RECORD_TTL_S * 1_000_000
        count = 0
        async for record in self._every_record():
            passing = not record.streaming or record.last_batch_id == NOTHING_DECIDED
            if passing and record.finished and record.decided_us < oldest_us:
                count += await self._records.remove(record)
        return count

    async def list(
        self, start_after: tuple[str, str] | None = None, limit: int = 0
    ) -> Sequence[SinkRecord]:
        """A page of sinks.

        Args:
            start_after: query id and sink name of the last one of the page before.
            limit: at most so many; 0 for a page of the default size.
        """
        return await self._records.page(start_after, limit)

    # -- small parts -----------------------------------------------------------------------

    def _patience(self) -> Patience:
        return Patience(self._clock, self._timeout_s, self._sleep)

    async def _every_record(self) -> AsyncIterator[SinkRecord]:
        after: tuple[str, str] | None = None
        while page := await self._records.page(after):
            for record in page:
                yield record
            after = page[-1].query_id, page[-1].sink_name


def _refuse_stale(record: SinkRecord, request: CommitRequest) -> None:
    sink = f"sink {request.sink_name!r} of query {request.query_id}"
    if request.run_id in record.fenced_runs:
        raise StaleSink(
            f"run {request.run_id} may not write to {sink} any more: run {record.run_id} of the "
            "same Spark checkpoint has taken it over; stop one of the two drivers"
        )
    if request.batch_id < record.last_batch_id:
        raise StaleSink(
            f"{sink} has decided batch {record.last_batch_id}, and batch {request.batch_id} is "
            "asked for: the Spark checkpoint is older than the sink. Go back to the newer Spark "
            "checkpoint; or, to write from the old one and have the batches since then twice, run "
            f"`danube sinks forget {request.query_id} {request.sink_name}`"
        )


def _taken_over(record: SinkRecord, request: CommitRequest) -> SinkRecord:
    fenced = (*record.fenced_runs, record.run_id) if record.run_id else record.fenced_runs
    return replace(
        record,
        run_id=request.run_id,
        streaming=request.streaming,
        fenced_runs=fenced[-REMEMBERED_RUNS:],
    )


def _resolution(record: SinkRecord | None, commit_id: str, batch_id: int) -> Resolution:
    if record is None:
        return Resolution.UNDECIDED
    if record.commit_id == commit_id:
        return Resolution.DECIDED
    # A batch is finished everywhere before the next is decided: who still holds a pin of an
    # earlier batch holds one that was not decided.
    if record.last_batch_id >= batch_id or commit_id in record.aborted:
        return Resolution.ABORTED
    return Resolution.UNDECIDED


def _names(record: SinkRecord) -> dict[str, Any]:
    return {
        "query": record.query_id,
        "sink": record.sink_name,
        "batch": record.last_batch_id,
        "commit_id": record.commit_id,
    }


def _contended(query_id: str, sink_name: str) -> Unavailable:
    return Unavailable(
        f"the record of sink {sink_name!r} of query {query_id} was changed by others {RACES} times "
        "in a row; try again"
    )
