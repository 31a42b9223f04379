from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from danube.core.offsets import OffsetRange, RangeSet
from spark_source.admission import advance, readable, share_out


def test_each_partition_gets_the_same_fraction_of_its_backlog() -> None:
    assert share_out({"a": 1000, "b": 3000}, 400) == {"a": 100, "b": 300}


def test_a_small_backlog_is_not_starved_by_a_large_one() -> None:
    assert share_out({"small": 1, "large": 1_000_000}, 10) == {"small": 1, "large": 9}


def test_with_fewer_messages_than_partitions_the_first_are_served() -> None:
    assert share_out({"a": 5, "b": 5, "c": 5}, 2) == {"a": 1, "b": 1}


@given(st.dictionaries(st.integers(0, 30), st.integers(0, 10**9)), st.integers(0, 10**6))
def test_shares_use_the_whole_limit_and_never_exceed_a_backlog(
    backlogs: dict[int, int], limit: int
) -> None:
    shares = share_out(backlogs, limit)
    assert sum(shares.values()) == min(limit, sum(backlogs.values()))
    assert all(0 < share <= backlogs[key] for key, share in shares.items())


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10)), max_size=5),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 60),
)
def test_an_advance_passes_exactly_the_messages_it_was_given(
    spans: list[tuple[int, int]], start: int, length: int, messages: int
) -> None:
    lost = RangeSet(OffsetRange(at, at + size) for at, size in spans)
    end = start + length
    reached = advance(start, messages, end, lost)
    assert start <= reached <= max(end, start)
    assert readable(start, reached, lost) == min(messages, readable(start, end, lost))


def test_a_lost_range_at_the_end_is_stepped_over() -> None:
    lost = RangeSet([OffsetRange(5, 10)])
    assert advance(0, 5, 10, lost) == 10
    assert advance(0, 5, 12, lost) == 5
    assert advance(5, 0, 10, lost) == 10
