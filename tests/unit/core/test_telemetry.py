"""Telemetry: events with fields, metrics of our own, nothing done by an import."""

from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from danube.core import telemetry
from danube.core.errors import InvalidSettings, Unavailable

EVENTS = telemetry.counter("telemetry_test_events", "Events of this test.", ["kind"])
LEVEL = telemetry.gauge("telemetry_test_level_bytes", "A level of this test.")
DURATION = telemetry.histogram("telemetry_test_duration_seconds", "A duration of this test.")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    logger = logging.getLogger(telemetry.ROOT_LOGGER)
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_json_event_has_its_fields_level_and_logger() -> None:
    stream = io.StringIO()
    telemetry.configure_logging("info", json=True, stream=stream)
    telemetry.get_logger("danube.journal").info("segment recycled", segment=7, name="x")
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "segment recycled",
        "segment": 7,
        "name": "x",
        "level": "info",
        "logger": "danube.journal",
    }


def test_bound_fields_are_in_every_event_and_values_may_be_of_any_type() -> None:
    stream = io.StringIO()
    telemetry.configure_logging("debug", json=True, stream=stream)
    log = telemetry.get_logger("spark_source").bind(topic=b"raw")
    log.debug("100 % read")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["topic"]) == ("100 % read", "b'raw'")
    assert line["logger"] == "danube.spark_source"


def test_an_error_carries_its_traceback_on_the_same_json_line() -> None:
    stream = io.StringIO()
    telemetry.configure_logging("info", json=True, stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        telemetry.get_logger("danube.x").exception("roll failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_text_for_people_names_event_and_fields() -> None:
    stream = io.StringIO()
    telemetry.configure_logging("info", json=False, stream=stream)
    telemetry.get_logger("danube.x").warning("table refused", topic="/a/b")
    assert "table refused" in stream.getvalue()
    assert "topic=/a/b" in stream.getvalue()


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    telemetry.configure_logging("warning", json=True, stream=stream)
    telemetry.get_logger("danube.x").info("quiet")
    assert stream.getvalue() == ""


def test_configuring_twice_writes_each_event_once() -> None:
    stream = io.StringIO()
    for _ in range(2):
        telemetry.configure_logging("info", json=True, stream=stream)
    telemetry.get_logger("danube.x").info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSettings, match="use debug, info"):
        telemetry.configure_logging("loud")


def test_without_configuration_an_application_gets_readable_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        telemetry.get_logger("danube.client").info("reconnected", broker="b:1", attempts=3)
    assert caplog.messages == ["reconnected broker='b:1' attempts=3"]


def scrape(server: telemetry.MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{server.host}:{server.port}/metrics", timeout=10) as reply:
        body: bytes = reply.read()
    return body.decode()


def test_served_metrics_have_our_prefix_and_those_of_the_process() -> None:
    EVENTS.labels("a").inc(3)
    LEVEL.set(5)
    DURATION.observe(0.02)
    server = telemetry.serve_metrics("127.0.0.1", 0)
    try:
        text = scrape(server)
    finally:
        server.stop()
    assert 'danube_telemetry_test_events_total{kind="a"} 3.0' in text
    assert "danube_telemetry_test_level_bytes 5.0" in text
    assert 'danube_telemetry_test_duration_seconds_bucket{le="0.025"} 1.0' in text
    assert "python_info" in text


def test_a_stopped_metrics_server_frees_its_port_and_stops_twice() -> None:
    server = telemetry.serve_metrics("127.0.0.1", 0)
    server.stop()
    server.stop()
    again = telemetry.serve_metrics("127.0.0.1", server.port)
    assert again.port == server.port
    again.stop()


def test_a_taken_metrics_port_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Unavailable, match="choose another port"):
            telemetry.serve_metrics("127.0.0.1", taken.getsockname()[1])


def test_a_metric_declared_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="Duplicated"):
        telemetry.counter("telemetry_test_events", "Again.")


def test_importing_telemetry_changes_no_global_state() -> None:
    program = """
import logging, threading, prometheus_client, structlog
from prometheus_client import REGISTRY
names = set(REGISTRY._names_to_collectors)
import danube.core.telemetry as telemetry
telemetry.counter("x", "x")
telemetry.get_logger("danube.y").info("said by a library")
assert set(REGISTRY._names_to_collectors) == names
assert not structlog.is_configured()
assert not logging.getLogger().handlers and not logging.getLogger("danube").handlers
assert threading.active_count() == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == done.stderr == ""
