"""Objects that are written as they are made: a large one is never in memory as a whole.

A directory takes the bytes as they come. A store without that, as a bucket with its conditional
put, gets the whole object at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from danube.core.stores import Buffer, ObjectInfo, ObjectStore

Write: TypeAlias = Callable[[Buffer], object]
"""Takes the next bytes; they may be used again when it returns."""

Produce: TypeAlias = Callable[[Write], object]
"""Makes an object by writing its bytes in order; the same ones each time it is called."""


@runtime_checkable
class TakesStreams(Protocol):
    """A store that writes an object while it is made."""

    def create_from(self, key: str, produce: Produce) -> ObjectInfo:
        """As ``create``, with the bytes that ``produce`` writes."""


def create_from(store: ObjectStore, key: str, produce: Produce) -> ObjectInfo:
    """Create an object, if absent, from what ``produce`` writes.

    Raises:
        ObjectExists, ObjectStoreUnavailable: as ``create``; and whatever ``produce`` raises, in
            which case there is no object.
    """
    if isinstance(store, TakesStreams):
        return store.create_from(key, produce)
    whole = bytearray()
    produce(whole.extend)
    return store.create(key, whole)
