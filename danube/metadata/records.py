"""The catalog's records, and their form as JSON with a version.

A record of a newer version is refused, never half understood: it may hold something that must not
be overlooked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from danube.core.errors import Corruption, UnsupportedFormat
from danube.core.names import PartitionId, TopicId, TopicName

VERSION: Final = 1
"""Newest version of every record that this code reads, and the one it writes."""

NOTHING_DECIDED: Final = -1
"""``last_batch_id`` of a sink that has decided no batch yet: Spark counts from 0."""


def encode(fields: dict[str, Any]) -> bytes:
    """A record's bytes."""
    return json.dumps({"v": VERSION, **fields}, separators=(",", ":")).encode()


def decode(key: str, value: bytes) -> dict[str, Any]:
    """The fields of the record at ``key``.

    Raises:
        UnsupportedFormat: written by a newer version.
        Corruption: not a record.
    """
    try:
        fields = json.loads(value)
        version = fields["v"]
    except (ValueError, TypeError, KeyError):
        raise Corruption(
            f"the metadata record {key} cannot be read; restore the metadata from a backup"
        ) from None
    if version > VERSION:
        raise UnsupportedFormat(
            f"the metadata record {key} has version {version}, this version reads up to {VERSION}: "
            "it was written by a newer Danube; start that one"
        )
    return dict(fields)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as it was created.

    ``partitioned`` False: one partition, number 0, whose wire name is the topic's. ``durability``
    is ``disk``, ``object`` or ``memory``. Retention is by append time in milliseconds, by bytes,
    and until every subscription has acknowledged; None means without that bound.
    """

    name: TopicName
    topic_id: TopicId
    partitions: int
    partitioned: bool
    reliable: bool
    durability: str
    max_message_bytes: int
    retention_ms: int | None
    retention_bytes: int | None
    retention_until_acked: bool
    created_us: int

    def to_bytes(self) -> bytes:
        """The stored form."""
        return encode(
            {
                "name": str(self.name),
                "id": str(self.topic_id),
                "partitions": self.partitions,
                "partitioned": self.partitioned,
                "reliable": self.reliable,
                "durability": self.durability,
                "max_message_bytes": self.max_message_bytes,
                "retention_ms": self.retention_ms,
                "retention_bytes": self.retention_bytes,
                "retention_until_acked": self.retention_until_acked,
                "created_us": self.created_us,
            }
        )

    @classmethod
    def from_bytes(cls, key: str, value: bytes) -> TopicRecord:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(
            name=TopicName.parse(fields["name"]),
            topic_id=TopicId.parse(fields["id"]),
            partitions=fields["partitions"],
            partitioned=fields["partitioned"],
            reliable=fields["reliable"],
            durability=fields["durability"],
            max_message_bytes=fields["max_message_bytes"],
            retention_ms=fields["retention_ms"],
            retention_bytes=fields["retention_bytes"],
            retention_until_acked=fields["retention_until_acked"],
            created_us=fields["created_us"],
        )


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What is left of a deleted topic until its table's objects are removed."""

    topic_id: TopicId
    name: TopicName
    partitions: int
    deleted_us: int

    def to_bytes(self) -> bytes:
        """The stored form."""
        return encode(
            {
                "id": str(self.topic_id),
                "name": str(self.name),
                "partitions": self.partitions,
                "deleted_us": self.deleted_us,
            }
        )

    @classmethod
    def from_bytes(cls, key: str, value: bytes) -> DeletedTopic:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(
            TopicId.parse(fields["id"]),
            TopicName.parse(fields["name"]),
            fields["partitions"],
            fields["deleted_us"],
        )


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription as it was created; its cursors live in the journal.

    ``type`` is ``exclusive``, ``shared``, … or ``spark``; ``start`` says for people where it began.
    """

    topic_id: TopicId
    name: str
    type: str
    created_us: int
    start: str

    def to_bytes(self) -> bytes:
        """The stored form."""
        return encode(
            {
                "topic": str(self.topic_id),
                "name": self.name,
                "type": self.type,
                "created_us": self.created_us,
                "start": self.start,
            }
        )

    @classmethod
    def from_bytes(cls, key: str, value: bytes) -> SubscriptionRecord:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(
            TopicId.parse(fields["topic"]),
            fields["name"],
            fields["type"],
            fields["created_us"],
            fields["start"],
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A broker's ownership of a partition.

    ``epoch`` grows with every claim and is never used twice; ``revision`` is that of the claim's
    key, so that comparing it finds every change of ownership and of epoch.
    """

    partition: PartitionId
    broker_id: str
    incarnation: str
    epoch: int
    revision: int

    def to_bytes(self) -> bytes:
        """The stored form; partition and revision are those of the key."""
        return encode(
            {"broker": self.broker_id, "incarnation": self.incarnation, "epoch": self.epoch}
        )

    @classmethod
    def from_bytes(cls, key: str, value: bytes, item: PartitionId, revision: int) -> Claim:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(item, fields["broker"], fields["incarnation"], fields["epoch"], revision)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claimed a partition last, which outlives the claim.

    ``released``: gave it up in order, so that the journal of that broker and incarnation proves
    everything up to its release.
    """

    broker_id: str
    incarnation: str
    epoch: int
    released: bool

    def to_bytes(self) -> bytes:
        """The stored form."""
        return encode(
            {
                "broker": self.broker_id,
                "incarnation": self.incarnation,
                "epoch": self.epoch,
                "released": self.released,
            }
        )

    @classmethod
    def from_bytes(cls, key: str, value: bytes) -> Holder:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(fields["broker"], fields["incarnation"], fields["epoch"], fields["released"])


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A live broker's registration; it goes with its lease."""

    broker_id: str
    incarnation: str
    url: str

    def to_bytes(self) -> bytes:
        """The stored form."""
        return encode({"id": self.broker_id, "incarnation": self.incarnation, "url": self.url})

    @classmethod
    def from_bytes(cls, key: str, value: bytes) -> BrokerRecord:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(fields["id"], fields["incarnation"], fields["url"])


