from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.core.errors import InvalidName, InvalidRequest
from danube.core.offsets import OffsetRange
from danube.wire import translate
from danube.wire._generated import DanubeBatch_pb2 as pb

HEX = "00112233445566778899aabbccddeeff"


@given(ends=st.tuples(*[st.integers(0, translate.MAX_OFFSET)] * 2))
def test_ranges_of_offsets_survive_the_wire(ends: tuple[int, int]) -> None:
    offsets = OffsetRange(min(ends), max(ends))
    sent = pb.OffsetSpan.FromString(translate.span_of(offsets).SerializeToString())
    assert translate.range_of(sent) == offsets


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\[5, 3\) end before they start"):
        translate.range_of(pb.OffsetSpan(start=5, end=3))


def test_empty_spans_mean_nothing() -> None:
    spans = [pb.OffsetSpan(start=3, end=3), pb.OffsetSpan(start=4, end=6)]
    assert translate.ranges_of(spans) == [OffsetRange(4, 6)]


@given(
    st.sampled_from(["latest", "earliest"])
    | st.integers(0, 2**63 - 1)
    | st.datetimes(timezones=st.just(UTC))
)
def test_start_positions_survive_the_wire(start: Any) -> None:
    message = pb.StartPosition.FromString(translate.start_to_proto(start).SerializeToString())
    assert translate.start_from_proto(message) == start


def test_a_time_is_an_instant_whatever_its_zone() -> None:
    east = datetime(2013, 1, 1, 6, tzinfo=timezone(timedelta(hours=1)))
    message = translate.start_to_proto(east)
    assert message.time_us == 1_357_016_400_000_000
    assert translate.start_from_proto(message) == datetime(2013, 1, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "start", ["newest", -1, 1 << 63, True, 1.5, None, datetime(2013, 1, 1)], ids=repr
)
def test_other_start_positions_are_refused(start: Any) -> None:
    with pytest.raises(InvalidRequest):
        translate.start_to_proto(start)


def test_an_absent_start_position_is_the_default() -> None:
    assert translate.start_from_proto(pb.StartPosition()) == "latest"
    assert translate.start_from_proto(pb.StartPosition(), default="earliest") == "earliest"


@pytest.mark.parametrize(
    "message", [pb.StartPosition(offset=1 << 63), pb.StartPosition(time_us=1 << 62)], ids=str
)
def test_start_positions_out_of_range_are_refused(message: pb.StartPosition) -> None:
    with pytest.raises(InvalidRequest):
        translate.start_from_proto(message)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared", "spark"])
def test_kinds_of_subscriptions_survive_the_wire(kind: str) -> None:
    assert translate.kind_from_proto(translate.kind_to_proto(kind)) == kind


def test_every_kind_on_the_wire_has_a_word() -> None:
    for number in pb.SubscriptionType.values():
        assert translate.kind_from_proto(number)


def test_unknown_kinds_are_refused_in_both_directions() -> None:
    with pytest.raises(InvalidRequest, match="use one of exclusive, shared"):
        translate.kind_to_proto("broadcast")
    with pytest.raises(InvalidRequest, match="number 17"):
        translate.kind_from_proto(17)


def test_an_empty_topic_id_means_whichever_topic_has_the_name() -> None:
    assert translate.optional_topic_id("") is None
    assert str(translate.optional_topic_id(HEX)) == HEX


@pytest.mark.parametrize("text", ["0", HEX[:-1], HEX + "0", "g" * 32, "/a/b"])
def test_ids_that_are_not_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        translate.topic_id(text)
    with pytest.raises(InvalidName):
        translate.set_id(text)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "é" * 200])
def test_names_off_the_grammar_are_refused_wherever_they_come_in(name: str) -> None:
    for check in (
        translate.subscription_name,
        translate.consumer_name,
        translate.producer_name,
        translate.topic_name,
    ):
        with pytest.raises(InvalidName):
            check(name)


def test_a_partition_the_topic_does_not_have_is_refused() -> None:
    assert translate.partition_number(3, 4) == 3
    with pytest.raises(InvalidRequest, match="no partition 4; the topic has 4"):
        translate.partition_number(4, 4)
    with pytest.raises(InvalidRequest, match="too many"):
        translate.partition_count(10_001)
