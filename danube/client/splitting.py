"""From one big batch to frames: by partition, then by size, without a Python object per message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from danube.client.outbox import MESSAGE_OVERHEAD_BYTES
from danube.core.batch import Values, message_bytes, message_records, normalise_records
from danube.core.errors import InvalidRequest, MessageTooLarge
from danube.core.limits import MIB

CHUNK_BYTES: Final = 8 * MIB
"""About how much of a list or an iterable is made into Arrow at a time."""

SAMPLE_MESSAGES: Final = 64
"""So many of them tell how large they are."""

Batchable: TypeAlias = "pa.RecordBatch | pa.Table | Values | Iterable[bytes | str]"
Keys: TypeAlias = "Sequence[bytes | str | None] | pa.Array[Any] | pa.ChunkedArray[Any]"


def to_batches(
    given: Batchable, keys: Keys | None, *, producer: str, now_us: int
) -> Iterator[pa.RecordBatch]:
    """Whatever was given as record batches of messages.

    Raises:
        InvalidRequest: wrong columns or types, or keys of another number.
    """
    if isinstance(given, pa.RecordBatch | pa.Table):
        if keys is not None:
            raise InvalidRequest("Arrow records bring their keys as the column 'key'")
        yield normalise_records(given, producer=producer, now_us=now_us)
        return
    source: Any = given
    if isinstance(source, bytes | str):
        raise InvalidRequest("send_batch takes many values; use send for a single one")
    if isinstance(source, Sequence | pa.Array | pa.ChunkedArray):
        yield from _slices(source, keys, producer=producer, now_us=now_us)
        return
    if keys is not None:
        raise InvalidRequest("an iterator's values cannot have keys; give a list, or Arrow records")
    values = iter(source)
    while sample := list(islice(values, SAMPLE_MESSAGES)):
        sample.extend(islice(values, _chunk_messages(sample) - len(sample)))
        yield message_records(sample, producer=producer, now_us=now_us)


def _slices(
    values: Any, keys: Keys | None, *, producer: str, now_us: int
) -> Iterator[pa.RecordBatch]:
    if keys is not None and len(keys) != len(values):
        raise InvalidRequest(f"{len(keys)} keys for {len(values)} values; give as many")
    start = 0
    while start < len(values):
        end = start + _chunk_messages(values[start : start + SAMPLE_MESSAGES])
        yield message_records(
            values[start:end],
            keys=None if keys is None else keys[start:end],
            producer=producer,
            now_us=now_us,
        )
        start = end


def _chunk_messages(sample: Any) -> int:
    """How many messages like these make a chunk."""
    if isinstance(sample, pa.Array | pa.ChunkedArray):
        size = sample.nbytes
    else:
        size = sum(len(value) for value in sample if isinstance(value, bytes | str))
    each = size // len(sample) + MESSAGE_OVERHEAD_BYTES
    return max(SAMPLE_MESSAGES, CHUNK_BYTES // each)


def by_partition(
    records: pa.RecordBatch, partitions_of: Callable[[list[bytes | None]], list[int]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Records by the partition of their key, in their order; each distinct key is hashed once."""
    encoded: Any = records.column("key").dictionary_encode(null_encoding="encode")
    numbers = partitions_of(encoded.dictionary.to_pylist())
    each: Any = pa.array(numbers, pa.int32()).take(encoded.indices)
    for partition in sorted(set(numbers)):
        yield partition, records.filter(pc.equal(each, pa.scalar(partition, pa.int32())))


def by_size(
    records: pa.RecordBatch, *, batch_bytes: int, max_message_bytes: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Slices of about ``batch_bytes`` at most, each with its size; at least one message each.

    Raises:
        MessageTooLarge: before the first slice, if any message is above the limit.
    """
    if not records.num_rows:
        return
    sizes: Any = message_bytes(records)
    largest = pc.max(sizes).as_py()
    if largest > max_message_bytes:
        at = pc.index(sizes, largest).as_py()
        raise MessageTooLarge(
            f"message {at} has {largest} bytes; this topic takes at most {max_message_bytes}: "
            "split it, or raise the topic's limit"
        )
    ends: Any = pc.cumulative_sum(pc.add(sizes, MESSAGE_OVERHEAD_BYTES))
    start, before = 0, 0
    while start < len(ends):
        end = bisect_right(ends, before + batch_bytes, lo=start, key=lambda size: size.as_py())
        end = max(end, start + 1)
        after = ends[end - 1].as_py()
        yield records.slice(start, end - start), after - before
        start, before = end, after
