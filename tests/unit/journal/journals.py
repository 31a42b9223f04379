"""A small journal on a simulated disk, and the entries that tests put into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danube.core.batch import message_records
from danube.core.frames import Frame, encode_frame
from danube.journal.envelope import Entry, EntryKind, Position
from danube.journal.journal import Journal
from danube.journal.layout import BLOCK_BYTES, segment_name
from danube.journal.recovery import RecoveredEntry
from danube.journal.settings import JournalSettings
from danube.testing.simdisk import SimDisk
from danube.testing.simulator.sources import SimClock

DIRECTORY = Path("journal")
TOPIC = bytes(range(16))
SETTINGS = JournalSettings(
    segment_bytes=64 * 1024, flush_bytes=16 * 1024, disk_reserve_bytes=0, checkpoint_segments=3
)


def frame(text: str, count: int = 1, *, partition: int = 0) -> Frame:
    return encode_frame(
        message_records([text.encode()] * count, now_us=1_000, producer="p"),
        topic_id=TOPIC,
        partition=partition,
        producer_id=1,
        producer_epoch=1,
        first_sequence=0,
    )


def messages(text: str, base_offset: int, *, partition: int = 0) -> Entry:
    made = frame(text, partition=partition)
    return Entry(
        EntryKind.MESSAGES,
        made.body,
        header=made.header_bytes,
        topic_id=TOPIC,
        partition=partition,
        epoch=1,
        base_offset=base_offset,
        append_time_us=5_000 + base_offset,
    )


def staged(text: str, set_id: str) -> Entry:
    made = frame(text)
    label = b'{"set":"%s"}' % set_id.encode()
    return Entry(EntryKind.STAGED, made.body, header=made.header_bytes, extra=label, topic_id=TOPIC)


def state(text: str, kind: EntryKind = EntryKind.STATE) -> Entry:
    return Entry(kind, b'{"t":"%s"}' % text.encode(), topic_id=TOPIC, essential=True)


@dataclass
class Answer:
    """What a submission was answered."""

    outcomes: list[Sequence[Position] | BaseException] = field(default_factory=list)

    def __call__(self, outcome: Sequence[Position] | BaseException) -> None:
        self.outcomes.append(outcome)

    @property
    def is_open(self) -> bool:
        return not self.outcomes

    @property
    def positions(self) -> Sequence[Position]:
        (outcome,) = self.outcomes
        assert not isinstance(outcome, BaseException), outcome
        return outcome

    @property
    def error(self) -> BaseException:
        (outcome,) = self.outcomes
        assert isinstance(outcome, BaseException)
        return outcome


class Bench:
    """One simulated disk and the journals that are opened on it, one after another."""

    def __init__(self, settings: JournalSettings = SETTINGS, seed: int = 0) -> None:
        self.disk = SimDisk(seed)
        self.clock = SimClock()
        self.settings = settings
        self.failures: list[BaseException] = []
        self.journal: Journal

    def open(self, broker_id: str = "broker", **settings: Any) -> list[RecoveredEntry]:
        """Start a process; returns what it recovered."""
        self.journal = Journal.open(
            DIRECTORY,
            self.settings.model_copy(update=settings),
            broker_id=broker_id,
            files=self.disk.files(),
            clock=self.clock,
            threaded=False,
        )
        self.journal.on_failure = self.failures.append
        try:
            found = list(self.journal.recover())
        except BaseException:
            self.journal.close()
            raise
        self.journal.start()
        return found

    def restart(self) -> list[RecoveredEntry]:
        """The process is killed and started again."""
        self.disk.kill()
        return self.open()

    def crash(self, keep: float = 0.0) -> list[RecoveredEntry]:
        """The machine crashes and comes back; ``keep``: chance of an unsynced sector."""
        self.disk.crash(keep=keep)
        return self.open()

    def submit(self, *entries: Entry) -> Answer:
        answer = Answer()
        self.journal.submit(entries, answer)
        return answer

    def write(self, *entries: Entry) -> Sequence[Position]:
        """Write entries in one flush and wait for them."""
        answer = self.submit(*entries)
        self.journal.pump()
        return answer.positions

    def drain(self) -> None:
        while self.journal.pump():
            pass

    def checkpoint(self, *entries: Entry) -> Position:
        """Write a journal checkpoint."""
        self.journal.begin_checkpoint()
        if entries:
            self.submit(*entries)
        answer = Answer()
        self.journal.end_checkpoint(answer)
        self.drain()
        return answer.positions[0]

    def segments(self) -> list[int]:
        """Use ids of the segment files, spare ones too."""
        names = self.disk.names(DIRECTORY)
        return [int(name.split(".")[0]) for name in names if name.endswith(".segment")]

    def path(self, use_id: int) -> Path:
        return DIRECTORY / segment_name(use_id)

    def flip(self, use_id: int, byte: int) -> None:
        """Flip a bit of a byte in a segment."""
        self.disk.flip(self.path(use_id), byte * 8 + 3)


def texts(found: Sequence[RecoveredEntry]) -> list[str]:
    """What recovered entries say, frames by their first message."""
    said = []
    for entry in found:
        if entry.kind in (EntryKind.MESSAGES, EntryKind.STAGED):
            said.append(f"{entry.kind.name.lower()} {value_of(entry)}")
        else:
            said.append(bytes(entry.body).decode().split('"')[3])
    return said


def value_of(entry: Any) -> str:
    from danube.core.frames import decode_frame, read_stored

    records = decode_frame(read_stored(entry.header, entry.body))
    value = records.column("value")[0].as_py()
    assert isinstance(value, bytes)
    return value.decode()


def blocks(count: int) -> int:
    return count * BLOCK_BYTES
