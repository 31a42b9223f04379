"""Danube for Spark: reliable topics whose history is one Delta table each.

    import danube

    async with danube.connect("127.0.0.1:6650") as client:
        producer = await client.producer("/default/events", create=True)
        await producer.send(b"hello", key="a")

:mod:`danube.blocking` has the same without an event loop. Names are imported when first used, so
that brokers, Spark workers and tools that only want a part do not load all of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from danube import blocking as blocking
    from danube.client.admin import (
        Admin,
        CursorInfo,
        SinkInfo,
        SubscriptionInfo,
        TopicDescription,
        TopicInfo,
        VerifyStep,
    )
    from danube.client.client import Client, connect
    from danube.client.connection import PartitionView, TopicView
    from danube.client.consumer import Consumer, ReceivedBatch
    from danube.client.messages import (
        Delivery,
        Message,
        MessageId,
        MessageRange,
        MessagesView,
    )
    from danube.client.producer import Producer, ProducerCounts
    from danube.client.reader import Reader
    from danube.client.settings import ClientSettings
    from danube.core.batch import MESSAGE_SCHEMA
    from danube.core.errors import (
        AlreadyExists,
        Corruption,
        DanubeError,
        DataLost,
        DeadlineExceeded,
        FailedPrecondition,
        InvalidName,
        InvalidRequest,
        MemoryFull,
        MessageTooLarge,
        NotFound,
        OffsetOutOfRange,
        OutcomeUnknown,
        OutOfRange,
        ProducerFenced,
        ResourceExhausted,
        SubscriptionBusy,
        SubscriptionNotFound,
        TopicNotFound,
        TopicReplaced,
        Unavailable,
        Unsupported,
    )

_HOMES: Final = {
    "danube.client.admin": (
        "Admin CursorInfo SinkInfo SubscriptionInfo TopicDescription TopicInfo VerifyStep"
    ),
    "danube.client.client": "Client connect",
    "danube.client.connection": "PartitionView TopicView",
    "danube.client.consumer": "Consumer ReceivedBatch",
    "danube.client.messages": "Delivery Message MessageId MessageRange MessagesView",
    "danube.client.producer": "Producer ProducerCounts",
    "danube.client.reader": "Reader",
    "danube.client.settings": "ClientSettings",
    "danube.core.batch": "MESSAGE_SCHEMA",
    "danube.core.errors": (
        "AlreadyExists Corruption DanubeError DataLost DeadlineExceeded FailedPrecondition "
        "InvalidName InvalidRequest MemoryFull MessageTooLarge NotFound OffsetOutOfRange "
        "OutOfRange OutcomeUnknown ProducerFenced ResourceExhausted SubscriptionBusy "
        "SubscriptionNotFound TopicNotFound TopicReplaced Unavailable Unsupported"
    ),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "MESSAGE_SCHEMA",
    "Admin",
    "AlreadyExists",
    "Client",
    "ClientSettings",
    "Consumer",
    "Corruption",
    "CursorInfo",
    "DanubeError",
    "DataLost",
    "DeadlineExceeded",
    "Delivery",
    "FailedPrecondition",
    "InvalidName",
    "InvalidRequest",
    "MemoryFull",
    "Message",
    "MessageId",
    "MessageRange",
    "MessageTooLarge",
    "MessagesView",
    "NotFound",
    "OffsetOutOfRange",
    "OutOfRange",
    "OutcomeUnknown",
    "PartitionView",
    "Producer",
    "ProducerCounts",
    "ProducerFenced",
    "Reader",
    "ReceivedBatch",
    "ResourceExhausted",
    "SinkInfo",
    "SubscriptionBusy",
    "SubscriptionInfo",
    "SubscriptionNotFound",
    "TopicDescription",
    "TopicInfo",
    "TopicNotFound",
    "TopicReplaced",
    "TopicView",
    "Unavailable",
    "Unsupported",
    "VerifyStep",
    "blocking",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name == "blocking":
        return importlib.import_module("danube.blocking")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'danube' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
