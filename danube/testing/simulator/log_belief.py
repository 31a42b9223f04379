"""What clients of a simulated broker may believe, and what must hold whenever they look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from danube.testing.simulator.journal_belief import Violation

Place = tuple[int, int]
"""(partition, offset)."""


@dataclass(slots=True)
class BatchBelief:
    """One batch of a Spark sink: the values of every attempt, and whether it was answered.

    ``empty_asked``: an attempt without a single message was asked to be committed.
    """

    attempts: list[dict[int, list[bytes]]] = field(default_factory=list)
    empty_asked: bool = False
    answered: bool = False


@dataclass(slots=True)
class LogBelief:
    """Everything the simulated clients were told."""

    acked: dict[Place, bytes] = field(default_factory=dict)
    seen: dict[Place, bytes] = field(default_factory=dict)
    batches: dict[int, BatchBelief] = field(default_factory=dict)
    cursors: dict[int, int] = field(default_factory=dict)

    def acknowledged(self, partition: int, base: int, values: list[bytes]) -> None:
        """A producer was told where its messages lie."""
        for offset, value in enumerate(values, base):
            known = self.acked.setdefault((partition, offset), value)
            if known != value:
                raise Violation(f"offset {offset} of {partition} was given to two messages")

    def check(self, rows: dict[Place, bytes], complete: bool) -> None:
        """Hold a full read of every partition against all that was promised.

        Args:
            rows: what every offset holds.
            complete: no client waits for an answer any more.

        Raises:
            Violation: a promise is broken.
        """
        for place, value in self.acked.items():
            if rows.get(place) != value:
                raise Violation(f"acknowledged {value!r} at {place} is now {rows.get(place)!r}")
        for place, value in self.seen.items():
            if rows.get(place) != value:
                raise Violation(f"{place} was {value!r} once and is now {rows.get(place)!r}")
        self.seen = dict(rows)
        twice = [v for v, count in Counter(rows.values()).items() if count > 1]
        if twice:
            raise Violation(f"messages appear twice: {twice[:3]!r}")
        self._check_dense(rows)
        self._check_batches(rows, complete)

    def _check_dense(self, rows: dict[Place, bytes]) -> None:
        counts = Counter(partition for partition, _ in rows)
        for partition, count in counts.items():
            highest = max(offset for p, offset in rows if p == partition)
            if highest + 1 != count:
                raise Violation(f"partition {partition} has {count} messages up to {highest}")

    def _check_batches(self, rows: dict[Place, bytes], complete: bool) -> None:
        places = {value: place for place, value in rows.items()}
        for number, batch in self.batches.items():
            visible = [a for a in batch.attempts if any(v in places for p in a.values() for v in p)]
            if len(visible) > 1:
                raise Violation(f"two attempts of batch {number} are visible")
            if batch.answered and not visible and not batch.empty_asked:
                raise Violation(f"batch {number} was answered and nothing of it is visible")
            for attempt in visible:
                self._check_whole(number, attempt, places, all_parts=batch.answered or complete)

    def _check_whole(
        self,
        number: int,
        attempt: dict[int, list[bytes]],
        places: dict[bytes, Place],
        *,
        all_parts: bool,
    ) -> None:
        for partition, values in attempt.items():
            found = [places[value] for value in values if value in places]
            if not found and not all_parts:
                continue
            if len(found) != len(values):
                raise Violation(
                    f"{len(found)} of {len(values)} messages of batch {number} are visible in "
                    f"partition {partition}"
                )
            if found and found != [(partition, found[0][1] + i) for i in range(len(found))]:
                raise Violation(f"batch {number} is torn apart in partition {partition}: {found}")

    def check_cursor(self, partition: int, offset: int) -> None:
        """A subscription's cursor after a restart."""
        if offset < self.cursors.get(partition, 0):
            raise Violation(
                f"the cursor of partition {partition} went back to {offset}, it was answered at "
                f"{self.cursors[partition]}"
            )
