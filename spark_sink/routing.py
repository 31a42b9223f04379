"""Which partition each row goes to, a column at a time.

A key always goes to the same partition, by the hash all Danube clients use (FNV-1a 64 modulo the
number of partitions). Rows without a key are spread by whole batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from danube.core.errors import InvalidRequest

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)

Partitions = npt.NDArray[np.int32]


def hash_partitions(keys: pa.BinaryArray, partitions: int) -> Partitions:
    """``danube.core.names.partition_of`` for every key (none null), vectorised.

    Works along the keys: step i hashes byte i of all keys that are long enough.
    """
    count = len(keys)
    hashes = np.full(count, _FNV_OFFSET, np.uint64)
    if count:
        starts, lengths, data = _bytes_of(keys)
        order = np.argsort(-lengths, kind="stable")
        starts, sorted_lengths = starts[order], lengths[order]
        working = hashes.copy()
        # Longest first: at step i the keys with more than i bytes are the first `active` ones.
        steps = np.arange(1, int(sorted_lengths[0]) + 1)
        active = np.searchsorted(-sorted_lengths, -steps, side="right")
        for step, some in enumerate(active):
            piece = working[:some]
            piece ^= data[starts[:some] + step]
            piece *= _FNV_PRIME
        hashes[order] = working
    return (hashes % np.uint64(partitions)).astype(np.int32)


def _bytes_of(
    keys: pa.BinaryArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """(start, length) of each key and the bytes they point into, without a copy."""
    _, offsets, values = keys.buffers()
    bounds = np.frombuffer(memoryview(cast(Any, offsets)), np.int32)
    bounds = bounds[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.zeros(0, np.uint8)
    if values is not None:
        data = np.frombuffer(memoryview(cast(Any, values)), np.uint8)
    return cast(Any, bounds[:-1]), cast(Any, np.diff(bounds)), data


def route(
    records: pa.RecordBatch,
    *,
    partitions: int,
    keyless: int,
    explicit: pa.Array[Any] | None,
    topic: str,
) -> Partitions:
    """The partition of each row.

    Args:
        records: messages, with the binary column ``key``.
        partitions: how many the topic has.
        keyless: partition for this batch's rows that have no key.
        explicit: the DataFrame's column ``partition``; where it is not null, it decides.
        topic: name, for the message.

    Raises:
        InvalidRequest: an explicit partition does not exist.
    """
    keys = records.column("key")
    chosen = np.full(records.num_rows, keyless, np.int32)
    if partitions > 1 and keys.null_count < len(keys):
        encoded: Any = pc.dictionary_encode(keys)
        by_key = hash_partitions(encoded.dictionary, partitions)
        at = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        chosen = np.where(at >= 0, by_key[at], chosen)
    if explicit is not None and explicit.null_count < len(explicit):
        wanted = explicit.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        given = explicit.is_valid().to_numpy(zero_copy_only=False)
        bad = wanted[given & ((wanted < 0) | (wanted >= partitions))]
        if len(bad):
            raise InvalidRequest(
                f"the column 'partition' has {bad[0]}; {topic} has {partitions} (from 0)"
            )
        chosen = np.where(given, wanted, chosen)
    return chosen.astype(np.int32)


def split(records: pa.RecordBatch, chosen: Partitions) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, its rows in their order) for each partition that has rows."""
    if not len(chosen):
        return
    first = int(chosen[0])
    if (chosen == first).all():
        yield first, records
        return
    order: Any = np.argsort(chosen, kind="stable")
    gathered = records.take(pa.array(order))
    parts, starts = np.unique(chosen[order], return_index=True)
    for part, start, end in zip(parts, starts, [*starts[1:], len(chosen)], strict=True):
        yield int(part), gathered.slice(int(start), int(end - start))
