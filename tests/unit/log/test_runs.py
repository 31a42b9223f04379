"""Runs of Spark queries as the broker knows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from danube.broker.queries import Queries
from danube.broker.settings import DispatchSettings
from danube.core.errors import SubscriptionBusy
from danube.core.names import TopicId
from tests.clocks import ManualClock

RECORD = cast(Any, SimpleNamespace(name="/default/t", topic_id=TopicId(b"t" * 16)))


def test_runs_that_ended_without_a_word_are_forgotten() -> None:
    clock = ManualClock()
    settings = DispatchSettings()
    queries = Queries(cast(Any, None), settings, clock)
    for number in range(100):
        queries._take(RECORD, f"spark-{number}", "run")
        clock.advance(settings.query_ttl_s / 10)
    assert len(queries._runs) <= 11
    with pytest.raises(SubscriptionBusy):
        queries.check_idle(RECORD, "spark-99")
    queries.check_idle(RECORD, "spark-0")
