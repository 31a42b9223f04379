"""The state of a table at one version: live files and transactions. Immutable and pure.

Names of our transactions, per partition p: ``epoch/p`` (who may write), ``off/p`` (next offset to
roll), ``maint/p`` (counts compactions and retentions), ``start/p`` (log start offset), ``lost/p``
(how many lost ranges) and ``lost/p/i/from``, ``/to``, ``/kind``. Computable names, because no Delta
library lists transactions; transactions, because custom commit metadata does not survive log
clean-up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from danube.core.offsets import RangeSet
from danube.lake.actions import Commit, Txn, parse_add
from danube.lake.files import FileInfo, LostRange, lost_code, lost_kind

__all__ = ["FileInfo", "LostRange", "Snapshot", "is_our_transaction", "lost_transactions"]

_OURS: Final = re.compile(
    r"(?:epoch|off|maint|start|lost)/[0-9]+|lost/[0-9]+/[0-9]+/(?:from|to|kind)"
)


def is_our_transaction(app_id: str) -> bool:
    """Whether a transaction of this name is state of ours."""
    return _OURS.fullmatch(app_id) is not None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at ``version``.

    Attributes:
        version: of the newest Delta commit in it.
        read_at_boottime_s: when the log was last seen to end there (CLOCK_BOOTTIME).
        table: the table's key.
        files: per partition its live files by ascending offset.
        txn: every application transaction.
    """

    version: int
    read_at_boottime_s: float
    table: str
    files: Mapping[int, tuple[FileInfo, ...]]
    txn: Mapping[str, int]

    def epoch(self, partition: int) -> int:
        """The epoch of the last fence; 0 before the first."""
        return self.txn.get(f"epoch/{partition}", 0)

    def off(self, partition: int) -> int:
        """The rolled offset: everything below is in the table, recorded lost, or retired."""
        return self.txn.get(f"off/{partition}", 0)

    def start(self, partition: int) -> int:
        """The log start offset."""
        return self.txn.get(f"start/{partition}", 0)

    def maint(self, partition: int) -> int:
        """How many compactions and retentions there were."""
        return self.txn.get(f"maint/{partition}", 0)

    def lost(self, partition: int) -> tuple[LostRange, ...]:
        """The recorded lost ranges, by ascending offset."""
        found = []
        for index in range(self.txn.get(f"lost/{partition}", 0)):
            lead = f"lost/{partition}/{index}"
            start, end = self.txn[f"{lead}/from"], self.txn[f"{lead}/to"]
            found.append(LostRange(start, end, lost_kind(self.txn.get(f"{lead}/kind", 0))))
        return tuple(sorted(found))

    def lost_set(self, partition: int) -> RangeSet:
        """The recorded lost ranges as one set."""
        found = RangeSet()
        for item in self.lost(partition):
            found.add(item.start, item.end)
        return found

    def partitions(self) -> list[int]:
        """Every partition that has left a trace, ascending."""
        named = {int(name.split("/")[1]) for name in self.txn if is_our_transaction(name)}
        return sorted(named | self.files.keys())

    def partition_files(self, partition: int) -> tuple[FileInfo, ...]:
        """One partition's live files by ascending offset."""
        return self.files.get(partition, ())

    def file_at(self, partition: int, offset: int) -> FileInfo | None:
        """The file with ``offset`` in its range, if there is one."""
        files = self.partition_files(partition)
        at = bisect_right(files, offset, key=_start) - 1
        return files[at] if at >= 0 and offset < files[at].end else None

    def files_between(self, partition: int, start: int, end: int) -> tuple[FileInfo, ...]:
        """The files that hold any of [start, end), by ascending offset."""
        files = self.partition_files(partition)
        first = max(bisect_right(files, start, key=_start) - 1, 0)
        last = bisect_right(files, end - 1, key=_start) if end > start else first
        return tuple(file for file in files[first:last] if file.end > start)

    def all_files(self) -> Iterator[FileInfo]:
        """Every live file."""
        for partition in sorted(self.files):
            yield from self.files[partition]

    def seen_at(self, boottime_s: float) -> Snapshot:
        """The same state, known to be the newest at that time."""
        return replace(self, read_at_boottime_s=boottime_s)

    def apply(self, commit: Commit) -> Snapshot:
        """The state after the next Delta commit.

        Raises:
            NotOurs: it adds a file that we cannot have written.
        """
        if commit.version != self.version + 1:
            raise ValueError(f"version {commit.version} does not follow {self.version}")
        files = self.files
        if commit.adds or commit.removes:
            removed = {remove["path"] for remove in commit.removes}
            added = [parse_add(self.table, add) for add in commit.adds]
            files = _changed(files, removed, added)
        txn = {**self.txn, **commit.txns} if commit.txns else self.txn
        return replace(self, version=commit.version, files=files, txn=txn)


def _start(file: FileInfo) -> int:
    return file.start


def _changed(
    files: Mapping[int, tuple[FileInfo, ...]], removed: set[str], added: Iterable[FileInfo]
) -> dict[int, tuple[FileInfo, ...]]:
    result = dict(files)
    if removed:
        partitions = {int(path.partition("/")[0].removeprefix("partition=")) for path in removed}
        for partition in partitions:
            kept = (file for file in result.get(partition, ()) if file.path not in removed)
            result[partition] = tuple(kept)
            if not result[partition]:
                del result[partition]
    joining: dict[int, list[FileInfo]] = {}
    for file in added:
        joining.setdefault(file.partition, []).append(file)
    for partition, more in joining.items():
        before, more = result.get(partition, ()), sorted(more, key=_start)
        in_order = not before or before[-1].start < more[0].start
        result[partition] = (
            (*before, *more) if in_order else tuple(sorted((*before, *more), key=_start))
        )
    return result


def lost_transactions(
    snapshot: Snapshot, partition: int, lost: Iterable[LostRange], *, end: int | None = None
) -> list[Txn]:
    """The transactions that record what of ``lost`` is not recorded yet.

    Clipped to [the table's ``off``, ``end``): what is below ``off`` has its rows or its record.
    """
    known = snapshot.lost_set(partition)
    floor = snapshot.off(partition)
    count = snapshot.txn.get(f"lost/{partition}", 0)
    found: list[Txn] = []
    for item in sorted(lost):
        upto = item.end if end is None else min(item.end, end)
        for gap in tuple(known.gaps(max(item.start, floor), max(upto, floor))):
            lead = f"lost/{partition}/{count}"
            found.append(Txn(f"{lead}/from", gap.start))
            found.append(Txn(f"{lead}/to", gap.end))
            found.append(Txn(f"{lead}/kind", lost_code(item.kind)))
            known.add(gap.start, gap.end)
            count += 1
    if found:
        found.append(Txn(f"lost/{partition}", count))
    return found
