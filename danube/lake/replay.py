"""Reading a table's log: Delta checkpoint and Delta commits to a snapshot.

Only over the object store's protocol, so that buckets, faults and the simulator run the same code.
A torn Delta checkpoint falls back to the one before it and the Delta commits since; a torn Delta
commit is an error that says how to go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from danube.core import telemetry
from danube.core.clock import Clock
from danube.core.errors import Corruption, ForeignCommit
from danube.core.names import TopicId
from danube.core.stores import ObjectNotFound, ObjectStore
from danube.lake.actions import Commit, NotOurs, parse_commit
from danube.lake.checkpoints import CheckpointState, TornCheckpoint, hinted_version, read_checkpoint
from danube.lake.definition import check_definition
from danube.lake.layout import (
    checkpoint_key,
    commit_key,
    last_checkpoint_key,
    log_prefix,
    log_version,
    table_key,
)
from danube.lake.snapshot import Snapshot, is_our_transaction

LOG = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogListing:
    """The versions that a table's log holds, each ascending."""

    commits: list[int]
    checkpoints: list[int]


@dataclass(slots=True)
class Loaded:
    """A snapshot read from the log's start, and what only upkeep wants.

    Attributes:
        snapshot: the newest state.
        checkpoint: version of the Delta checkpoint it was read from, or None.
        torn: versions of Delta checkpoints that could not be read.
        removed: paths that left the table, to when (ms), as far as the log still tells.
    """

    snapshot: Snapshot
    checkpoint: int | None
    torn: list[int] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)


