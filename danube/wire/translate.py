"""Between the batch service's messages and core's types: checked when they come in.

Everything that comes from the wire is somebody else's: names follow the grammar, ids have 16
bytes, spans have a beginning and an end, enum numbers exist. What does not fit is an
``InvalidRequest`` that says which field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal

from danube.core.errors import InvalidName, InvalidRequest
from danube.core.limits import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from danube.core.names import TopicId, TopicName, check_name
from danube.core.offsets import OffsetRange
from danube.wire._generated import DanubeBatch_pb2 as pb

MAX_PARTITIONS: Final = 10_000
"""Most partitions a topic may have; a request for more is a slip."""

StartPosition = Literal["latest", "earliest"] | int | datetime
"""Where a subscription begins: an end of the log, an offset, or an append time (with a zone)."""

SubscriptionKind = Literal["exclusive", "shared", "failover", "key_shared", "spark"]
"""How a subscription hands out its messages."""

_KIND_NUMBERS: Final[Mapping[str, pb.SubscriptionType.ValueType]] = MappingProxyType(
    {
        "exclusive": pb.EXCLUSIVE,
        "shared": pb.SHARED,
        "failover": pb.FAILOVER,
        "key_shared": pb.KEY_SHARED,
        "spark": pb.SPARK,
    }
)
_KINDS: Final[Mapping[int, SubscriptionKind]] = MappingProxyType(
    {
        pb.EXCLUSIVE: "exclusive",
        pb.SHARED: "shared",
        pb.FAILOVER: "failover",
        pb.KEY_SHARED: "key_shared",
        pb.SPARK: "spark",
    }
)


# --- names and ids ------------------------------------------------------------------------------


def topic_name(text: str) -> TopicName:
    """Parse a topic's name. Raises InvalidName."""
    return TopicName.parse(text)


def topic_id(text: str) -> TopicId:
    """Parse a topic id that must be there. Raises InvalidName."""
    return TopicId.parse(text)


def optional_topic_id(text: str) -> TopicId | None:
    """Parse a topic id; empty means whichever topic has the name now. Raises InvalidName."""
    return TopicId.parse(text) if text else None


def subscription_name(text: str) -> str:
    """Check a subscription's name. Raises InvalidName."""
    return check_name(text, "subscription name")


def consumer_name(text: str) -> str:
    """Check a consumer's name. Raises InvalidName."""
    return check_name(text, "consumer name")


def producer_name(text: str) -> str:
    """Check a producer's name. Raises InvalidName."""
    return check_name(text, "producer name")


def set_id(text: str) -> str:
    """Check a staged set's id and return it in lower case: 32 hex digits. Raises InvalidName."""
    if len(text) == 32 and all(char in "0123456789abcdefABCDEF" for char in text):
        return text.lower()
    raise InvalidName(f"{text!r} is not the id of a staged set (32 hex digits)")


def partition_number(number: int, partitions: int) -> int:
    """Check that a topic of ``partitions`` has the partition. Raises InvalidRequest."""
    if not 0 <= number < partitions:
        raise InvalidRequest(f"there is no partition {number}; the topic has {partitions}")
    return number


def partition_count(number: int) -> int:
    """Check the number of partitions of a new topic (0: not partitioned). Raises InvalidRequest."""
    if not 0 <= number <= MAX_PARTITIONS:
        raise InvalidRequest(
            f"{number} partitions are too many; a topic has {MAX_PARTITIONS} at most"
        )
    return number


# --- offsets ------------------------------------------------------------------------------------


MAX_OFFSET: Final = 2**63 - 1
"""Offsets are 64 bits with a sign in Arrow, Parquet and Delta."""


def span_of(offsets: OffsetRange) -> pb.OffsetSpan:
    """A range of offsets as a message."""
    return pb.OffsetSpan(start=offsets.start, end=offsets.end)


def spans_of(ranges: Iterable[OffsetRange]) -> list[pb.OffsetSpan]:
    """Ranges of offsets as messages."""
    return [span_of(offsets) for offsets in ranges]


def range_of(span: pb.OffsetSpan) -> OffsetRange:
    """The range a message means. Raises InvalidRequest if it ends before it starts, or too high."""
    if span.start > span.end:
        raise InvalidRequest(f"offsets [{span.start}, {span.end}) end before they start")
    if span.end > MAX_OFFSET:
        raise InvalidRequest(f"offset {span.end} is above {MAX_OFFSET}; no log gets there")
    return OffsetRange(span.start, span.end)


def ranges_of(spans: Iterable[pb.OffsetSpan]) -> list[OffsetRange]:
    """The ranges messages mean, empty ones left out. Raises InvalidRequest."""
    return [offsets for offsets in map(range_of, spans) if len(offsets)]


# --- subscriptions ------------------------------------------------------------------------------


def start_to_proto(start: StartPosition) -> pb.StartPosition:
    """A start position as a message.

    Raises:
        InvalidRequest: another word, a negative offset, a time without a zone or before year 1.
    """
    if start == "latest":
        return pb.StartPosition(latest=True)
    if start == "earliest":
        return pb.StartPosition(earliest=True)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidRequest(f"the start time {start.isoformat()} has no time zone; add one")
        return pb.StartPosition(time_us=timestamp_us(start))
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 1 << 63:
        return pb.StartPosition(offset=start)
    raise InvalidRequest(
        f"{start!r} is not a start position; give 'latest', 'earliest', an offset or a datetime"
    )


def start_from_proto(
    message: pb.StartPosition, *, default: StartPosition = "latest"
) -> StartPosition:
    """The start position a message means; ``default`` where it says nothing.

    Raises:
        InvalidRequest: an offset or time out of range.
    """
    match message.WhichOneof("kind"):
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case "offset":
            if message.offset >= 1 << 63:
                raise InvalidRequest(f"the start offset {message.offset} is out of range")
            return message.offset
        case "time_us":
            return from_timestamp_us(message.time_us)
        case _:
            return default


def timestamp_us(moment: datetime) -> int:
    """Microseconds since 1970 UTC of a time with a zone, exact."""
    delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_timestamp_us(microseconds: int) -> datetime:
    """The time, in UTC. Raises InvalidRequest outside the years 1 to 9999."""
    if not MIN_TIMESTAMP_US <= microseconds <= MAX_TIMESTAMP_US:
        raise InvalidRequest(f"the time {microseconds} µs is outside the years 1 to 9999")
    seconds, rest = divmod(microseconds, 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    day = datetime.fromordinal(datetime(1970, 1, 1).toordinal() + days)
    hours, seconds = divmod(seconds, 3600)
    return day.replace(
        hour=hours, minute=seconds // 60, second=seconds % 60, microsecond=rest, tzinfo=UTC
    )


def kind_to_proto(kind: str) -> pb.SubscriptionType.ValueType:
    """A kind of subscription as its number. Raises InvalidRequest on another word."""
    try:
        return _KIND_NUMBERS[kind]
    except KeyError:
        raise InvalidRequest(
            f"there is no subscription type {kind!r}; use one of {', '.join(_KIND_NUMBERS)}"
        ) from None


def kind_from_proto(number: int) -> SubscriptionKind:
    """The kind of subscription a number means. Raises InvalidRequest on an unknown one."""
    try:
        return _KINDS[number]
    except KeyError:
        raise InvalidRequest(f"there is no subscription type with number {number}") from None
