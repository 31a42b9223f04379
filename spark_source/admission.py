"""How far a micro-batch goes: ``maxOffsetsPerTrigger`` shared out over topic partitions.

Each partition gets the same fraction of its backlog, as in Spark's Kafka source. So a replay moves
through all partitions in step, which is what event-time watermarks need. Every partition that has
something gets at least one message if the limit allows, so that none waits for ever.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from danube.core.offsets import OffsetRange, RangeSet

K = TypeVar("K", bound=Hashable)


def share_out(backlogs: Mapping[K, int], limit: int) -> dict[K, int]:
    """Messages per partition: at most ``limit`` together, all of it unless backlogs are less.

    Args:
        backlogs: messages that could be read, per partition, in an order that breaks ties.
        limit: messages to share out.
    """
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {key: backlog * limit // total for key, backlog in waiting.items()}
    if limit >= len(waiting):
        shares = {key: max(1, share) for key, share in shares.items()}
    _settle(shares, waiting, limit - sum(shares.values()))
    return {key: share for key, share in shares.items() if share}


def _settle(shares: dict[K, int], waiting: Mapping[K, int], rest: int) -> None:
    """Hand out what rounding left, or take back what the minimum of one gave too much."""
    while rest > 0:
        for key in waiting:
            if rest and shares[key] < waiting[key]:
                shares[key] += 1
                rest -= 1
    while rest < 0:
        largest = max(shares, key=lambda key: shares[key])
        taken = min(-rest, shares[largest] - 1)
        shares[largest] -= taken
        rest += taken


def readable(start: int, end: int, lost: RangeSet) -> int:
    """Messages in [start, end) that are not in a lost range."""
    return sum(len(gap) for gap in lost.gaps(start, end))


def advance(start: int, messages: int, end: int, lost: RangeSet) -> int:
    """The offset behind the first ``messages`` readable ones of [start, end).

    A lost range at the very end is stepped over as well; otherwise it would be a backlog that
    never shrinks.
    """
    at = start
    for gap in lost.gaps(start, end):
        if messages < len(gap):
            return gap.start + messages if messages else at
        messages -= len(gap)
        at = gap.end
    return end


def lost_set(spans: Sequence[tuple[int, int]]) -> RangeSet:
    """A set of lost ranges from (start, end) pairs."""
    return RangeSet(OffsetRange(start, end) for start, end in spans)
