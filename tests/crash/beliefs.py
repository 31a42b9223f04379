"""What must hold, whatever was killed when: everything the load has seen is told here."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from danube.core.offsets import OffsetRange, RangeSet


class PromiseBroken(AssertionError):
    """An invariant does not hold."""


def hold(condition: bool, what: str) -> None:
    """Raise PromiseBroken unless ``condition``."""
    if not condition:
        raise PromiseBroken(what)


@dataclass(slots=True)
class Acks:
    """What one subscription has acknowledged and seen on one partition."""

    answered: RangeSet = field(default_factory=RangeSet)
    seen: RangeSet = field(default_factory=RangeSet)


class Beliefs:
    """Everything observed on one topic, by partition and offset."""

    def __init__(self) -> None:
        self.values: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.place: dict[bytes, tuple[int, int]] = {}
        self.promised: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.committed: set[bytes] = set()
        self.never: set[bytes] = set()
        self.subscriptions: dict[tuple[str, int], Acks] = defaultdict(Acks)
        self.checked: dict[int, int] = defaultdict(int)
        self.observations = 0

    # -- told by the load ------------------------------------------------------------------

    def saw(self, partition: int, offset: int, value: bytes) -> None:
        """Somebody has read, or was told, that ``value`` lies there."""
        self.observations += 1
        known = self.values[partition].setdefault(offset, value)
        hold(known == value, f"offset {offset} of {partition} was {known!r} and is {value!r}")
        place = self.place.setdefault(value, (partition, offset))
        hold(place == (partition, offset), f"{value!r} is at {place} and at {(partition, offset)}")
        hold(value not in self.never, f"{value!r} was never committed and is visible")

    def acknowledged(self, partition: int, offset: int, value: bytes) -> None:
        """A producer was told that ``value`` is durable there."""
        self.saw(partition, offset, value)
        self.promised[partition][offset] = value

    def delivered(
        self, name: str, partition: int, before: RangeSet, offset: int, value: bytes
    ) -> None:
        """A consumer got a message; ``before``: what was answered when its stream was opened."""
        self.saw(partition, offset, value)
        hold(offset not in before, f"{name} got {offset} of {partition} again after its ack")
        self.subscriptions[name, partition].seen.add(offset, offset + 1)

    def answered(self, name: str, partition: int, span: OffsetRange) -> None:
        """An acknowledgement was answered."""
        self.subscriptions[name, partition].answered.add(span.start, span.end)

    # -- checks ----------------------------------------------------------------------------

    def check_read(self, partition: int, end: int, promised: dict[int, bytes]) -> None:
        """After everything below ``end`` was read; ``promised`` was known before."""
        found = self.values[partition]
        first = self.checked[partition]
        missing = [offset for offset in range(first, end) if offset not in found]
        hold(not missing, f"partition {partition} has no message at {missing[:5]}")
        above = [offset for offset in promised if offset >= end]
        hold(not above, f"acknowledged offsets {above[:5]} of {partition} are not below {end}")
        self.checked[partition] = end

    def check_committed(self, committed: set[bytes]) -> None:
        """After everything was read; ``committed`` was known before."""
        lost = [value for value in committed if value not in self.place]
        hold(not lost, f"committed values are not visible: {lost[:5]}")

    def check_seen(self, name: str, partition: int, end: int) -> None:
        """A subscription that has caught up got everything."""
        gaps = list(self.subscriptions[name, partition].seen.gaps(0, end))
        hold(not gaps, f"{name} never got {gaps[:3]} of partition {partition}")
