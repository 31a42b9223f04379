"""What one Delta commit of ours wants, and whether a table that has moved on still allows it.

The conflict table of the design, as state: ``epoch``, ``off`` and ``maint`` only ever grow, so "one
in between touched it" is "it is not what it was". Each intent is asked again after every Delta
commit that got in before it, and after every fresh snapshot.

| Delta commit | carries, per partition | void if one in between touched |
|---|---|---|
| fence | ``epoch`` = mine (+ lost ranges) | ``epoch`` >= mine |
| roll | same ``epoch``, ``off`` | ``epoch``, ``off`` (that partition is dropped) |
| retention | same ``epoch``, ``maint`` + 1, ``start`` | ``epoch``, ``maint``, or a file is gone |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from danube.core.errors import Corruption, FailedPrecondition, OwnershipLost, Unavailable
from danube.core.offsets import RangeSet
from danube.lake.actions import Action, Add, Remove, Txn
from danube.lake.files import FileInfo, LostRange
from danube.lake.snapshot import Snapshot, lost_transactions


class StaleEpoch(OwnershipLost):
    """The table's epoch is not below ours: raise counter and claim above ``found`` first."""

    def __init__(self, where: str, partition: int, found: int, mine: int) -> None:
        super().__init__(
            f"partition {partition} of {where} was fenced with epoch {found} and ours is {mine}; "
            f"raise the claim's epoch above {found} first, if the claim is still ours"
        )
        self.partition = partition
        self.found = found


class PlanVoid(FailedPrecondition):
    """A retention or compaction was planned on a table that has changed since: plan again."""


