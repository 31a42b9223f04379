"""The catalog: typed records over a metadata store, one module per family of them."""

from __future__ import annotations

from danube.metadata.catalog.brokers import Brokers
from danube.metadata.catalog.sinks import SinkRecords
from danube.metadata.catalog.subscriptions import Subscriptions
from danube.metadata.catalog.tables import Tables
from danube.metadata.catalog.topics import Topics
from danube.metadata.records import (
    BrokerRecord,
    Claim,
    DeletedTopic,
    Holder,
    LostPart,
    Participant,
    SinkRecord,
    SubscriptionRecord,
    TopicRecord,
)

__all__ = [
    "BrokerRecord",
    "Catalog",
    "Claim",
    "DeletedTopic",
    "Holder",
    "LostPart",
    "Participant",
    "SinkRecord",
    "SinkRecords",
    "SubscriptionRecord",
    "TopicRecord",
]


class Catalog(Topics, Subscriptions, Tables, Brokers):
    """Topics, subscriptions, claims, tables and brokers of one metadata store."""
