"""The words that a sink's coordinator and the owners of partitions speak with each other."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from danube.core.errors import FailedPrecondition, InvalidRequest
from danube.core.names import PartitionId
from danube.core.stores import Compare
from danube.metadata.catalog import LostPart

MAX_PARTICIPANTS: Final = 4_096
"""Partitions that one batch may write to: the decision compares the claim of each."""

MAX_SETS: Final = 200_000
"""Staged sets of one batch."""


class BatchAborted(FailedPrecondition):
    """The batch's commit id was aborted and its staged sets are dropped: run the batch again."""


class Resolution(enum.Enum):
    """What became of a commit id."""

    DECIDED = "decided"
    ABORTED = "aborted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class SinkLabel:
    """Which batch of which sink a commit id is for."""

    query_id: str
    sink_name: str
    batch_id: int
    run_id: str

    def to_fields(self) -> dict[str, Any]:
        """JSON form for the journal."""
        return {
            "query": self.query_id,
            "sink": self.sink_name,
            "batch": self.batch_id,
            "run": self.run_id,
        }


@dataclass(frozen=True, slots=True)
class SetRef:
    """A staged set and the partition that holds it."""

    set_id: str
    topic: str
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What a driver asks to commit, or to abort: a batch and its staged sets, none if it is empty.

    ``streaming`` False: a batch write, whose record goes after a week.
    """

    query_id: str
    sink_name: str
    batch_id: int
    run_id: str
    sets: tuple[SetRef, ...] = ()
    streaming: bool = True

    @property
    def label(self) -> SinkLabel:
        """The batch."""
        return SinkLabel(self.query_id, self.sink_name, self.batch_id, self.run_id)

    def by_partition(self) -> dict[PartitionId, list[SetRef]]:
        """The sets of each partition, in the order of the request."""
        found: dict[PartitionId, list[SetRef]] = {}
        for item in self.sets:
            found.setdefault(item.partition, []).append(item)
        return found

    def check(self) -> None:
        """Raise InvalidRequest for a request that cannot be."""
        if self.batch_id < 0 or not self.run_id:
            raise InvalidRequest("a sink's batch has a batch id from 0 on and a run id")
        if len({item.set_id for item in self.sets}) != len(self.sets):
            raise InvalidRequest("a staged set is named twice in one batch")
        if len(self.sets) > MAX_SETS or len(self.by_partition()) > MAX_PARTICIPANTS:
            raise InvalidRequest(
                f"batch {self.batch_id} has {len(self.sets)} staged sets in "
                f"{len(self.by_partition())} partitions; at most {MAX_SETS} in {MAX_PARTICIPANTS} "
                "can be committed at once: repartition the data into fewer tasks"
            )


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """A decided and finished batch.

    ``already``: it was decided before. ``lost``: parts that could not be made visible because
    their staged bodies went with a disk or their topic was deleted.
    """

    already: bool
    commit_id: str
    lost: tuple[LostPart, ...]


def commit_id_of(request: CommitRequest) -> str:
    """The commit id of a request: 32 hex digits, the same for the same staged sets.

    Set ids are random and used once, so this is as unique as a random number, and a driver that
    asks again (its first call may still be running, here or at another broker) means the same
    commit.
    """
    digest = hashlib.sha256()
    for text in (request.query_id, request.sink_name, str(request.batch_id), request.run_id):
        digest.update(f"{len(text.encode())}:{text}".encode())
    for item in sorted(f"{item.partition}/{item.set_id}" for item in request.sets):
        digest.update(f"{len(item.encode())}:{item}".encode())
    return digest.hexdigest()[:32]


class Owner(Protocol):
    """The owner of one partition, as the coordinator sees it.

    Each call may raise Unavailable or OwnershipLost (it is asked again, after a new look for the
    owner), and NotFound when the topic is gone.
    """

    async def pin(self, commit_id: str, label: SinkLabel, sets: Sequence[str]) -> Sequence[Compare]:
        """Journal that ``commit_id`` holds these sets; idempotent, durable at the topic's level.

        Returns what the decision must compare: the claim under which the pin was written.
        Raises FailedPrecondition when a set is not there, or is held by another commit id.
        """

    async def finish(self, commit_id: str) -> Sequence[LostPart]:
        """Append the sink commit that gives the pinned sets their offsets; idempotent, durable.

        Returns the part that this owner provably cannot hold any more, if so.
        """

    async def unpin(self, commit_id: str) -> None:
        """Drop the sets of an aborted commit id; nothing if it holds none."""

    async def drop(self, sets: Sequence[str]) -> None:
        """Drop staged sets, except those that a pin holds."""
