"""The way Spark takes objects to another process."""

from __future__ import annotations

from typing import TypeVar, cast

from pyspark import cloudpickle

T = TypeVar("T")


def travelled(thing: T) -> T:
    """``thing`` pickled and unpickled, as between driver and executor."""
    return cast(T, cloudpickle.loads(cloudpickle.dumps(thing)))  # type: ignore[no-untyped-call]
