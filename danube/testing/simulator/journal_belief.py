"""What a user of a journal believes, and what must hold after each recovery.

Every entry gets a serial number when it is submitted, and its body can be told from all others.
Believed are: what was acknowledged, what was submitted and not answered, what was forgotten, what
a journal checkpoint has summed up, and what a recovery did not bring back, which must then stay
away for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from danube.journal.envelope import FRAMES, Entry, EntryKind, Position
from danube.journal.recovery import RecoveredEntry


class Violation(AssertionError):
    """Something that must hold did not."""


@dataclass(slots=True)
class Written:
    """One submitted entry."""

    serial: int
    entry: Entry
    position: Position | None = None
    forgotten: bool = False

    @property
    def is_frame(self) -> bool:
        """Whether it keeps its segment."""
        return self.entry.kind in FRAMES


@dataclass(slots=True)
class JournalBelief:
    """Everything that the workload knows about one journal."""

    written: dict[int, Written] = field(default_factory=dict)
    """Submitted entries that may be in the journal, by serial, in order."""
    gone: set[int] = field(default_factory=set)
    """Serials that a recovery did not bring back."""
    summed_up: int = -1
    """State below this serial is in the last synced journal checkpoint."""
    ending: set[int] = field(default_factory=set)
    """The same of checkpoints whose END was submitted and not answered."""
    next_serial: int = 0

    # -- what happens ----------------------------------------------------------------------

    def submitted(self, entries: Sequence[Entry]) -> list[Written]:
        """Entries were handed over."""
        items = [Written(self.next_serial + at, entry) for at, entry in enumerate(entries)]
        self.next_serial += len(items)
        self.written.update((item.serial, item) for item in items)
        return items

    def forgettable(self) -> list[Written]:
        """Acknowledged frames that were not forgotten."""
        return [w for w in self.written.values() if w.is_frame and w.position and not w.forgotten]

    def checkpointed(self, summed_up: int) -> None:
        """A journal checkpoint is complete: older state may be missing from now on."""
        self.summed_up = summed_up
        self.ending.discard(summed_up)
        self._drop_old()

    def _drop_old(self) -> None:
        for serial in list(self.written):
            item = self.written[serial]
            if not item.is_frame and serial < self.summed_up:
                del self.written[serial]

    # -- what must hold --------------------------------------------------------------------

    def recovered(self, found: Sequence[RecoveredEntry]) -> None:
        """Check a recovery against what is believed, and believe it from now on."""
        serials = self._known(found)
        self._in_order(found, serials)
        self._complete(found, serials)
        self._without_holes(serials)
        for serial, item in list(self.written.items()):
            if serial in serials:
                item.position = serials[serial].position
                continue
            del self.written[serial]
            if item.position is None and not item.forgotten:
                self.gone.add(serial)
        self.ending.clear()

    def _known(self, found: Sequence[RecoveredEntry]) -> dict[int, RecoveredEntry]:
        """Each entry is one that was submitted, unchanged, and there once."""
        serials: dict[int, RecoveredEntry] = {}
        for entry in found:
            if entry.kind is EntryKind.CHECKPOINT_STATE:
                self._sum(json.loads(bytes(entry.body))["below"])
                continue
            if entry.damaged:
                raise Violation(f"an undamaged disk gave a damaged entry at {entry.position}")
            serial = entry.epoch
            if serial in serials:
                raise Violation(f"entry {serial} is there twice")
            if serial in self.gone:
                raise Violation(f"entry {serial} came back after a recovery without it")
            serials[serial] = entry
            self._same(serial, entry)
        return serials

    def _sum(self, below: int) -> None:
        if below != self.summed_up and below not in self.ending:
            raise Violation(f"a journal checkpoint of state below {below} was never completed")
        self.summed_up = below
        self._drop_old()

    def _same(self, serial: int, entry: RecoveredEntry) -> None:
        item = self.written.get(serial)
        if item is None:
            if serial >= self.summed_up and entry.kind not in FRAMES:
                raise Violation(f"entry {serial} was never submitted")
            return
        wrote = item.entry
        same = (
            (wrote.kind, wrote.topic_id, wrote.partition, wrote.base_offset, wrote.append_time_us)
            == (
                entry.kind,
                entry.topic_id,
                entry.partition,
                entry.base_offset,
                entry.append_time_us,
            )
        ) and (wrote.header, wrote.extra) == (entry.header, entry.extra)
        if not same or bytes(wrote.body) != bytes(entry.body):
            raise Violation(f"entry {serial} came back changed, or a half of it")

    @staticmethod
    def _in_order(found: Sequence[RecoveredEntry], serials: dict[int, RecoveredEntry]) -> None:
        order = [e.epoch for e in found if e.kind is not EntryKind.CHECKPOINT_STATE]
        if order != sorted(serials):
            raise Violation(f"entries came back out of order: {order}")

    def _complete(
        self, found: Sequence[RecoveredEntry], serials: dict[int, RecoveredEntry]
    ) -> None:
        """Everything acknowledged is there, unless forgotten or summed up."""
        for serial, item in self.written.items():
            if item.position is None or item.forgotten or serial in serials:
                continue
            raise Violation(f"acknowledged entry {serial} ({item.entry.kind.name}) is lost")
        if self.summed_up >= 0 and not any(e.kind is EntryKind.CHECKPOINT_STATE for e in found):
            raise Violation("the last complete journal checkpoint is lost")

    def _without_holes(self, serials: dict[int, RecoveredEntry]) -> None:
        """What was not acknowledged comes back as a beginning, without holes."""
        open_serials = [s for s, item in self.written.items() if item.position is None]
        back = [serial in serials for serial in open_serials]
        if back != sorted(back, reverse=True):
            raise Violation(f"unacknowledged entries came back with holes: {open_serials} {back}")
