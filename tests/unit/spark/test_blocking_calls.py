from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from danube.core.errors import DeadlineExceeded, InvalidRequest, TopicNotFound, Unavailable
from danube.wire import blocking
from danube.wire.blocking import Patience, batch_stub, retrying
from danube.wire.quickack import quick_ack
from tests.unit.spark.scripted_broker import ScriptedBroker


def failing(*errors: Exception) -> Callable[[float], str]:
    waiting = list(errors)

    def call(timeout_s: float) -> str:
        assert timeout_s > 0
        if waiting:
            raise waiting.pop(0)
        return "done"

    return call


def test_what_passes_is_tried_again_and_what_does_not_is_raised_at_once() -> None:
    passing = failing(Unavailable("a"), DeadlineExceeded("b"))
    assert retrying("work", Patience(5.0), passing) == "done"
    with pytest.raises(TopicNotFound, match=r"^gone$"):
        retrying("work", Patience(5.0), failing(TopicNotFound("gone")))


def test_progress_starts_the_time_out_again() -> None:
    patience = Patience(0.2)
    patience.wait(Unavailable("away"), "reading")
    assert patience.remaining_s() < 0.2
    patience.progressed()
    assert patience.remaining_s() == 0.2


def test_without_patience_the_first_failure_is_the_last() -> None:
    with pytest.raises(Unavailable, match=r"^work failed for 0 s and was given up: a$"):
        retrying("work", Patience(0.0), failing(Unavailable("a")))


def test_a_channel_is_kept_for_the_process_and_not_used_after_a_fork(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_stub(broker.url)
    first = blocking._channels[broker.url]
    batch_stub(broker.url)
    assert blocking._channels[broker.url] is first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    batch_stub(broker.url)
    assert blocking._channels[broker.url] is not first
    first.close()


def test_a_url_that_is_none_is_refused_with_an_example() -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        batch_stub("ftp://somewhere/x")


def test_a_broker_that_is_not_there_is_unavailable() -> None:
    from danube.wire._generated import DanubeBatch_pb2 as pb

    with pytest.raises(Unavailable, match="no broker answers"):
        retrying(
            "looking up",
            Patience(0.0),
            lambda timeout: batch_stub("127.0.0.1:1").Lookup(pb.LookupRequest(), timeout=timeout),
        )
    blocking.close_channels()


def test_quick_ack_bears_any_open_file() -> None:
    reading, writing = os.pipe()
    quick_ack()
    os.close(reading)
    os.close(writing)
