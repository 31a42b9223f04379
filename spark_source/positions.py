"""Where a read starts and ends, as an option says it: ``earliest``, ``latest`` or JSON.

The JSON is that of Spark's Kafka source, ``{"/ns/topic": {"0": 17, "1": -2}}``, where -2 stands
for earliest and -1 for latest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from danube.core.errors import InvalidSettings
from danube.core.names import TopicName

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Positions:
    """One position per topic partition: an offset, :data:`EARLIEST` or :data:`LATEST`.

    Attributes:
        everywhere: the position of every partition, or None when ``exact`` names each.
        exact: topic -> partition -> position.
    """

    everywhere: int | None
    exact: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, option: str, text: str) -> Positions:
        """Read the text of ``option``.

        Raises:
            InvalidSettings: neither a word nor such a JSON object.
        """
        word = _WORDS.get(text.lower())
        if word is not None:
            return cls(word)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise InvalidSettings(
                f"the option {option!r} is {text!r}; give earliest, latest or JSON such as "
                '{"/default/events": {"0": 17, "1": -2}} (-2 earliest, -1 latest)'
            )
        return cls(None, {str(name): _partitions(option, name, of) for name, of in found.items()})

    def of(self, option: str, topic: str, partition: int) -> int:
        """The position of one partition.

        Raises:
            InvalidSettings: the JSON does not name it.
        """
        if self.everywhere is not None:
            return self.everywhere
        position = self.exact.get(topic, {}).get(partition)
        if position is None:
            raise InvalidSettings(
                f"the option {option!r} has no offset for partition {partition} of {topic}; name "
                "every partition of every topic that is read (-2 earliest, -1 latest)"
            )
        return position

    def check_topics(self, option: str, topics: tuple[str, ...]) -> None:
        """Refuse JSON that names topics which are not read. Raises InvalidSettings."""
        for topic in self.exact:
            if topic not in topics:
                raise InvalidSettings(
                    f"the option {option!r} names {topic}, which is not in 'subscribe' "
                    f"({', '.join(topics)})"
                )


def _partitions(option: str, topic: str, of: Any) -> dict[int, int]:
    TopicName.parse(topic)
    if isinstance(of, dict):
        try:
            found = {int(partition): offset for partition, offset in of.items()}
        except ValueError:
            found = {}
        good = all(type(offset) is int and offset >= EARLIEST for offset in found.values())
        if found and good and min(found) >= 0:
            return found
    raise InvalidSettings(
        f"the option {option!r} has {json.dumps(of)} for {topic}; give each partition's number "
        'its offset, such as {"0": 17, "1": -2}'
    )
