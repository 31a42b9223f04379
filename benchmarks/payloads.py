"""What is sent: random bytes, which nothing compresses by accident, and the real flights."""

from __future__ import annotations

import os
from functools import cache
from typing import Final, cast

import pyarrow as pa

SIZES: Final = {"1 KiB": 1024, "100 B": 100}
"""The message sizes that every size-dependent question asks about."""


def random_values(count: int, size: int) -> pa.BinaryArray:
    """``count`` values of ``size`` random bytes each, as one Arrow array."""
    ends = pa.array(range(0, (count + 1) * size, size), pa.int32())
    data = pa.py_buffer(os.urandom(count * size))
    made = pa.Array.from_buffers(pa.binary(), count, [None, ends.buffers()[1], data])
    assert isinstance(made, pa.BinaryArray)
    return made


def random_list(count: int, size: int) -> list[bytes]:
    """The same as a list."""
    return cast("list[bytes]", random_values(count, size).to_pylist())


def random_records(total_bytes: int, size: int) -> pa.RecordBatch:
    """Random messages of ``size`` bytes, ``total_bytes`` of values in all."""
    values = random_values(max(total_bytes // size, 1), size)
    return pa.RecordBatch.from_arrays([values], names=["value"])


@cache
def flights() -> tuple[list[str | None], list[str]]:
    """Keys (tail numbers) and JSON texts of the year's flights, in time order."""
    from danube.testing.demo.flights import load, steps

    keys: list[str | None] = []
    values: list[str] = []
    for step in steps(load(), 1_000_000):
        keys += step.keys
        values += step.values
    return keys, values
