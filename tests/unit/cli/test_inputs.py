from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cli import inputs
from danube.cli.ahead import chunks
from danube.cli.inputs import Outgoing
from danube.cli.output import bytes_fields
from danube.core.errors import InvalidRequest


def parse(*lines: str) -> list[Outgoing]:
    stream = io.BytesIO("\n".join(lines).encode())
    return list(inputs.json_lines(stream, None))


def test_a_line_is_a_message_without_its_end() -> None:
    stream = io.BytesIO(b"one\r\ntwo\n\n\xff\nlast")
    values = [item.value for item in inputs.plain(stream, b"k")]
    assert values == [b"one", b"two", b"", b"\xff", b"last"]


def test_every_plain_line_has_the_common_key() -> None:
    assert [item.key for item in inputs.plain(io.BytesIO(b"a\nb\n"), b"k")] == [b"k", b"k"]


def test_a_line_beyond_the_bound_is_refused_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "MAX_LINE_BYTES", 4)
    reading = inputs.plain(io.BytesIO(b"1234\n12345\n"), None)
    with pytest.raises(InvalidRequest, match="line 2 is longer"):
        list(reading)


def test_json_lines_carry_key_and_attributes() -> None:
    (item,) = parse('{"value": "v", "key": "k", "attributes": {"a": "b"}}')
    assert item == Outgoing(b"v", b"k", {"a": "b"})


def test_a_value_that_is_not_text_becomes_compact_json() -> None:
    assert [item.value for item in parse('{"value": {"a": [1, "é"]}}', '{"value": 0}')] == [
        '{"a":[1,"é"]}'.encode(),
        b"0",
    ]


def test_empty_lines_between_objects_are_skipped() -> None:
    assert len(parse('{"value": "a"}', "", '{"value": "b"}', "")) == 2


def test_a_line_with_its_own_key_does_not_get_the_common_one() -> None:
    stream = io.BytesIO(b'{"value": "a", "key": "own"}\n{"value": "b"}\n')
    assert [item.key for item in inputs.json_lines(stream, b"common")] == [b"own", b"common"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "no value"),
        ('{"value": null}', "no value"),
        ('{"value": "a", "kex": "b"}', "unknown field 'kex'"),
        ('{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        ('{"value_base64": "***"}', "value_base64 is not base64"),
        ('{"value_base64": 5}', "value_base64 is not base64"),
        ('{"value": "a", "attributes": {"n": 1}}', "attributes are not an object of texts"),
        ('{"value": "a", "attributes": ["n"]}', "attributes are not an object of texts"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^line 2: {why}"):
        parse('{"value": "fine"}', line)


@given(value=st.binary(), key=st.none() | st.binary(min_size=1))
def test_what_read_prints_can_be_produced_again(value: bytes, key: bytes | None) -> None:
    printed = {"offset": 1, **bytes_fields("value", value), **bytes_fields("key", key)}
    assert parse(json.dumps(printed)) == [Outgoing(value, key)]


def test_bytes_that_are_not_text_are_printed_as_base64() -> None:
    assert bytes_fields("value", b"\xff") == {
        "value_base64": base64.b64encode(b"\xff").decode(),
    }


def test_chunks_hold_everything_in_order_within_their_bounds() -> None:
    items = [Outgoing(b"x" * (index % 7)) for index in range(1000)]
    got = list(chunks(iter(items), max_messages=64, max_bytes=100))
    assert [item for chunk in got for item in chunk] == items
    assert all(0 < len(chunk) <= 64 for chunk in got)
    assert all(sum(len(item.value) for item in chunk) < 100 + 7 for chunk in got)


def test_a_slow_pipe_is_not_waited_for_to_fill_a_chunk() -> None:
    gate = threading.Event()

    def slow() -> Iterator[Outgoing]:
        yield Outgoing(b"first")
        assert gate.wait(10)
        yield Outgoing(b"second")

    arriving = chunks(slow(), max_messages=100, max_bytes=1000)
    assert next(arriving) == [Outgoing(b"first")]
    gate.set()
    assert next(arriving) == [Outgoing(b"second")]


def test_a_bad_line_does_not_swallow_the_good_ones_before_it() -> None:
    stream = io.BytesIO(b'{"value": "good"}\nbad\n')
    arriving = chunks(inputs.json_lines(stream, None), max_messages=10, max_bytes=1000)
    assert next(arriving) == [Outgoing(b"good")]
    with pytest.raises(InvalidRequest, match="line 2"):
        next(arriving)
