"""Random histories: our reading of the log, deltalake's, and what must be in the table agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

from deltalake import DeltaTable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from danube.lake.settings import LakeSettings
from danube.lake.table import LostRange, TopicTable
from danube.objects.faulty import Fault, FaultyObjects
from danube.objects.local import LocalObjects
from danube.upkeep.cleaning import clean_log
from danube.upkeep.verify import layout_problems
from tests.unit.lake.lake_samples import HandClock, newest, offsets_in, open_table, part

PARTITIONS = st.integers(0, 1)
NAMES = ("epoch", "off", "start", "maint", "lost")


class TableHistory(RuleBasedStateMachine):
    """One table under fences, rolls, losses, retention, lost replies, checkpoints and clean-up."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = HandClock()
        self.lose_next = False
        self.epoch = 0
        self.expected: dict[int, list[int]] = {0: [], 1: []}
        self.table: TopicTable

    @initialize()
    def create(self) -> None:
        self.inner = LocalObjects(Path(self.directory.name))
        self.store = FaultyObjects(self.inner, self._plan)
        self._open()
        self.take_over(None)

    def _plan(self, operation: str, key: str) -> Fault | None:
        if self.lose_next and operation == "create" and key.endswith(".json"):
            self.lose_next = False
            return Fault.LOST_REPLY
        return None

    def _open(self) -> None:
        self.table = open_table(
            self.store,
            clock=self.clock,
            seed=self.epoch,
            settings=LakeSettings(log_retention_hours=1),
        )

    @rule(lost=st.none() | st.integers(1, 30))
    def take_over(self, lost: int | None) -> None:
        """A restart: another broker fences, and may find offsets that nobody can prove."""
        self.epoch += 1
        self._open()
        losses: dict[int, list[LostRange]] = {}
        offs: dict[int, int] = {}
        if lost is not None:
            off = self.table.snapshot.off(0)
            losses, offs = {0: [LostRange(off, off + lost, "unproved")]}, {0: off + lost}
        self.table.fence({0: self.epoch, 1: self.epoch}, losses, offs)

    @rule(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=2), hole=st.booleans())
    def roll(self, sizes: list[int], hole: bool) -> None:
        parts = []
        for partition, size in enumerate(sizes):
            start = self.table.snapshot.off(partition)
            end = start + size + 10
            lost = [LostRange(start + 3, start + 8, "quarantined")] if hole else []
            parts.append(part(start, end, partition=partition, epoch=self.epoch, lost=lost, step=9))
            gone = set(range(start + 3, start + 8)) if hole else set()
            self.expected[partition] += [x for x in range(start, end) if x not in gone]
        result = self.table.roll(parts)
        assert result.dropped == {}
        assert result.rolled == {item.partition: item.end for item in parts}

    @rule(partition=PARTITIONS, count=st.integers(1, 3))
    def retire(self, partition: int, count: int) -> None:
        snapshot = self.table.snapshot
        going = snapshot.partition_files(partition)[:count]
        if going:
            start = going[-1].end
            self.table.remove(partition, self.epoch, going, start, maint=snapshot.maint(partition))
            kept = [offset for offset in self.expected[partition] if offset >= start]
            self.expected[partition] = kept

    @rule()
    def lose_the_next_reply(self) -> None:
        self.lose_next = True

    @rule()
    def checkpoint(self) -> None:
        self.table.checkpoint()

    @precondition(lambda self: self.table.snapshot.version > 3)
    @rule()
    def clean_up(self) -> None:
        self.clock.forward(2 * 3600)
        # The clock of the directory is the machine's: everything is older than "in two hours".
        clean_log(self.table, 2**62)

    @invariant()
    def our_two_ways_of_reading_agree(self) -> None:
        read, held = newest(self.inner), self.table.snapshot
        assert (read.version, read.files, read.txn) == (held.version, held.files, held.txn)

    @invariant()
    def deltalake_reads_the_same(self) -> None:
        held = self.table.snapshot
        theirs = DeltaTable(self.table.uri)
        assert theirs.version() == held.version
        ours = {f"{self.inner.path(file.key)}" for file in held.all_files()}
        assert {uri.removeprefix("file://") for uri in theirs.file_uris()} == ours
        for partition in (0, 1):
            for name in NAMES:
                key = f"{name}/{partition}"
                assert theirs.transaction_version(key) == held.txn.get(key)

    @invariant()
    def every_offset_is_there_once(self) -> None:
        for partition, expected in self.expected.items():
            assert layout_problems(self.table.snapshot, partition) == []
            assert offsets_in(self.inner, self.table.snapshot, partition) == expected

    def teardown(self) -> None:
        self.directory.cleanup()


TestTableHistory = TableHistory.TestCase
TestTableHistory.settings = settings(max_examples=12, stateful_step_count=12)
