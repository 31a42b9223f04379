"""Durability of what other libraries wrote into a store behind our back (deltalake's checkpoints).

A directory needs an fsync for it; a bucket is durable by itself and has nothing to offer here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from danube.core.stores import ObjectStore


@runtime_checkable
class NeedsSync(Protocol):
    """A store in which an object written by somebody else may not be on the disk yet."""

    def sync(self, keys: Sequence[str]) -> None:
        """Bring these objects and their directories to the disk. Raises ObjectNotFound."""


def sync(store: ObjectStore, keys: Sequence[str]) -> None:
    """Make objects durable that others wrote into ``store``, where that takes anything."""
    if isinstance(store, NeedsSync):
        store.sync(keys)