class TableLog:
    """The log of one topic's table."""

    def __init__(
        self, store: ObjectStore, topic_id: TopicId, topic_name: str, clock: Clock
    ) -> None:
        self.store = store
        self.topic_id = topic_id
        self.name = topic_name
        self.table = table_key(topic_id)
        self.clock = clock

    @property
    def uri(self) -> str:
        """The table's root."""
        return f"{self.store.uri}/{self.table}"

    def exists(self) -> bool:
        """Whether there is any Delta commit or checkpoint."""
        return any(log_version(info.key) for info in self.store.list(log_prefix(self.table)))

    def listing(self, start_after: str = "") -> LogListing:
        """Which versions are there, from a key on."""
        commits: list[int] = []
        checkpoints: list[int] = []
        for info in self.store.list(log_prefix(self.table), start_after=start_after):
            found = log_version(info.key)
            if found is not None:
                (commits if found[1] == "json" else checkpoints).append(found[0])
        return LogListing(commits, checkpoints)

    # -- one Delta commit ------------------------------------------------------------------

    def read(self, version: int) -> Commit:
        """Read one Delta commit.

        Raises:
            ObjectNotFound: it does not exist (yet, or any more).
            Corruption: it is torn.
        """
        key = commit_key(self.table, version)
        return parse_commit(version, self.store.get(key), f"{self.store.uri}/{key}")

    def step(self, snapshot: Snapshot, commit: Commit) -> Snapshot:
        """Apply the next Delta commit, if it is ours or harmless.

        Raises:
            ForeignCommit: it holds data, metadata or a protocol and no commit id of ours.
        """
        if commit.commit_id is None:
            self._refuse_foreign(commit)
        elif (commit.metadata or commit.protocol) and commit.version > 0:
            raise self._foreign(commit, "metadata or a protocol")
        try:
            return snapshot.apply(commit)
        except NotOurs as error:
            raise self._foreign(commit, str(error)) from None

    def _refuse_foreign(self, commit: Commit) -> None:
        held = [
            what
            for what, there in (
                ("added files", commit.adds),
                ("removed files", commit.removes),
                ("metadata", commit.metadata),
                ("a protocol", commit.protocol),
                (", ".join(commit.others), commit.others),
                ("a topic's state", any(map(is_our_transaction, commit.txns))),
            )
            if there
        ]
        if held:
            raise self._foreign(commit, " and ".join(held))

    def _foreign(self, commit: Commit, held: str) -> ForeignCommit:
        info = commit.info
        writer = info.get("engineInfo") or info.get("clientVersion") or "an unknown writer"
        path = f"{self.store.uri}/{commit_key(self.table, commit.version)}"
        return ForeignCommit(
            f"version {commit.version} of the table of topic {self.name} was written by {writer} "
            f"({info.get('operation', 'unknown operation')}) and holds {held}. The topic stands "
            "still, for only its broker may write there. To go on: keep that writer away, stop "
            f"the broker, move {path} and every later version out of the log, start the broker, "
            "and run `danube verify` on the topic"
        )

    # -- snapshots -------------------------------------------------------------------------

    def advance(self, snapshot: Snapshot, removed: dict[str, int] | None = None) -> Snapshot:
        """Apply whatever Delta commits came after a snapshot.

        Sound only while log clean-up cannot have removed one of them: see the committer's rule on
        the age of snapshots. ``removed`` collects what left the table, to when (ms).

        Raises:
            ForeignCommit, Corruption: see :meth:`step` and :meth:`read`.
        """
        while True:
            seen = self.clock.boottime_s()
            try:
                commit = self.read(snapshot.version + 1)
            except ObjectNotFound:
                return snapshot.seen_at(seen)
            snapshot = self.step(snapshot, commit)
            if removed is not None:
                _note_removed(removed, commit)

    def load(self) -> Loaded:
        """Read the newest state from the log alone.

        Raises:
            ObjectNotFound: there is no table.
            ForeignCommit: somebody else wrote to it.
            Corruption: Delta commits are missing or torn, or it is another topic's table.
        """
        problems: list[str] = []
        hint = hinted_version(self.store, self.table)
        if hint is not None:
            # Not the hinted key itself: a listing starts after what it is given.
            listing = self.listing(commit_key(self.table, hint)[: -len(".json")])
            loaded = self._replay(listing, [hint], problems)
            if loaded is not None:
                return loaded
        # Twice, because log clean-up may overtake the first.
        for _ in range(2):
            listing = self.listing()
            if not listing.commits and not listing.checkpoints:
                raise ObjectNotFound(f"topic {self.name} has no table at {self.uri}")
            problems.clear()
            loaded = self._replay(listing, [*reversed(listing.checkpoints), None], problems)
            if loaded is not None:
                return loaded
        raise Corruption(
            f"the table of topic {self.name} at {self.uri} cannot be read: {'; '.join(problems)}. "
            "Restore the missing files of its log from a backup"
        )

    def _replay(
        self, listing: LogListing, starts: Sequence[int | None], problems: list[str]
    ) -> Loaded | None:
        """From the first of ``starts`` that leads to the newest version; None if none does."""
        seen = self.clock.boottime_s()
        torn: list[int] = []
        for start in starts:
            try:
                loaded = self._from(start, listing)
            except TornCheckpoint as error:
                torn.append(start or 0)
                problems.append(str(error))
                LOG.warning("torn Delta checkpoint", topic=self.name, error=str(error))
            except _Missing as error:
                problems.append(str(error))
            else:
                loaded.torn = torn
                loaded.snapshot = self.advance(loaded.snapshot.seen_at(seen), loaded.removed)
                return loaded
        return None

    def _from(self, checkpoint: int | None, listing: LogListing) -> Loaded:
        """From one Delta checkpoint, or from version 0, through every Delta commit listed."""
        state = CheckpointState()
        if checkpoint is not None:
            state = read_checkpoint(self.store, self.table, checkpoint)
            check_definition(self.topic_id, state.metadata, state.protocol, self.uri)
        snapshot = self._base(-1 if checkpoint is None else checkpoint, state)
        loaded = Loaded(snapshot, checkpoint, removed=state.removed)
        for version in self._following(snapshot.version, listing):
            try:
                commit = self.read(version)
            except ObjectNotFound:
                raise _Missing(f"Delta commit {version} is missing") from None
            if version == 0:
                check_definition(self.topic_id, commit.metadata, commit.protocol, self.uri)
            loaded.snapshot = self.step(loaded.snapshot, commit)
            _note_removed(loaded.removed, commit)
        return loaded

    def _base(self, version: int, state: CheckpointState) -> Snapshot:
        empty = Snapshot(version - 1, 0.0, self.table, {}, {})
        if version < 0:
            return Snapshot(-1, 0.0, self.table, {}, {})
        try:
            return empty.apply(Commit(version, adds=state.adds, txns=state.txns))
        except NotOurs as error:
            raise ForeignCommit(
                f"the table of topic {self.name} at {self.uri} holds data of another writer: "
                f"{error}. Only its broker may write there: restore the table's log from before "
                "that, and keep the other writer away"
            ) from None

    def _following(self, version: int, listing: LogListing) -> Iterator[int]:
        later = [found for found in listing.commits if found > version]
        for expected, found in enumerate(later, version + 1):
            if found != expected:
                raise _Missing(f"Delta commit {expected} is missing")
            yield found
        newest = max(listing.checkpoints, default=-1)
        if version + len(later) < max(newest, 0):
            raise _Missing(f"Delta commits {version + len(later) + 1} to {newest} are missing")

    def drop_torn(self, loaded: Loaded) -> None:
        """Remove Delta checkpoints that cannot be read, and a hint that leads to none.

        Other readers would stop there; we have just shown that nothing depends on them.
        """
        keys = [checkpoint_key(self.table, version) for version in loaded.torn]
        if hinted_version(self.store, self.table) != loaded.checkpoint:
            keys.append(last_checkpoint_key(self.table))
        self.store.delete(keys)


class _Missing(Exception):
    """Delta commits are missing on this way to the newest version."""


def _note_removed(removed: dict[str, int], commit: Commit) -> None:
    for remove in commit.removes:
        removed[remove["path"]] = int(remove.get("deletionTimestamp") or 0)
    for add in commit.adds:
        removed.pop(str(add.get("path")), None)
