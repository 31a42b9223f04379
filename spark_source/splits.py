"""What a Spark task reads: pieces of topic partitions, grouped by bytes into input partitions.

Small micro-batches become one task (eight tasks cost twice as much as one on two cores), large
ones about as many as there are cores. Pieces stay in order, so a topic partition's messages come
in offset order within a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.datasource import InputPartition

from danube.core.limits import MIB
from danube.core.offsets import OffsetRange, RangeSet

SMALL_TASK_BYTES: Final = 8 * MIB
LARGE_TASK_BYTES: Final = 128 * MIB
ASSUMED_ROW_BYTES: Final = 1024
"""A plan tells a file's bytes and not how many of them a range has: a guess, for grouping only."""

ROW_GROUP_ROWS: Final = 50_000
"""Fresh files have row groups of about so many rows: cutting there decodes nothing twice."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one topic partition, in one file or in the tail.

    Attributes:
        topic: full name.
        topic_id: 32 hex digits.
        partition: number.
        start: first offset.
        end: one above the last offset.
        uri: of the file, or None for the tail, which ``broker_url`` has.
        broker_url: of the owner, for a tail.
        file_bytes: of the whole file.
        row_groups: those of the file that may hold the range; empty: all.
        first_offset: of the file.
        lost: recorded lost ranges within, as (start, end).
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    uri: str | None = None
    broker_url: str = ""
    file_bytes: int = 0
    row_groups: tuple[int, ...] = ()
    first_offset: int = 0
    lost: tuple[tuple[int, int], ...] = ()

    @property
    def estimated_bytes(self) -> int:
        """About how much there is to read."""
        guess = (self.end - self.start) * ASSUMED_ROW_BYTES
        return guess if self.uri is None else min(guess, self.file_bytes)

    def lost_set(self) -> RangeSet:
        """The lost ranges as a set."""
        return RangeSet(OffsetRange(start, end) for start, end in self.lost)

    def between(self, start: int, end: int) -> Piece:
        """The part [start, end) of this piece."""
        lost = tuple((span.start, span.end) for span in self.lost_set().within(start, end))
        return replace(self, start=start, end=end, lost=lost)

    def cut_near(self, offset: int) -> int:
        """Where to cut at about ``offset``; ``start`` or ``end`` when there is no good place."""
        if self.uri is not None:
            groups = round((offset - self.first_offset) / ROW_GROUP_ROWS)
            offset = self.first_offset + groups * ROW_GROUP_ROWS
        return min(max(offset, self.start), self.end)


class DanubePartition(InputPartition):
    """One task's pieces, in the order they are read."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


def group(pieces: Sequence[Piece], *, cores: int, at_least: int = 1) -> list[DanubePartition]:
    """Group ``pieces`` into tasks of about equal bytes, cutting large ones.

    Args:
        pieces: in reading order, none empty.
        cores: tasks that can run at once.
        at_least: tasks the user asked for.
    """
    total = sum(piece.estimated_bytes for piece in pieces)
    rows = sum(piece.end - piece.start for piece in pieces)
    tasks = max(min(cores, total // SMALL_TASK_BYTES), -(-total // LARGE_TASK_BYTES), at_least, 1)
    tasks = min(tasks, rows)
    if tasks <= 1:
        return [DanubePartition(tuple(pieces))] if pieces else []
    return [DanubePartition(tuple(some)) for some in _fill(list(pieces), total / tasks) if some]


def _fill(pieces: list[Piece], target_bytes: float) -> list[list[Piece]]:
    groups: list[list[Piece]] = [[]]
    # `due` is where the current group should end, counted from the very start, so that rounding
    # in one group is made good in the next.
    due, done = target_bytes, 0.0
    for piece in pieces:
        bytes_per_row = max(piece.estimated_bytes, 1) / (piece.end - piece.start)
        rest = piece
        while done + (rest.end - rest.start) * bytes_per_row > due + 1:
            cut = rest.cut_near(rest.start + round((due - done) / bytes_per_row))
            if cut > rest.start:
                groups[-1].append(rest.between(rest.start, cut))
                done += (cut - rest.start) * bytes_per_row
                rest = rest.between(cut, rest.end)
            groups.append([])
            due += target_bytes
        if rest.end > rest.start:
            groups[-1].append(rest)
            done += (rest.end - rest.start) * bytes_per_row
    return groups
