"""What we do to a journal: random work, random deaths of process and machine, random recoveries.

One thread, one seed. The process may die in any call to the file system, during recovery too; the
machine may die at any time and loses unsynced sectors in any order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from danube.core.errors import DanubeError, DiskFull, ResourceExhausted, StorageFailed
from danube.core.frames import HEADER_BYTES
from danube.journal.envelope import Entry, EntryKind, Position
from danube.journal.journal import Journal
from danube.journal.recovery import RecoveredEntry
from danube.journal.settings import JournalSettings
from danube.testing.simdisk import SimDisk, SimulatedCrash
from danube.testing.simulator.journal_belief import JournalBelief, Violation, Written
from danube.testing.simulator.sources import SimClock, SimIds

DIRECTORY: Final = Path("journal")
SETTINGS: Final = JournalSettings(
    segment_bytes=64 * 1024,
    flush_bytes=12 * 1024,
    queue_bytes=256 * 1024,
    disk_reserve_bytes=3 * 64 * 1024,
    spare_segments=2,
    checkpoint_segments=2,
    checkpoint_age_s=5.0,
)
CAPACITY_BYTES: Final = 40 * 64 * 1024
Log = Callable[[str], None]


class JournalRun:
    """One simulated life of a journal, over many processes."""

    def __init__(self, seed: int, log: Log = lambda _: None) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(self.rng.getrandbits(32), capacity_bytes=CAPACITY_BYTES)
        self.clock = SimClock()
        self.belief = JournalBelief()
        self.log = log
        self.journal: Journal | None = None
        self._ids = SimIds(self.rng)
        self._offsets: dict[int, int] = {}

    def run(self, steps: int) -> None:
        """Do random things.

        Raises:
            Violation: something that must hold did not.
        """
        for _ in range(steps):
            if self.journal is None:
                self._restart()
            else:
                self._act(self.journal)
        while self.journal is None:
            self._restart()
        self._read_everything(self.journal)

    # -- processes -------------------------------------------------------------------------

    def _restart(self) -> None:
        """Start a process; it may die during recovery."""
        if self.rng.random() < 0.3:
            self.disk.faults.crash_in = self.rng.randint(0, 6)
        try:
            journal, found = self._open()
            again = self.rng.random() < 0.3
            self.belief.recovered(found)
            self.log(f"recovered {len(found)} entries")
            if again:
                # Recovered twice gives the same, wherever the machine died in between.
                self._die("right after recovery")
                journal, second = self._open()
                self.belief.recovered(second)
            journal.start()
        except SimulatedCrash as death:
            self._die(f"during recovery: {death}")
            return
        except DiskFull:
            # The disk is full, of others' files or of entries nobody forgot: an operator acts.
            self.log("no space to recover")
            self.disk.taken_bytes = 0
            self.disk.capacity_bytes += CAPACITY_BYTES
            self.disk.kill()
            return
        self.journal = journal

    def _open(self) -> tuple[Journal, list[RecoveredEntry]]:
        journal = Journal.open(
            DIRECTORY,
            SETTINGS,
            broker_id="sim",
            files=self.disk.files(),
            clock=self.clock,
            ids=self._ids,
            threaded=False,
        )
        journal.on_failure = lambda _: None
        return journal, list(journal.recover())

    def _die(self, why: str) -> None:
        if self.rng.random() < 0.5:
            self.log(f"the process dies {why}")
            self.disk.kill()
        else:
            self.log(f"the machine dies {why}")
            self.disk.crash()
        self.journal = None

    # -- work ------------------------------------------------------------------------------

    def _act(self, journal: Journal) -> None:
        actions: list[tuple[int, Callable[[Journal], None]]] = [
            (40, self._submit),
            (25, self._pump),
            (12, self._forget),
            (6, self._read_one),
            (4, self._checkpoint),
            (3, self._fail_sync),
            (2, self._fill_disk),
            (4, self._die_soon),
            (2, lambda _: self._die("at rest")),
            (1, self._close),
        ]
        weights = [weight for weight, _ in actions]
        (chosen,) = self.rng.choices([action for _, action in actions], weights)
        self.clock.advance(self.rng.choice([0.001, 0.01, 1.0]))
        try:
            chosen(journal)
        except SimulatedCrash as death:
            self._die(str(death))
        except StorageFailed as failure:
            self._die(f"because its disk failed: {failure}")

    def _submit(self, journal: Journal) -> None:
        entries = [self._entry() for _ in range(self.rng.choice([1, 1, 1, 2, 5, 30]))]
        items = self.belief.submitted(entries)
        for item in items:
            item.entry.epoch = item.serial
        try:
            journal.submit(entries, lambda outcome: self._answered(items, outcome))
        except (DiskFull, ResourceExhausted) as error:
            self.log(f"refused: {type(error).__name__}")
            for item in items:
                del self.belief.written[item.serial]

    def _entry(self) -> Entry:
        rng = self.rng
        kind = rng.choice(
            [EntryKind.MESSAGES, EntryKind.MESSAGES, EntryKind.STAGED, EntryKind.STATE]
        )
        size = rng.choice([0, 1, 100, 500, 700, 5_000, 20_000])
        body = rng.randbytes(size)
        if kind is EntryKind.STATE:
            body = json.dumps({"t": "x", "v": body[:500].hex()}).encode()
            return Entry(kind, body, partition=rng.randrange(3), essential=True)
        partition = rng.randrange(3)
        base = 0
        if kind is EntryKind.MESSAGES:
            base = self._offsets.get(partition, 0)
            self._offsets[partition] = base + rng.randint(1, 10)
        return Entry(
            kind,
            body,
            header=fake_header(body, rng),
            extra=b'{"set":"%x"}' % rng.getrandbits(40) if kind is EntryKind.STAGED else b"",
            topic_id=bytes([7]) * 16,
            partition=partition,
            base_offset=base,
            append_time_us=self.clock.now_us(),
        )

    def _answered(
        self, items: Sequence[Written], outcome: Sequence[Position] | BaseException
    ) -> None:
        if isinstance(outcome, BaseException):
            return
        for item, position in zip(items, outcome, strict=True):
            item.position = position

    def _pump(self, journal: Journal) -> None:
        for _ in range(self.rng.choice([1, 1, 3, 20])):
            if not journal.pump():
                break

    def _forget(self, journal: Journal) -> None:
        frames = self.belief.forgettable()
        count = self.rng.randint(0, len(frames))
        chosen = frames[:count] if self.rng.random() < 0.7 else self.rng.sample(frames, count)
        for item in chosen:
            item.forgotten = True
        journal.forget([item.position for item in chosen if item.position])

    def _read_one(self, journal: Journal) -> None:
        frames = self.belief.forgettable()
        if frames:
            read_back(journal, self.rng.choice(frames))

    def _read_everything(self, journal: Journal) -> None:
        for item in self.belief.forgettable():
            read_back(journal, item)

    def _checkpoint(self, journal: Journal) -> None:
        """Sum up all state submitted so far; appends go on in between."""
        below = self.belief.next_serial
        body = json.dumps({"t": "sum", "below": below}).encode()
        state = Entry(EntryKind.CHECKPOINT_STATE, body, essential=True)
        failed: list[BaseException] = []

        def ended(outcome: Sequence[Position] | BaseException) -> None:
            if isinstance(outcome, BaseException):
                failed.append(outcome)
            else:
                self.belief.checkpointed(below)

        journal.begin_checkpoint()
        if self.rng.random() < 0.5:
            self._submit(journal)
        journal.submit([state], lambda _: None)
        if self.rng.random() < 0.5:
            self._submit(journal)
        if self.rng.random() < 0.2:
            return
        self.belief.ending.add(below)
        journal.end_checkpoint(ended)

    # -- faults ----------------------------------------------------------------------------

    def _fail_sync(self, journal: Journal) -> None:
        if self.rng.random() < 0.5:
            self.disk.faults.fail_sync_in = self.rng.randint(0, 3)
        else:
            self.disk.faults.short_write_in = self.rng.randint(0, 3)

    def _fill_disk(self, journal: Journal) -> None:
        free = self.disk.free_bytes() + self.disk.taken_bytes
        self.disk.taken_bytes = self.rng.choice([0, 0, max(free - self.rng.randint(0, 200_000), 0)])

    def _die_soon(self, journal: Journal) -> None:
        self.disk.faults.crash_in = self.rng.randint(0, 8)

    def _close(self, journal: Journal) -> None:
        journal.close()
        self.journal = None
        self.disk.kill()


def fake_header(body: bytes, rng: random.Random) -> bytes:
    """A frame header of which only the body's crc is right: the journal looks at nothing else."""
    from danube.core.checksum import crc32c

    header = bytearray(rng.randbytes(HEADER_BYTES))
    header[-14:-10] = crc32c(body).to_bytes(4, "little")
    return bytes(header)


def read_back(journal: Journal, item: Written) -> None:
    """An acknowledged entry that was not forgotten can be read, unchanged."""
    assert item.position is not None
    try:
        stored = journal.read(item.position)
    except DanubeError as error:
        raise Violation(f"entry {item.serial} cannot be read: {error}") from error
    wrote = item.entry
    if (stored.header, stored.extra, bytes(stored.body)) != (wrote.header, wrote.extra, wrote.body):
        raise Violation(f"entry {item.serial} is read back changed")
