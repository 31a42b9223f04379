"""Where topics stand and how far a micro-batch may go. Decisions only; calls are in broker.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from danube.core.errors import InvalidSettings, TopicNotFound
from danube.core.offsets import OffsetRange, RangeSet
from spark_source.admission import advance, readable, share_out
from spark_source.broker import Broker
from spark_source.offsets import SourceOffsets, TopicPosition
from spark_source.planning import Planner
from spark_source.positions import EARLIEST, LATEST, Positions

Key: TypeAlias = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a lookup told of a topic.

    Attributes:
        topic_id: 32 hex digits.
        log_start: first offset there is, per partition.
        durable: offset up to which it can be read, per partition.
        lost: recorded lost ranges, per partition.
    """

    topic_id: str
    log_start: Mapping[int, int]
    durable: Mapping[int, int]
    lost: Mapping[int, RangeSet]


def look(broker: Broker, topics: Iterable[str]) -> dict[str, TopicState]:
    """The state of each topic that exists."""
    states: dict[str, TopicState] = {}
    for topic in topics:
        try:
            found = broker.lookup(topic)
        except TopicNotFound:
            continue
        states[topic] = TopicState(
            found.topic_id,
            {info.partition: info.log_start_offset for info in found.partitions},
            {info.partition: info.durable_offset for info in found.partitions},
            {
                info.partition: RangeSet(OffsetRange(span.start, span.end) for span in info.lost)
                for info in found.partitions
            },
        )
    return states


def require(states: Mapping[str, TopicState], topics: Iterable[str]) -> None:
    """Raise TopicNotFound for the first topic without a state."""
    for topic in topics:
        if topic not in states:
            raise TopicNotFound(
                f"there is no topic {topic}; create it ('danube topics create {topic}') or "
                "correct the option 'subscribe'"
            )


def resolve(
    option: str, positions: Positions, topic: str, state: TopicState, planner: Planner
) -> dict[int, int]:
    """Offsets for a position option.

    Raises:
        InvalidSettings: a partition is not named, does not exist, or an offset is not there yet.
        DataLost: an offset was removed by retention, and that is to fail.
    """
    for partition in positions.exact.get(topic, {}):
        if partition not in state.durable:
            raise InvalidSettings(
                f"the option {option!r} names partition {partition} of {topic}, which has "
                f"{len(state.durable)} (numbered from 0)"
            )
    return {
        partition: _offset(option, positions, topic, partition, state, planner)
        for partition in sorted(state.durable)
    }


def _offset(
    option: str,
    positions: Positions,
    topic: str,
    partition: int,
    state: TopicState,
    planner: Planner,
) -> int:
    offset = positions.of(option, topic, partition)
    first, end = state.log_start[partition], state.durable[partition]
    if offset == EARLIEST:
        return first
    if offset == LATEST:
        return end
    if offset > end:
        raise InvalidSettings(
            f"the option {option!r} asks for offset {offset} of partition {partition} of {topic}, "
            f"which ends at {end}; give an offset up to that, or -1 for latest"
        )
    if offset < first:
        planner.removed(topic, partition, offset, first)
        return first
    return offset


def next_offsets(
    begin: SourceOffsets,
    states: Mapping[str, TopicState],
    until: Mapping[str, TopicState],
    max_rows: int | None,
    planner: Planner,
) -> SourceOffsets:
    """Up to where the next micro-batch reads.

    Args:
        begin: where the last one ended.
        states: topics now, those that exist.
        until: topics at the time the run may not go beyond; the same as ``states`` without one.
        max_rows: messages at most, over all partitions; None for no limit.
        planner: decides whether a loss ends the query.

    Raises:
        DataLost: a topic was deleted or created again, or offsets are gone, and that is to fail.
    """
    starts: dict[Key, int] = {}
    ends: dict[Key, int] = {}
    for topic, state in states.items():
        for partition, first in state.log_start.items():
            key = (topic, partition)
            starts[key] = _start(begin, topic, partition, state, first, planner)
            ends[key] = max(starts[key], _end(starts[key], topic, partition, state, until, planner))
    lost = {key: states[key[0]].lost.get(key[1], RangeSet()) for key in starts}
    if max_rows is not None:
        ends = _limited(starts, ends, lost, max_rows)
    topics = {
        topic: TopicPosition(state.topic_id, {part: ends[topic, part] for part in state.log_start})
        for topic, state in states.items()
        if _belongs(topic, state, until)
    }
    return SourceOffsets(begin.subscription, topics | _gone(begin, states, until, topics, planner))


def _start(
    begin: SourceOffsets,
    topic: str,
    partition: int,
    state: TopicState,
    first: int,
    planner: Planner,
) -> int:
    before = begin.topics.get(topic)
    if before is None:
        return first  # added to the query: from the earliest
    if before.topic_id != state.topic_id:
        if partition == min(state.log_start):
            planner.report(
                f"topic {topic} was deleted and created again (id {before.topic_id}, now "
                f"{state.topic_id}); what this query had not read of the old one is gone"
            )
        return first
    offset = before.next.get(partition)
    if offset is None:
        return first  # a partition that was added
    if offset < first:
        planner.removed(topic, partition, offset, first)
    if offset > state.durable[partition]:
        planner.report(
            f"partition {partition} of {topic} ends at offset {state.durable[partition]}, but this "
            f"query has already read up to {offset}: its broker's data was rolled back, or the "
            "Spark checkpoint belongs to another installation"
        )
    return max(offset, first)


def _end(
    start: int,
    topic: str,
    partition: int,
    state: TopicState,
    until: Mapping[str, TopicState],
    planner: Planner,
) -> int:
    bound = until.get(topic)
    if bound is None or bound.topic_id != state.topic_id:
        return start
    end = min(state.durable[partition], bound.durable.get(partition, start))
    if planner.fails:
        # What lies before a lost range is still delivered; the query ends when it reaches it.
        for span in state.lost.get(partition, RangeSet()).within(start, end):
            if span.start > start:
                return span.start
            planner.lost(topic, partition, span.start, span.end)
    return end


def _limited(
    starts: Mapping[Key, int],
    ends: Mapping[Key, int],
    lost: Mapping[Key, RangeSet],
    max_rows: int,
) -> dict[Key, int]:
    # The least advanced first, so that with fewer messages than partitions all have their turn.
    order = sorted(starts, key=lambda key: (starts[key], key))
    backlogs = {key: readable(starts[key], ends[key], lost[key]) for key in order}
    shares = share_out(backlogs, max_rows)
    return {key: advance(starts[key], shares.get(key, 0), ends[key], lost[key]) for key in starts}


def _belongs(topic: str, state: TopicState, until: Mapping[str, TopicState]) -> bool:
    """Whether a topic is part of this run: one made after its end was fixed is left for later."""
    return topic in until and until[topic].topic_id == state.topic_id


def _gone(
    begin: SourceOffsets,
    states: Mapping[str, TopicState],
    until: Mapping[str, TopicState],
    kept: Mapping[str, TopicPosition],
    planner: Planner,
) -> dict[str, TopicPosition]:
    """Positions to keep for topics of the query that do not exist (any more, or in this run)."""
    positions: dict[str, TopicPosition] = {}
    for topic, position in begin.topics.items():
        if topic in kept:
            continue
        if topic not in states:
            planner.report(f"topic {topic} was deleted while this query was reading it")
        positions[topic] = position
    return positions
