"""From what an application has to frames: nothing lost, nothing above the bound, order kept."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.client.outbox import MESSAGE_OVERHEAD_BYTES
from danube.client.splitting import by_partition, by_size, to_batches
from danube.core.batch import message_bytes, message_records
from danube.core.errors import InvalidRequest
from danube.core.names import partition_of


def records(values: list[bytes], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    return message_records(values, keys=keys, now_us=0, producer="p")


@given(st.lists(st.binary(max_size=300), max_size=60), st.integers(1, 2000))
def test_slices_are_as_large_as_allowed_and_no_larger(values: list[bytes], bound: int) -> None:
    whole = records(values)
    slices = list(by_size(whole, batch_bytes=bound, max_message_bytes=10_000))
    assert [value for part, _ in slices for value in part.column("value").to_pylist()] == values
    sizes = [(each or 0) + MESSAGE_OVERHEAD_BYTES for each in message_bytes(whole).to_pylist()]
    at = 0
    for part, size in slices:
        assert size == sum(sizes[at : at + part.num_rows])
        assert size <= bound or part.num_rows == 1
        at += part.num_rows
        assert at == len(sizes) or size + sizes[at] > bound


@given(st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=60), st.integers(2, 7))
def test_keys_stay_in_order_in_their_partition(keys: list[bytes | None], partitions: int) -> None:
    values = [b"%d" % number for number in range(len(keys))]

    def choose(distinct: list[bytes | None]) -> list[int]:
        return [0 if key is None else partition_of(key, partitions) for key in distinct]

    parts = dict(by_partition(records(values, keys), choose))
    for partition in range(partitions):
        expected = [v for v, k in zip(values, keys, strict=True) if choose([k]) == [partition]]
        found = parts[partition].column("value").to_pylist() if partition in parts else []
        assert found == expected


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000, 30_000])
@pytest.mark.parametrize("size", [0, 1000])
def test_iterables_and_lists_are_taken_whole_in_bounded_pieces(count: int, size: int) -> None:
    values = [b"%d" % number + b"x" * size for number in range(count)]
    for given_ in (values, iter(values), pa.array(values, pa.binary())):
        batches = list(to_batches(given_, None, producer="p", now_us=0))
        found = [value for batch in batches for value in batch.column("value").to_pylist()]
        assert found == values
        assert all(batch.nbytes < 12 << 20 for batch in batches)


def test_keys_belong_to_lists() -> None:
    with pytest.raises(InvalidRequest, match="2 keys for 1 values"):
        list(to_batches([b"v"], ["a", "b"], producer="p", now_us=0))
    with pytest.raises(InvalidRequest, match="iterator"):
        list(to_batches(iter([b"v"]), ["a"], producer="p", now_us=0))
    with pytest.raises(InvalidRequest, match="column 'key'"):
        list(to_batches(records([b"v"]), ["a"], producer="p", now_us=0))
    with pytest.raises(InvalidRequest, match="a single one"):
        list(to_batches(b"v", None, producer="p", now_us=0))  # type: ignore[arg-type]
