"""Where every record lies in the metadata store.

| key under ``/danube/`` | record |
|---|---|
| ``namespaces/<ns>`` | a namespace besides ``default`` and ``system`` |
| ``topics/<ns>/<topic>`` | topic |
| ``topic-ids/<id>`` | name of the topic with that id |
| ``part-names/<ns>/<base>`` | touched when an ordinary topic is called ``<base>-part-<n>`` |
| ``deleted/<id>`` | tombstone of a deleted topic |
| ``subscriptions/<id>/<name>`` | subscription |
| ``claims/<id>/<partition>`` | claim: which broker owns the partition now |
| ``epochs/<id>/<partition>`` | epoch counter and last holder; outlives every claim |
| ``ceilings/<id>/<partition>`` | offset ceiling |
| ``tables/<id>`` | the topic has a Delta table |
| ``brokers/<broker>`` | registration of a live broker |
| ``sinks/<query>/<sink>`` | what a Spark sink decided last |

Names are percent-encoded where a ``/`` in them would change the key.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from danube.core.names import PartitionId, TopicId, TopicName

ROOT: Final = "/danube/"
NAMESPACES: Final = f"{ROOT}namespaces/"
TOPICS: Final = f"{ROOT}topics/"
DELETED: Final = f"{ROOT}deleted/"
BROKERS: Final = f"{ROOT}brokers/"
SINKS: Final = f"{ROOT}sinks/"


def namespace(name: str) -> str:
    """Key of a namespace."""
    return f"{NAMESPACES}{_part(name)}"


def topics_of(name: str | None) -> str:
    """Prefix of a namespace's topics, or of all."""
    return TOPICS if name is None else f"{TOPICS}{_part(name)}/"


def topic(name: TopicName) -> str:
    """Key of a topic."""
    return f"{topics_of(name.namespace)}{_part(name.topic)}"


def partition_names_of(base: TopicName) -> str:
    """Prefix that the names of ``base``'s partitions would have as topics."""
    return f"{topic(base)}-part-"


def partition_names_guard(base: TopicName) -> str:
    """Key that changes when a topic gets a name like those of ``base``'s partitions."""
    return f"{ROOT}part-names/{_part(base.namespace)}/{_part(base.topic)}"


def topic_id(item: TopicId) -> str:
    """Key that leads from a topic id to the topic's name."""
    return f"{ROOT}topic-ids/{item}"


def deleted(item: TopicId) -> str:
    """Key of a deleted topic's tombstone."""
    return f"{DELETED}{item}"


def subscriptions_of(item: TopicId) -> str:
    """Prefix of a topic's subscriptions."""
    return f"{ROOT}subscriptions/{item}/"


def subscription(item: TopicId, name: str) -> str:
    """Key of a subscription."""
    return f"{subscriptions_of(item)}{_part(name)}"


def claims_of(item: TopicId) -> str:
    """Prefix of the claims of a topic's partitions."""
    return f"{ROOT}claims/{item}/"


def epochs_of(item: TopicId) -> str:
    """Prefix of the epochs of a topic's partitions."""
    return f"{ROOT}epochs/{item}/"


def ceilings_of(item: TopicId) -> str:
    """Prefix of the offset ceilings of a topic's partitions."""
    return f"{ROOT}ceilings/{item}/"


def claim(item: PartitionId) -> str:
    """Key of a partition's claim."""
    return f"{claims_of(item.topic_id)}{item.partition}"


def epoch(item: PartitionId) -> str:
    """Key of a partition's epoch counter."""
    return f"{epochs_of(item.topic_id)}{item.partition}"


def ceiling(item: PartitionId) -> str:
    """Key of a partition's offset ceiling."""
    return f"{ceilings_of(item.topic_id)}{item.partition}"


def table(item: TopicId) -> str:
    """Key that says that a topic has a table."""
    return f"{ROOT}tables/{item}"


def broker(broker_id: str) -> str:
    """Key of a broker's registration."""
    return f"{BROKERS}{_part(broker_id)}"


def sink(query_id: str, sink_name: str) -> str:
    """Key of a sink's record."""
    return f"{SINKS}{_part(query_id)}/{_part(sink_name)}"


def _part(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")
