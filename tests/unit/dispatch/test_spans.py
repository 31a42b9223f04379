"""Maps from offsets to values, in spans."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from operator import eq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.dispatch.spans import Span, SpanMap

OFFSETS = st.integers(0, 30)


def test_neighbours_with_equal_values_are_one_span() -> None:
    spans: SpanMap[str] = SpanMap()
    spans.add(0, 5, "a")
    spans.add(10, 15, "a")
    spans.add(15, 20, "b")
    spans.add(5, 10, "a")
    assert list(spans) == [Span(0, 15, "a"), Span(15, 20, "b")]
    assert (spans.total, len(spans), spans.first()) == (20, 2, Span(0, 15, "a"))


def test_offsets_are_in_the_map_once() -> None:
    spans: SpanMap[str] = SpanMap()
    spans.add(5, 10, "a")
    for start, end in ((0, 6), (9, 12), (6, 7), (0, 20), (5, 10)):
        with pytest.raises(ValueError, match="overlaps"):
            spans.add(start, end, "b")
    assert list(spans) == [Span(5, 10, "a")]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "cut", "values"]), OFFSETS, OFFSETS, st.integers(0, 2))
    )
)
def test_it_is_a_dictionary_of_offsets(steps: list[tuple[str, int, int, int]]) -> None:
    spans: SpanMap[int] = SpanMap()
    model: dict[int, int] = {}
    for kind, start, end, value in steps:
        inside = {offset: model[offset] for offset in range(start, end) if offset in model}
        if kind == "add" and not inside:
            spans.add(start, end, value)
            model.update(dict.fromkeys(range(start, end), value))
        elif kind == "cut":
            assert _flat(spans.within(start, end)) == inside
            assert _flat(spans.cut(start, end)) == inside
            model = {offset: held for offset, held in model.items() if offset not in inside}
        elif kind == "values":
            gone = {offset: held for offset, held in model.items() if held == value}
            assert _flat(spans.cut_values(partial(eq, value))) == gone
            model = {offset: held for offset, held in model.items() if held != value}
        found = list(spans)
        assert _flat(found) == dict(sorted(model.items()))
        assert spans.total == len(model)
        assert all(a.end < b.start or a.value != b.value for a, b in pairwise(found))


def _flat(spans: object) -> dict[int, int]:
    assert hasattr(spans, "__iter__")
    return {offset: span.value for span in spans for offset in range(span.start, span.end)}
