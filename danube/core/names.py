"""Names and ids: namespaces, topics, partitions, subscriptions, topic ids.

The grammar is the Danube wire's (``/{namespace}/{topic}``; alphanumerics, ``_`` and ``-``), with
the bounds it lacks: no empty part and at most 255 bytes a part.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass

from danube.core.errors import InvalidName

MAX_PART_BYTES = 255
"""Longest namespace, topic, subscription, producer or consumer name, in UTF-8 bytes."""

_PARTITION = re.compile(r"^(?P<base>.+)-part-(?P<index>0|[1-9][0-9]*)$")


def _check_part(text: str, what: str) -> str:
    if not text:
        raise InvalidName(f"the {what} is empty; give it at least one letter or digit")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_PART_BYTES:
        raise InvalidName(f"the {what} {text[:40]!r}… is longer than {MAX_PART_BYTES} bytes")
    for char in text:
        if not (char.isalnum() or char in "_-"):
            raise InvalidName(
                f"the {what} {text!r} contains {char!r}; use letters, digits, '_' and '-'"
            )
    return text


def check_name(text: str, what: str) -> str:
    """Return ``text`` if it is a valid name for a ``what`` (subscription, producer, …).

    Raises:
        InvalidName: empty, too long, or with a character outside letters, digits, ``_``, ``-``,
            ``.`` and ``:``.
    """
    return _check_part(text.replace(".", "-").replace(":", "-"), what) and text


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic's name, ``/namespace/topic``."""

    namespace: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse ``/namespace/topic``.

        Raises:
            InvalidName: any other shape.
        """
        parts = text.split("/")
        if len(parts) != 3 or parts[0]:
            raise InvalidName(f"{text!r} is not a topic name; write it as /namespace/topic")
        return cls(_check_part(parts[1], "namespace"), _check_part(parts[2], "topic"))

    def partition(self, index: int) -> TopicName:
        """The name of partition ``index`` on the wire, ``/namespace/topic-part-index``."""
        return TopicName(self.namespace, f"{self.topic}-part-{index}")

    def split_partition(self) -> tuple[TopicName, int] | None:
        """(base topic, index) if this looks like a partition topic's name, else None."""
        found = _PARTITION.match(self.topic)
        if found is None:
            return None
        return TopicName(self.namespace, found["base"]), int(found["index"])

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.topic}"


@dataclass(frozen=True, slots=True, order=True)
class TopicId:
    """A topic's identity for ever: 16 random bytes, never reused, written as 32 hex digits."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 16:
            raise InvalidName(f"a topic id has 16 bytes, not {len(self.raw)}")

    @classmethod
    def parse(cls, text: str) -> TopicId:
        """Parse 32 hex digits. Raises InvalidName on anything else."""
        try:
            return cls(uuid.UUID(hex=text).bytes)
        except ValueError:
            raise InvalidName(f"{text!r} is not a topic id (32 hex digits)") from None

    def __str__(self) -> str:
        return self.raw.hex()


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """One partition of one topic: the unit of ordering, ownership and offsets."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


def producer_id(topic_id: TopicId, producer_name: str) -> int:
    """The unsigned 64-bit id of a producer, derived and thus stable over restarts."""
    digest = hashlib.sha256(topic_id.raw + producer_name.encode()).digest()
    return int.from_bytes(digest[:8], "little")


def partition_of(key: bytes, partitions: int) -> int:
    """Partition for a key: FNV-1a 64 modulo the number of partitions, as Danube clients do."""
    value = 0xCBF29CE484222325
    for byte in key:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value % partitions
