"""Upkeep of one table at a time; the broker says when, and which tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from danube.core import telemetry
from danube.core.clock import Clock
from danube.core.names import TopicId
from danube.lake.checkpoints import hinted_version
from danube.lake.table import PlanVoid, StaleEpoch, TopicTable
from danube.upkeep.cleaning import clean_log, remove_objects
from danube.upkeep.retention import Needed, RetentionPlan, RetentionPolicy, plan_retention
from danube.upkeep.settings import UpkeepSettings

LOG = telemetry.get_logger(__name__)
RETIRED = telemetry.counter("retired_messages", "Messages that retention let go.")
CAPPED = telemetry.counter(
    "retention_capped_messages",
    "Messages that went, by upkeep.spark_cap_hours, although a Spark query still needed them.",
)
REMOVED_OBJECTS = telemetry.counter("removed_objects", "Data and log objects removed.", ("what",))
DELTA_CHECKPOINTS = telemetry.counter("delta_checkpoints", "Delta checkpoints written.")


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """One table and what upkeep has to ask about it.

    Attributes:
        table: open and fenced by this broker.
        policy: the topic's retention.
        epochs: the partitions this broker owns, with the epochs of their claims.
        acknowledged: per partition, up to where every subscription has acknowledged; None
            without subscriptions.
        spark_floor: per partition, the lowest offset a registered Spark query still needs.
    """

    table: TopicTable
    policy: RetentionPolicy
    epochs: Callable[[], Mapping[int, int]]
    acknowledged: Callable[[int], int | None]
    spark_floor: Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What one run did.

    Attributes:
        starts: new log start offsets by partition.
        retired: messages let go.
        capped: those of them that a Spark query still needed.
        checkpoint: version of a new Delta checkpoint.
        log_entries: entries of the log removed.
        objects: data objects removed.
    """

    starts: Mapping[int, int]
    retired: int = 0
    capped: int = 0
    checkpoint: int | None = None
    log_entries: int = 0
    objects: int = 0


class Upkeep:
    """Runs upkeep; blocking, one table per call, any thread."""

    def __init__(self, settings: UpkeepSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._cleaned_at_s: dict[TopicId, float] = {}

    def run(self, job: TableUpkeep) -> UpkeepReport:
        """Retention, then either a Delta checkpoint or clean-up, as they are due.

        Raises:
            ForeignCommit, Corruption, Unavailable: as the table does.
        """
        job.table.refresh()
        plans = [plan for plan in self._plans(job) if self._retire(job, plan)]
        retired = sum(file.rows for plan in plans for file in plan.files)
        capped = sum(plan.capped for plan in plans)
        starts = {plan.partition: plan.new_start for plan in plans}
        if self._checkpoint_due(job.table):
            version = job.table.checkpoint()
            DELTA_CHECKPOINTS.inc()
            return UpkeepReport(starts, retired, capped, checkpoint=version)
        if not self._clean_due(job.table):
            return UpkeepReport(starts, retired, capped)
        entries, objects = self._clean(job.table)
        return UpkeepReport(starts, retired, capped, log_entries=entries, objects=objects)

    def forget(self, topic_id: TopicId) -> None:
        """The table is no longer this broker's."""
        self._cleaned_at_s.pop(topic_id, None)

    def _plans(self, job: TableUpkeep) -> list[RetentionPlan]:
        needed = {
            partition: Needed(job.acknowledged(partition), job.spark_floor(partition))
            for partition in job.epochs()
        }
        return plan_retention(
            job.table.snapshot,
            job.policy,
            needed,
            now_us=self._clock.now_us(),
            spark_cap_hours=self._settings.spark_cap_hours,
        )

    def _retire(self, job: TableUpkeep, plan: RetentionPlan) -> bool:
        epoch = job.epochs().get(plan.partition)
        if epoch is None:
            return False
        try:
            job.table.remove(plan.partition, epoch, plan.files, plan.new_start, maint=plan.maint)
        except (PlanVoid, StaleEpoch) as error:
            # Somebody else was at the table; the next run plans on what it is then.
            LOG.info("retention void", topic=job.table.topic_name, error=str(error))
            return False
        RETIRED.inc(sum(file.rows for file in plan.files))
        if plan.capped:
            CAPPED.inc(plan.capped)
            LOG.warning(
                "retention overtook a Spark query",
                topic=job.table.topic_name,
                partition=plan.partition,
                messages=plan.capped,
                new_start=plan.new_start,
            )
        return True

    def _checkpoint_due(self, table: TopicTable) -> bool:
        newest = hinted_version(table.store, table.log.table)
        since = table.snapshot.version - (0 if newest is None else newest)
        return since >= table.settings.checkpoint_interval_count

    def _clean_due(self, table: TopicTable) -> bool:
        last_s = self._cleaned_at_s.get(table.topic_id)
        interval_s = self._settings.clean_interval_minutes * 60
        return last_s is None or self._clock.monotonic_s() - last_s >= interval_s

    def _clean(self, table: TopicTable) -> tuple[int, int]:
        now_us = self._clock.now_us()
        entries = clean_log(table, now_us)
        objects = remove_objects(
            table,
            now_us,
            removal_delay_hours=self._settings.removal_delay_hours,
            orphan_age_hours=max(
                self._settings.orphan_age_hours, 2 * table.settings.uncommitted_hours
            ),
        )
        self._cleaned_at_s[table.topic_id] = self._clock.monotonic_s()
        REMOVED_OBJECTS.labels("log").inc(entries)
        REMOVED_OBJECTS.labels("data").inc(objects)
        return entries, objects
