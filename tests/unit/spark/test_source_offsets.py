from __future__ import annotations

import json

import pytest

from danube.core.errors import Corruption, UnsupportedFormat
from spark_source.offsets import SourceOffsets, TopicPosition

ID = "0123456789abcdef0123456789abcdef"


def test_offsets_have_the_format_of_the_architecture() -> None:
    offsets = SourceOffsets("mine", {"/ns/t": TopicPosition(ID, {1: 5, 0: 17})})
    assert json.dumps(offsets.to_json(), separators=(",", ":")) == (
        '{"v":1,"sub":"mine","topics":{"/ns/t":{"id":"' + ID + '","next":{"0":17,"1":5}}}}'
    )


def test_topics_and_partitions_are_sorted_so_that_equal_positions_are_equal_texts() -> None:
    many = {number: number for number in (10, 2, 1, 0)}
    one = SourceOffsets("s", {"/b/b": TopicPosition(ID, many), "/a/a": TopicPosition(ID, {})})
    other = SourceOffsets(
        "s", {"/a/a": TopicPosition(ID, {}), "/b/b": TopicPosition(ID, dict(sorted(many.items())))}
    )
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert list(one.to_json()["topics"]["/b/b"]["next"]) == ["0", "1", "2", "10"]


def test_offsets_survive_the_way_through_a_checkpoint() -> None:
    offsets = SourceOffsets("mine", {"/ns/t": TopicPosition(ID, {0: 17, 1: 5})})
    assert SourceOffsets.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade danube-spark"):
        SourceOffsets.from_json({"v": 2, "topics": {}})


@pytest.mark.parametrize("found", [{"v": 1}, {"v": 1, "sub": "s", "topics": {"/a/b": {"id": "x"}}}])
def test_damaged_offsets_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(Corruption, match="Spark checkpoint cannot be read"):
        SourceOffsets.from_json(found)
