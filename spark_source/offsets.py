"""The source's position as it stands in a Spark checkpoint (format: architecture.md).

``{"v":1,"sub":"…","topics":{"/ns/t":{"id":"…","next":{"0":17,"1":5}}}}``, topics sorted by name
and partitions by number, so that equal positions are equal texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from danube.core.errors import Corruption, UnsupportedFormat

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """A topic id and, per partition, the next offset to read."""

    topic_id: str
    next: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The name of the query's subscription and where each topic stands."""

    subscription: str
    topics: Mapping[str, TopicPosition]

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return {
            "v": VERSION,
            "sub": self.subscription,
            "topics": {
                name: {
                    "id": topic.topic_id,
                    "next": {str(part): topic.next[part] for part in sorted(topic.next)},
                }
                for name, topic in sorted(self.topics.items())
            },
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> SourceOffsets:
        """Read what :meth:`to_json` wrote.

        Raises:
            UnsupportedFormat: written by a newer version, or by another source.
            Corruption: the version is ours and the rest is not.
        """
        version = found.get("v") if isinstance(found, Mapping) else None
        if version != VERSION:
            raise UnsupportedFormat(
                f"the Spark checkpoint holds offsets of format {version!r}; this release reads "
                f"{VERSION}: upgrade danube-spark, or use the checkpoint of this source"
            )
        try:
            topics = {
                str(name): TopicPosition(
                    str(topic["id"]),
                    {int(part): int(offset) for part, offset in topic["next"].items()},
                )
                for name, topic in found["topics"].items()
            }
            return cls(str(found["sub"]), topics)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corruption(
                f"the offsets in the Spark checkpoint cannot be read ({error!r}): {found!r}; "
                "restore the checkpoint, or start with a new one and 'startingOffsets'"
            ) from None
