"""The source's options. Names follow Spark's Kafka source where the idea is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from danube.core.errors import InvalidSettings
from danube.core.names import TopicName, check_name
from danube.core.options import OptionReader
from spark_source.positions import EARLIEST, LATEST, Positions

KNOWN: Final = (
    "serviceUrl",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "subscriptionName",
    "minPartitions",
    "retryTimeoutMs",
)
_LATER: Final = "this source does not have it yet; "
REFUSED: Final = {
    "subscribePattern": _LATER + "name the topics in 'subscribe', separated by commas",
    "assign": _LATER + "name whole topics in 'subscribe'",
    "topic": "it belongs to the sink; a source names its topics in 'subscribe'",
    "topics": "name the topics in 'subscribe', separated by commas",
    "startingTimestamp": _LATER + "use 'startingOffsets'",
    "endingTimestamp": _LATER + "use 'endingOffsets'",
    "startingOffsetsByTimestamp": _LATER + "use 'startingOffsets'",
    "endingOffsetsByTimestamp": _LATER + "use 'endingOffsets'",
    "minOffsetsPerTrigger": _LATER + "use 'maxOffsetsPerTrigger' and a trigger interval",
    "maxTriggerDelay": _LATER + "use a trigger interval",
    "maxBytesPerTrigger": _LATER + "use 'maxOffsetsPerTrigger'",
    "includeHeaders": "the column 'attributes' is always there",
    "kafka.bootstrap.servers": "set 'serviceUrl' to the broker's host:port",
    "kafka.group.id": "set 'subscriptionName'",
    "service.url": "set 'serviceUrl' to the broker's host:port",
}
DEFAULT_RETRY_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asked for.

    Attributes:
        service_url: host:port of any broker.
        topics: full names, in the order given, each once.
        starting: where a new query starts, or None for the default of its kind.
        ending: where a batch read ends (exclusive), or None for latest.
        max_offsets_per_trigger: messages per micro-batch at most, over all partitions.
        fail_on_data_loss: end the query, rather than go on, where offsets are gone.
        subscription: name of the query's cursor, or None to generate one.
        min_partitions: tasks to aim at, however small the data.
        retry_timeout_s: how long a broker may be away before the query ends.
    """

    service_url: str
    topics: tuple[str, ...]
    starting: Positions | None
    ending: Positions | None
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    subscription: str | None
    min_partitions: int
    retry_timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read and check every option.

        Raises:
            InvalidSettings: one is missing, unknown or has an impossible value.
            InvalidName: a topic's or the subscription's name breaks the rules.
        """
        reader = OptionReader(options, known=KNOWN, refused=REFUSED)
        topics = _topics(reader.required("subscribe", "/default/events"))
        name = reader.text("subscriptionName")
        return cls(
            service_url=reader.required("serviceUrl", "127.0.0.1:6650"),
            topics=topics,
            starting=_positions(reader, "startingOffsets", topics),
            ending=_positions(reader, "endingOffsets", topics),
            max_offsets_per_trigger=reader.whole("maxOffsetsPerTrigger", minimum=1),
            fail_on_data_loss=reader.flag("failOnDataLoss", True),
            subscription=None if name is None else check_name(name, "subscription"),
            min_partitions=reader.whole("minPartitions", 1, minimum=1),
            retry_timeout_s=reader.whole("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, minimum=0)
            / 1000,
        )

    def for_stream(self) -> SourceOptions:
        """These, checked for a streaming read. Raises InvalidSettings."""
        if self.ending is not None:
            raise InvalidSettings(
                "the option 'endingOffsets' cannot be used in a streaming read, which has no end; "
                "use it with spark.read, or trigger(availableNow=True)"
            )
        return self

    def for_batch(self) -> SourceOptions:
        """These, checked for a batch read. Raises InvalidSettings."""
        if self.starting == Positions(LATEST):
            raise InvalidSettings(
                "a batch read cannot start at 'latest': nothing would be read; give earliest or "
                "JSON as 'startingOffsets'"
            )
        if self.ending == Positions(EARLIEST):
            raise InvalidSettings(
                "a batch read cannot end at 'earliest': nothing would be read; give latest or "
                "JSON as 'endingOffsets'"
            )
        return self


def _topics(text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(str(TopicName.parse(name)) for name in names))


def _positions(reader: OptionReader, option: str, topics: tuple[str, ...]) -> Positions | None:
    text = reader.text(option)
    if text is None:
        return None
    positions = Positions.parse(option, text)
    positions.check_topics(option, topics)
    return positions
