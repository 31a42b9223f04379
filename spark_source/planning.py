"""From ranges of offsets to pieces: one ``Plan`` call, checked for gaps and losses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from danube.core.errors import Corruption, DataLost, OffsetOutOfRange
from danube.core.offsets import OffsetRange, RangeSet
from danube.wire._generated import DanubeBatch_pb2 as pb
from spark_source.broker import Broker
from spark_source.splits import Piece

_log = logging.getLogger("danube.spark.source")

REMOVED: Final = "retention"
"""Kind of a "lost" range in a plan that lies below the log start offset."""

WHAT_TO_DO: Final = (
    "set failOnDataLoss to false to go on without them, or start with a new Spark checkpoint"
)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one topic partition.

    ``fresh`` says that the query has no position there yet: it starts wherever the log does.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    fresh: bool = False


class Planner:
    """Plans reads. Used by the driver for a micro-batch, by an executor for a file that is gone.

    Args:
        broker: any broker.
        fail_on_data_loss: raise where offsets are gone, rather than step over them.
    """

    def __init__(self, broker: Broker, *, fail_on_data_loss: bool) -> None:
        self._broker = broker
        self._fail = fail_on_data_loss

    @property
    def fails(self) -> bool:
        """Whether a loss ends the query."""
        return self._fail

    def plan(self, ranges: Sequence[Range]) -> list[Piece]:
        """Pieces that cover ``ranges`` but for lost ranges, in the order of ``ranges``.

        Raises:
            DataLost: offsets are recorded lost or were removed by retention, and that is to fail.
            Corruption: the broker's answer leaves a gap.
            DanubeError: the broker refused, or was away for too long.
        """
        wanted = [item for item in ranges if item.start < item.end]
        if not wanted:
            return []
        try:
            answer = self._broker.plan([_to_proto(item) for item in wanted])
        except OffsetOutOfRange:
            # Retention moved on since the offsets were chosen.
            wanted = self._without_removed(wanted)
            answer = self._broker.plan([_to_proto(item) for item in wanted])
        lost = self._lost_ranges(answer, wanted)
        pieces: list[Piece] = []
        for item in wanted:
            here = lost.get((item.topic_id, item.partition), RangeSet())
            pieces += _pieces_of(item, answer, here)
        return pieces

    def removed(self, topic: str, partition: int, start: int, end: int) -> None:
        """Offsets [start, end) were removed by retention. Raises DataLost if that is to fail."""
        self.report(
            f"offsets [{start}, {end}) of partition {partition} of {topic} were removed by "
            "retention before this query read them"
        )

    def lost(self, topic: str, partition: int, start: int, end: int, kind: str = "") -> None:
        """Offsets [start, end) are recorded as lost. Raises DataLost if that is to fail."""
        self.report(
            f"offsets [{start}, {end}) of partition {partition} of {topic} are recorded as lost"
            + (f" ({kind})" if kind else "")
        )

    def report(self, loss: str) -> None:
        """Data is gone, in words. Raises DataLost if that is to fail; logs it otherwise."""
        if self._fail:
            raise DataLost(f"{loss}; {WHAT_TO_DO}")
        _log.warning("%s; stepped over (failOnDataLoss is false)", loss)

    def _without_removed(self, wanted: Sequence[Range]) -> list[Range]:
        starts: dict[tuple[str, int], int] = {}
        for topic in dict.fromkeys(item.topic for item in wanted):
            for info in self._broker.lookup(topic).partitions:
                starts[topic, info.partition] = info.log_start_offset
        kept: list[Range] = []
        for item in wanted:
            log_start = starts.get((item.topic, item.partition), 0)
            if item.start < log_start and not item.fresh:
                self.removed(item.topic, item.partition, item.start, min(log_start, item.end))
            if max(item.start, log_start) < item.end:
                kept.append(replace(item, start=max(item.start, log_start)))
        return kept

    def _lost_ranges(
        self, answer: pb.PlanResponse, wanted: Sequence[Range]
    ) -> dict[tuple[str, int], RangeSet]:
        lost: dict[tuple[str, int], RangeSet] = {}
        fresh = {(item.topic_id, item.partition) for item in wanted if item.fresh}
        for span in answer.lost:
            key = (span.topic_id, span.partition)
            if span.kind != REMOVED:
                self.lost(span.topic, span.partition, span.start, span.end, span.kind)
            elif key not in fresh:
                self.removed(span.topic, span.partition, span.start, span.end)
            lost.setdefault(key, RangeSet()).add(span.start, span.end)
        return lost


def _to_proto(item: Range) -> pb.TopicRange:
    return pb.TopicRange(
        topic=item.topic,
        topic_id=item.topic_id,
        partition=item.partition,
        start=item.start,
        end=item.end,
    )


def _pieces_of(item: Range, answer: pb.PlanResponse, lost: RangeSet) -> list[Piece]:
    mine = [
        split
        for split in answer.splits
        if split.range.partition == item.partition
        and split.range.topic_id == item.topic_id
        and split.range.start < item.end
        and split.range.end > item.start
    ]
    mine.sort(key=lambda split: split.range.start)
    covered = RangeSet(lost.within(item.start, item.end))
    pieces: list[Piece] = []
    for split in mine:
        start, end = max(split.range.start, item.start), min(split.range.end, item.end)
        if covered.covers(start, end):
            continue  # nothing but lost ranges, or planned twice
        pieces.append(_piece(item, split, OffsetRange(start, end), lost))
        covered.add(start, end)
    for gap in covered.gaps(item.start, item.end):
        raise Corruption(
            f"the broker's plan for partition {item.partition} of {item.topic} leaves out offsets "
            f"{gap}, which are not recorded as lost; run 'danube verify {item.topic}'"
        )
    return pieces


def _piece(item: Range, split: pb.Split, span: OffsetRange, lost: RangeSet) -> Piece:
    inside = tuple((gap.start, gap.end) for gap in lost.within(span.start, span.end))
    piece = Piece(item.topic, item.topic_id, item.partition, span.start, span.end, lost=inside)
    if split.WhichOneof("kind") == "object":
        found = split.object
        return replace(
            piece,
            uri=found.uri,
            file_bytes=found.size_bytes,
            row_groups=tuple(found.row_groups),
            first_offset=found.first_offset,
        )
    return replace(piece, broker_url=split.tail.broker_url)
