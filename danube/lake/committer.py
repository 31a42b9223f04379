"""The committer: exactly-once, fenced, durable Delta commits.

One attempt writes version N + 1 if absent. "Exists" means a lost reply until the random id in that
version says otherwise: the object store's own put retries are off, ours repeat the same bytes
under the same id. On a conflict every Delta commit in between is read and applied, and the intent
is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence

from danube.core import telemetry
from danube.core.clock import IdSource
from danube.core.errors import Unavailable
from danube.core.stores import ObjectExists, ObjectNotFound, ObjectStoreUnavailable
from danube.lake.actions import Action, Definition, encode_commit, parse_commit
from danube.lake.intents import Intent
from danube.lake.layout import commit_key
from danube.lake.replay import TableLog
from danube.lake.settings import LakeSettings
from danube.lake.snapshot import Snapshot

COMMITS = telemetry.counter("delta_commits", "Delta commits, by operation.", ("operation",))
CONFLICTS = telemetry.counter("delta_conflicts", "Delta commits of others that came first.")
LOST_REPLIES = telemetry.counter("delta_lost_replies", "Delta commits found to have landed.")
COMMIT_SECONDS = telemetry.histogram("delta_commit_seconds", "Seconds per Delta commit.")


class Committer:
    """Commits intents to one table. Not thread-safe: its table takes turns."""

    def __init__(self, log: TableLog, settings: LakeSettings, ids: IdSource) -> None:
        self._log = log
        self._settings = settings
        self._ids = ids

    def create(self, definition: Definition) -> None:
        """Write version 0 if there is none; one that is there already is left as it is.

        Raises:
            Unavailable: the store did not answer; whether it was written is not known.
        """
        commit_id = self._new_id()
        now_us = self._log.clock.now_us()
        data = encode_commit(commit_id, "CREATE TABLE", [], now_us=now_us, definition=definition)
        self._put(0, data)

    def fresh(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot that the log's newest Delta commits have been applied to."""
        if self._is_stale(snapshot):
            # Log clean-up may have removed what follows it, and "not found" would look like the
            # end: only a listing tells.
            return self._log.load().snapshot
        return self._log.advance(snapshot)

    def commit(self, snapshot: Snapshot, intent: Intent) -> Snapshot:
        """Commit an intent on top of a snapshot or of whatever came after it.

        Returns:
            The state with the intent, or the newest state if nothing was left to commit.

        Raises:
            StaleEpoch, PlanVoid: the intent is void (see :mod:`danube.lake.intents`).
            ForeignCommit: somebody else wrote to the table.
            Unavailable: the store did not answer, or too many others came first.
        """
        commit_id = self._new_id()
        with COMMIT_SECONDS.time():
            for _ in range(self._settings.conflict_attempts):
                if self._is_stale(snapshot):
                    snapshot = self._log.load().snapshot
                intent.check(snapshot)
                base, actions = snapshot, intent.actions(snapshot, self._log.clock.now_us())
                if not actions:
                    return base
                snapshot, landed = self._attempt(base, commit_id, intent.operation, actions)
                if landed and self._counts(base):
                    COMMITS.labels(intent.operation).inc()
                    return snapshot
                if landed:
                    snapshot = self._log.load().snapshot
                    if intent.shown(snapshot):
                        return snapshot
                    commit_id = self._new_id()
        raise Unavailable(
            f"{self._settings.conflict_attempts} Delta commits of others came before ours to the "
            f"table of {self._log.name}; nothing was committed, try again"
        )

    def _attempt(
        self, base: Snapshot, commit_id: str, operation: str, actions: Sequence[Action]
    ) -> tuple[Snapshot, bool]:
        """Try for the next version; returns the newest state and whether ours is in it."""
        seen = self._log.clock.boottime_s()
        version = base.version + 1
        data = encode_commit(commit_id, operation, actions, now_us=self._log.clock.now_us())
        if self._put(version, data):
            mine = parse_commit(version, data, "this process")
            return self._log.step(base, mine).seen_at(seen), True
        return self._meet(base, commit_id)

    def _put(self, version: int, data: bytes) -> bool:
        """Whether it was created now; False if the version exists, by whomever."""
        key = commit_key(self._log.table, version)
        for attempt in range(1, self._settings.store_attempts + 1):
            try:
                self._log.store.create(key, data)
            except ObjectExists:
                return False
            except ObjectStoreUnavailable as error:
                if attempt == self._settings.store_attempts:
                    raise ObjectStoreUnavailable(
                        f"Delta commit {version} of {self._log.name} was not answered "
                        f"{attempt} times; whether it landed shows in the next snapshot: {error}"
                    ) from error
            else:
                return True
        raise AssertionError("settings allow at least one attempt")

    def _meet(self, base: Snapshot, commit_id: str) -> tuple[Snapshot, bool]:
        """Read what took our version and everything after it; True if one of them is ours."""
        snapshot, landed = base, False
        while True:
            seen = self._log.clock.boottime_s()
            try:
                commit = self._log.read(snapshot.version + 1)
            except ObjectNotFound:
                if snapshot is base:
                    # It existed a moment ago: log clean-up has overtaken us.
                    return self._log.load().snapshot, False
                return snapshot.seen_at(seen), landed
            snapshot = self._log.step(snapshot, commit)
            if commit.commit_id == commit_id:
                LOST_REPLIES.inc()
                landed = True
            else:
                CONFLICTS.inc()

    def _counts(self, base: Snapshot) -> bool:
        """Whether a Delta commit that was created on top of ``base`` is part of the table.

        A writer that slept may have created a version number that log clean-up had freed: what
        was built on an old snapshot is void until a fresh one shows it.
        """
        return not self._is_stale(base)

    def _is_stale(self, snapshot: Snapshot) -> bool:
        """Older than half of the age at which log clean-up removes Delta commits."""
        age_s = self._log.clock.boottime_s() - snapshot.read_at_boottime_s
        return age_s > self._settings.log_retention_hours * 3600 / 2

    def _new_id(self) -> str:
        return self._ids.random_bytes(16).hex()
