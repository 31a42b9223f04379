"""Spark queries: each has a cursor of kind ``spark`` per topic, moved by one live run at a time.

The cursor shows a query's lag where operators look, and tells retention what the query still
needs. It never decides what the query reads: Spark's own checkpoint does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from danube.broker.settings import DispatchSettings
from danube.broker.topics import Topics, require
from danube.core.clock import Clock
from danube.core.errors import FailedPrecondition, OffsetOutOfRange, SubscriptionBusy
from danube.core.names import TopicId
from danube.dispatch.cursor import Cursor
from danube.log.partition import PartitionLog
from danube.metadata.catalog import SubscriptionRecord, TopicRecord
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb


@dataclass(slots=True)
class Run:
    """One run of a query, as last heard of."""

    run_id: str
    seen_s: float


class Queries:
    """Registers runs of Spark queries and moves their cursors."""

    def __init__(self, topics: Topics, settings: DispatchSettings, clock: Clock) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._runs: dict[tuple[TopicId, str], Run] = {}

    async def register(self, request: pb.RegisterQueryRequest) -> pb.RegisterQueryResponse:
        """Begin a run: take the name and set the cursors to where the run starts.

        Raises:
            SubscriptionBusy: another run of that name is alive.
            FailedPrecondition: consumers use a subscription of that name.
        """
        name = translate.subscription_name(request.subscription)
        require(bool(request.run_id), "run id")
        records = [await self._record(item) for item in request.cursors]
        for record in records:
            self._take(record, name, request.run_id)
            await self._ensure(record, name)
        for record, item in zip(records, request.cursors, strict=True):
            for number, offset in sorted(item.next.items()):
                log = await self._log(record, number, offset)
                await self._set(log, name, offset)
        return pb.RegisterQueryResponse()

    async def move(self, request: pb.MoveCursorRequest) -> pb.MoveCursorResponse:
        """Move a run's cursors forward; they never go back here.

        Raises:
            SubscriptionBusy: another run has the name now.
        """
        name = translate.subscription_name(request.subscription)
        require(bool(request.run_id), "run id")
        for item in request.cursors:
            record = await self._record(item)
            self._take(record, name, request.run_id)
            await self._ensure(record, name)
            for number, offset in sorted(item.next.items()):
                log = await self._log(record, number, offset)
                await self._advance(log, name, offset)
            if request.finished:
                self._runs.pop((record.topic_id, name), None)
        return pb.MoveCursorResponse()

    def check_idle(self, record: TopicRecord, name: str) -> None:
        """Refuse to take a cursor away from a live run.

        Raises:
            SubscriptionBusy: a run is alive.
        """
        run = self._runs.get((record.topic_id, name))
        if run is not None and self._alive(run):
            raise SubscriptionBusy(f"a Spark query is using {name!r}; stop it first")

    def _take(self, record: TopicRecord, name: str, run_id: str) -> None:
        run = self._runs.get((record.topic_id, name))
        if run is not None and run.run_id != run_id and self._alive(run):
            raise SubscriptionBusy(
                f"another run of the Spark query {name!r} reads {record.name}; stop it, or give "
                "this one its own subscriptionName"
            )
        if run is None:
            # Runs that ended without a word leave nothing behind.
            self._runs = {key: item for key, item in self._runs.items() if self._alive(item)}
        self._runs[record.topic_id, name] = Run(run_id, self._clock.monotonic_s())

    def _alive(self, run: Run) -> bool:
        return self._clock.monotonic_s() - run.seen_s < self._settings.query_ttl_s

    async def _record(self, item: pb.QueryCursor) -> TopicRecord:
        return await self._topics.record(item.topic, item.topic_id)

    async def _ensure(self, record: TopicRecord, name: str) -> None:
        catalog = self._topics.engine.context.catalog
        found = await catalog.subscription(record.topic_id, name)
        if found is None:
            made = SubscriptionRecord(
                topic_id=record.topic_id,
                name=name,
                type="spark",
                created_us=self._clock.now_us(),
                start="",
            )
            await catalog.create_subscription(made)
        elif found.type != "spark":
            raise FailedPrecondition(
                f"{name!r} is a {found.type} subscription of {record.name}; give the query "
                "another subscriptionName"
            )

    async def _log(self, record: TopicRecord, number: int, offset: int) -> PartitionLog:
        _, _, owned = await self._topics.open(str(record.name), str(record.topic_id), number)
        if offset > owned.log.durable_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of {record.name} partition {number} is above the durable offset "
                f"{owned.log.durable_offset}; the query's Spark checkpoint is of another topic, "
                "or of a broker that was restored from an older copy"
            )
        return owned.log

    async def _set(self, log: PartitionLog, name: str, offset: int) -> None:
        cursor = log.state.cursors.get(name)
        if cursor is None:
            log.put_cursor(name, Cursor(offset))
        elif offset < cursor.offset:
            cursor.reset(offset)
        elif not cursor.advance(offset):
            return
        await log.save_cursor(name)

    async def _advance(self, log: PartitionLog, name: str, offset: int) -> None:
        cursor = log.state.cursors.get(name)
        if cursor is None:
            log.put_cursor(name, Cursor(offset))
        elif not cursor.advance(offset):
            return
        await log.save_cursor(name)


def floor(cursors: Iterable[Cursor]) -> int | None:
    """The lowest offset that some query still needs; None without queries."""
    return min((cursor.offset for cursor in cursors), default=None)
