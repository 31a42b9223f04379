from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.core.batch import message_records
from danube.core.errors import InvalidRequest
from danube.core.names import partition_of
from spark_sink.routing import hash_partitions, route, split


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 17), st.integers(0, 5))
def test_the_vectorised_hash_is_the_one_of_all_danube_clients(
    keys: list[bytes], partitions: int, skip: int
) -> None:
    array = pa.array(keys, pa.binary()).slice(skip)
    expected = [partition_of(key, partitions) for key in keys[skip:]]
    assert hash_partitions(array, partitions).tolist() == expected


def records(keys: list[bytes | None]) -> pa.RecordBatch:
    values = [str(at).encode() for at in range(len(keys))]
    return message_records(values, keys=keys, now_us=0, producer="p")


def routed(keys: list[bytes | None], explicit: list[int | None] | None = None) -> list[int]:
    column = None if explicit is None else pa.array(explicit, pa.int32())
    chosen = route(records(keys), partitions=3, keyless=2, explicit=column, topic="/ns/t")
    found: list[int] = chosen.tolist()
    return found


def test_known_keys_go_where_official_clients_send_them() -> None:
    # Seen in a run of the official Python client (wire-contract.md, 1.4).
    assert routed([b"a", b"order-123", b"payment", b"shipping"]) == [1, 0, 0, 2]


def test_rows_without_a_key_go_to_the_batchs_partition() -> None:
    assert routed([None, b"a", None]) == [2, 1, 2]


def test_an_explicit_partition_wins_where_it_is_given() -> None:
    assert routed([b"a", b"a", None], [0, None, 1]) == [0, 1, 1]


def test_a_partition_that_does_not_exist_is_refused() -> None:
    for bad in (3, -1):
        with pytest.raises(InvalidRequest, match=f"has {bad}; /ns/t has 3"):
            routed([None, None], [0, bad])


@given(st.lists(st.integers(0, 4), max_size=50))
def test_a_split_keeps_every_row_and_its_order(parts: list[int]) -> None:
    import numpy as np

    given_rows = records([None] * len(parts))
    found = dict(split(given_rows, np.array(parts, np.int32)))
    for part, rows in found.items():
        expected = [str(at).encode() for at, chosen in enumerate(parts) if chosen == part]
        assert rows.column("value").to_pylist() == expected
    assert sum(rows.num_rows for rows in found.values()) == len(parts)
