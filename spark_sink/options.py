"""The sink's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from danube.core.errors import InvalidSettings
from danube.core.names import TopicName, check_name
from danube.core.options import OptionReader

KNOWN: Final = (
    "serviceUrl",
    "topic",
    "sinkName",
    "producerName",
    "retryTimeoutMs",
    "txnAppId",
    "txnVersion",
)
REFUSED: Final = {
    "subscribe": "it belongs to the source; a sink writes to the option or the column 'topic'",
    "kafka.bootstrap.servers": "set 'serviceUrl' to the broker's host:port",
    "includeHeaders": "write a column 'attributes' (map<string,string>)",
    "service.url": "set 'serviceUrl' to the broker's host:port",
}
DEFAULT_RETRY_TIMEOUT_MS: Final = 60_000
DEFAULT_SINK_NAME: Final = "default"
DEFAULT_PRODUCER_NAME: Final = "spark"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write asked for.

    Attributes:
        service_url: host:port of any broker.
        topic: full name, or None: each row's column ``topic`` says it.
        sink_name: tells two sinks of one query apart; the topic's name unless given.
        producer_name: the messages' column ``producer``.
        retry_timeout_s: how long a broker may be away before the write fails.
        transaction: (application id, version) of a batch write that is to happen once, as Delta's
            ``txnAppId`` and ``txnVersion``: for ``foreachBatch``. None otherwise.
    """

    service_url: str
    topic: str | None
    sink_name: str
    producer_name: str
    retry_timeout_s: float
    transaction: tuple[str, int] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read and check every option.

        Raises:
            InvalidSettings: one is missing, unknown or has an impossible value.
            InvalidName: the topic's or the producer's name breaks the rules.
        """
        reader = OptionReader(options, known=KNOWN, refused=REFUSED)
        topic = reader.text("topic")
        if topic is not None:
            topic = str(TopicName.parse(topic))
        producer = reader.text("producerName", DEFAULT_PRODUCER_NAME)
        return cls(
            service_url=reader.required("serviceUrl", "127.0.0.1:6650"),
            topic=topic,
            sink_name=reader.text("sinkName") or topic or DEFAULT_SINK_NAME,
            producer_name=check_name(producer, "producer"),
            retry_timeout_s=reader.whole("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, minimum=0)
            / 1000,
            transaction=_transaction(reader),
        )


def _transaction(reader: OptionReader) -> tuple[str, int] | None:
    application = reader.text("txnAppId")
    version = reader.whole("txnVersion", minimum=0)
    if application and version is not None:
        return application, version
    if application or version is not None:
        raise InvalidSettings(
            "the options 'txnAppId' and 'txnVersion' go together: an application's id, and a "
            "number that rises with each of its writes"
        )
    return None