@dataclass(frozen=True, slots=True)
class Participant:
    """One partition that takes part in a decided batch."""

    topic: str
    partition: PartitionId

    def to_fields(self) -> list[Any]:
        """The stored form."""
        return [self.topic, str(self.partition.topic_id), self.partition.partition]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> Participant:
        """The inverse of ``to_fields``."""
        topic, topic_id, partition = fields
        return cls(topic, PartitionId(TopicId.parse(topic_id), partition))


@dataclass(frozen=True, slots=True)
class LostPart:
    """A participant's part of a decided batch that went with its disk or its topic.

    [``start``, ``end``) are the offsets recorded as lost, empty where none were given out.
    """

    topic: str
    partition: PartitionId
    kind: str
    start: int = 0
    end: int = 0

    def to_fields(self) -> list[Any]:
        """The stored form."""
        item = self.partition
        return [self.topic, str(item.topic_id), item.partition, self.kind, self.start, self.end]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> LostPart:
        """The inverse of ``to_fields``."""
        topic, topic_id, partition, kind, start, end = fields
        return cls(topic, PartitionId(TopicId.parse(topic_id), partition), kind, start, end)


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """What a Spark sink (query id and sink name) decided last: the one record of its exactly-once.

    ``run_id`` is the run that holds the sink, ``fenced_runs`` the last few it took over from;
    ``commit_id`` and ``participants`` are those of batch ``last_batch_id``, ``finished`` whether
    all of them have given it its offsets, ``lost`` what could not be. ``aborted`` are the last few
    commit ids that can no longer be decided.
    """

    query_id: str
    sink_name: str
    run_id: str
    streaming: bool
    decided_us: int
    last_batch_id: int = NOTHING_DECIDED
    commit_id: str = ""
    participants: tuple[Participant, ...] = ()
    finished: bool = True
    lost: tuple[LostPart, ...] = ()
    fenced_runs: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    revision: int = field(default=0, compare=False)

    def to_bytes(self) -> bytes:
        """The stored form; the revision is that of the key."""
        return encode(
            {
                "query": self.query_id,
                "sink": self.sink_name,
                "run": self.run_id,
                "streaming": self.streaming,
                "decided_us": self.decided_us,
                "last": self.last_batch_id,
                "commit": self.commit_id,
                "participants": [item.to_fields() for item in self.participants],
                "finished": self.finished,
                "lost": [item.to_fields() for item in self.lost],
                "fenced": list(self.fenced_runs),
                "aborted": list(self.aborted),
            }
        )

    @classmethod
    def from_bytes(cls, key: str, value: bytes, revision: int) -> SinkRecord:
        """The inverse of ``to_bytes``."""
        fields = decode(key, value)
        return cls(
            query_id=fields["query"],
            sink_name=fields["sink"],
            run_id=fields["run"],
            streaming=fields["streaming"],
            decided_us=fields["decided_us"],
            last_batch_id=fields["last"],
            commit_id=fields["commit"],
            participants=tuple(Participant.from_fields(item) for item in fields["participants"]),
            finished=fields["finished"],
            lost=tuple(LostPart.from_fields(item) for item in fields["lost"]),
            fenced_runs=tuple(fields["fenced"]),
            aborted=tuple(fields["aborted"]),
            revision=revision,
        )
