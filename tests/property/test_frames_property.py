"""Whatever messages there are, a frame brings them back unchanged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.core.batch import message_bytes, message_records
from danube.core.errors import DanubeError
from danube.core.frames import Codec, encode_frame, parse_frame, validate_frame
from danube.core.limits import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
MESSAGES = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.binary(max_size=200),
        st.none() | st.integers(MIN_TIMESTAMP_US, MAX_TIMESTAMP_US),
        st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    min_size=1,
    max_size=40,
)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
PLACES = st.fixed_dictionaries(
    {
        "topic_id": st.binary(min_size=16, max_size=16),
        "partition": U32,
        "producer_id": U64,
        "producer_epoch": U32,
        "first_sequence": U64,
        "codec": st.sampled_from(Codec),
    }
)


def records_of(messages: list[Any], producer: str) -> pa.RecordBatch:
    keys, values, times, attributes = map(list, zip(*messages, strict=True))
    return message_records(
        values,
        keys=keys,
        timestamps_us=times,
        attributes=attributes,
        now_us=7,
        producer=producer,
    )


@given(MESSAGES, PLACES, TEXT)
def test_a_frame_brings_its_messages_back(
    messages: list[Any], place: dict[str, Any], producer: str
) -> None:
    records = records_of(messages, producer)
    frame = parse_frame(encode_frame(records, **place).to_bytes())
    assert validate_frame(frame).equals(records)
    for name, value in place.items():
        assert getattr(frame.header, name) == value


@given(MESSAGES, st.data())
def test_a_frame_of_a_slice_holds_the_slice(messages: list[Any], data: st.DataObject) -> None:
    records = records_of(messages, "p")
    start = data.draw(st.integers(0, records.num_rows - 1))
    part = records.slice(start, data.draw(st.integers(1, records.num_rows - start)))
    place = {"topic_id": bytes(16), "partition": 0, "producer_id": 1, "producer_epoch": 1}
    frame = encode_frame(part, first_sequence=0, **place)  # type: ignore[arg-type]
    assert validate_frame(frame).equals(part)


@given(MESSAGES)
def test_sizes_are_those_counted_one_by_one(messages: list[Any]) -> None:
    def size(message: Any) -> int:
        key, value, _, attributes = message
        texts = sum(len(k.encode()) + len(v.encode()) + 12 for k, v in (attributes or {}).items())
        return len(key or b"") + len(value) + len(b"p") + texts

    assert message_bytes(records_of(messages, "p")).to_pylist() == list(map(size, messages))


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_refused_with_one_of_our_errors(data: bytes) -> None:
    for attempt in (data, b"DNBF\x01\x68\x00" + data):
        try:
            validate_frame(parse_frame(attempt))
        except DanubeError:
            continue
        raise AssertionError("random bytes passed for a frame")