class Intent(Protocol):
    """One Delta commit to be made."""

    operation: str

    def check(self, snapshot: Snapshot) -> None:
        """Decide on a snapshot whether the intent still stands; may drop parts of itself.

        Raises:
            StaleEpoch, PlanVoid: it is void.
        """

    def actions(self, snapshot: Snapshot, now_us: int) -> list[Action]:
        """What to commit on top of a snapshot it was checked on; empty: nothing any more."""

    def shown(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot holds what was committed."""


@dataclass(slots=True)
class Fence:
    """Take partitions over: nobody with a lower epoch commits to them again.

    ``lost`` and ``off`` record offsets that will have no message. What a predecessor managed to
    roll before this lands is kept: both are clipped to the table's ``off`` of that moment.
    """

    where: str
    epochs: Mapping[int, int]
    lost: Mapping[int, Sequence[LostRange]]
    off: Mapping[int, int]
    operation: str = "FENCE"

    def check(self, snapshot: Snapshot) -> None:
        for partition, mine in self.epochs.items():
            found = snapshot.epoch(partition)
            if found >= mine:
                raise StaleEpoch(self.where, partition, found, mine)

    def actions(self, snapshot: Snapshot, now_us: int) -> list[Action]:
        found: list[Action] = []
        for partition, mine in sorted(self.epochs.items()):
            found.append(Txn(f"epoch/{partition}", mine))
            lost = self.lost.get(partition, ())
            found.extend(lost_transactions(snapshot, partition, lost))
            target = self.off.get(partition, 0)
            if target > snapshot.off(partition):
                explained = snapshot.lost_set(partition)
                for item in lost:
                    explained.add(item.start, item.end)
                _check_explained(self.where, snapshot, partition, explained, target)
                found.append(Txn(f"off/{partition}", target))
        return found

    def shown(self, snapshot: Snapshot) -> bool:
        return all(snapshot.epoch(p) == mine for p, mine in self.epochs.items())


@dataclass(frozen=True, slots=True)
class RolledPart:
    """One partition's share of a roll, its files written and durable.

    The files and lost ranges tile [``start``, ``end``), ``start`` being the table's ``off``.
    """

    partition: int
    epoch: int
    start: int
    end: int
    files: Sequence[FileInfo]
    lost: Sequence[LostRange]


@dataclass(slots=True)
class Roll:
    """Add files and move ``off``, for as many partitions as still allow it.

    ``expired`` tells whether the files have waited for longer than upkeep surely keeps them.
    """

    where: str
    parts: list[RolledPart]
    expired: Callable[[], bool] = lambda: False
    dropped: dict[int, str] = field(default_factory=dict)
    operation: str = "WRITE"

    def check(self, snapshot: Snapshot) -> None:
        if self.expired():
            raise Unavailable(
                f"files for {self.where} waited so long for their Delta commit that they may "
                "have been cleaned up as orphans; nothing was committed, roll again"
            )
        kept: list[RolledPart] = []
        for part in self.parts:
            reason = roll_conflict(snapshot, part.partition, part.epoch, part.start)
            if reason is None:
                kept.append(part)
            else:
                self.dropped[part.partition] = reason
        self.parts = kept

    def actions(self, snapshot: Snapshot, now_us: int) -> list[Action]:
        found: list[Action] = []
        for part in self.parts:
            explained = snapshot.lost_set(part.partition)
            for file in part.files:
                explained.add(file.start, file.end)
            for lost in part.lost:
                explained.add(lost.start, lost.end)
            _check_explained(self.where, snapshot, part.partition, explained, part.end)
            found.extend(Add(file, now_us // 1000) for file in part.files)
            found.extend(lost_transactions(snapshot, part.partition, part.lost, end=part.end))
            found.append(Txn(f"epoch/{part.partition}", part.epoch))
            found.append(Txn(f"off/{part.partition}", part.end))
        return found

    def shown(self, snapshot: Snapshot) -> bool:
        return all(
            snapshot.epoch(part.partition) == part.epoch
            and snapshot.off(part.partition) == part.end
            for part in self.parts
        )


def roll_conflict(snapshot: Snapshot, partition: int, epoch: int, start: int) -> str | None:
    """Why a roll from ``start`` under ``epoch`` is void for a partition; None if it is not."""
    found = snapshot.epoch(partition)
    if found != epoch:
        return f"the table was fenced with epoch {found}, ours is {epoch}"
    off = snapshot.off(partition)
    if off != start:
        return f"the table's off moved from {start} to {off}"
    return None


@dataclass(slots=True)
class Retire:
    """Retention: whole files leave one partition, and its log starts at ``new_start``."""

    where: str
    partition: int
    epoch: int
    maint: int
    files: Sequence[FileInfo]
    new_start: int
    operation: str = "DELETE"

    def check(self, snapshot: Snapshot) -> None:
        found = snapshot.epoch(self.partition)
        if found != self.epoch:
            raise StaleEpoch(self.where, self.partition, found, self.epoch)
        if snapshot.maint(self.partition) != self.maint:
            raise self._void("a compaction or retention came first")
        below = {
            file.path
            for file in snapshot.partition_files(self.partition)
            if file.start < self.new_start
        }
        if below != {file.path for file in self.files}:
            # Too few, too many, or one that is no longer live.
            raise self._void(f"the live files below {self.new_start} are not those it removes")
        if not snapshot.start(self.partition) < self.new_start <= snapshot.off(self.partition):
            raise self._void(f"offset {self.new_start} is not between log start and rolled offset")

    def _void(self, why: str) -> PlanVoid:
        return PlanVoid(
            f"retention of partition {self.partition} of {self.where} is void: {why}; plan again"
        )

    def actions(self, snapshot: Snapshot, now_us: int) -> list[Action]:
        return [
            *(Remove(file, now_us // 1000) for file in self.files),
            Txn(f"epoch/{self.partition}", self.epoch),
            Txn(f"maint/{self.partition}", self.maint + 1),
            Txn(f"start/{self.partition}", self.new_start),
        ]

    def shown(self, snapshot: Snapshot) -> bool:
        return (
            snapshot.epoch(self.partition) == self.epoch
            and snapshot.maint(self.partition) == self.maint + 1
            and snapshot.start(self.partition) == self.new_start
        )


def _check_explained(
    where: str, snapshot: Snapshot, partition: int, explained: RangeSet, end: int
) -> None:
    """No silent gap: everything that ``off`` passes is in a file or a recorded lost range."""
    gap = next(explained.gaps(snapshot.off(partition), end), None)
    if gap is not None:
        raise Corruption(
            f"offsets {gap} of partition {partition} of {where} are in no batch and no lost "
            "range, and would be skipped in silence; nothing was committed. Run `danube verify` "
            "on the topic, and `danube journal dump` to look for them"
        )
