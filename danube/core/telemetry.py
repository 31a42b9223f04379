"""Logs and metrics, the same way in every room; importing this changes nothing in the process.

Logs are events with fields (structlog): ``log.info("segment recycled", segment=7)``, one line per
state change, none per message. They go through the standard library's ``danube`` logger, so an
application that embeds the client decides with its own configuration what becomes of them;
:func:`configure_logging` is for processes of our own.

Metrics are declared once, at module level, by the room that counts. They live in a registry of our
own, so they neither meet nor show up among those of an application.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from structlog.typing import EventDict, WrappedLogger

from danube.core.errors import InvalidSettings, Unavailable

PREFIX: Final = "danube_"
ROOT_LOGGER: Final = "danube"
REGISTRY: Final = CollectorRegistry()
# From a fraction of an fsync to a stuck object store.
DURATION_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_FIELDS: Final = "danube_fields"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module (pass ``__name__``); its events take any fields by keyword."""
    full = name if name == ROOT_LOGGER or name.startswith(ROOT_LOGGER + ".") else f"danube.{name}"
    logger = structlog.wrap_logger(
        logging.getLogger(full),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _to_record,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast(structlog.stdlib.BoundLogger, logger)


def configure_logging(
    level: str = "info", json: bool = False, stream: TextIO | None = None
) -> None:
    """Send our logs to a stream (standard error), as JSON lines or as text for people.

    Calling it again replaces what the call before set up.

    Raises:
        InvalidSettings: the level is not debug, info, warning, error or critical.
    """
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise InvalidSettings(
            f"there is no log level {level!r}; use debug, info, warning, error or critical"
        )
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_EventFormatter(json, colors=handler.stream.isatty()))
    root = logging.getLogger(ROOT_LOGGER)
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(known[level.upper()])
    # Our lines appear once, also where an application has handlers on the root logger.
    root.propagate = False


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
    """Declare a count that only grows; it is exposed as ``danube_<name>_total``."""
    return Counter(PREFIX + name, help, labels, registry=REGISTRY)


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a value that goes up and down; its unit belongs at the end of the name."""
    return Gauge(PREFIX + name, help, labels, registry=REGISTRY)


def histogram(
    name: str,
    help: str,
    labels: Sequence[str] = (),
    buckets: Sequence[float] = DURATION_BUCKETS_S,
) -> Histogram:
    """Declare a distribution; the buckets fit seconds unless others are given."""
    return Histogram(PREFIX + name, help, labels, registry=REGISTRY, buckets=buckets)


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running metrics endpoint; ``port`` is the real one where 0 was asked for."""

    host: str
    port: int
    _server: WSGIServer
    _thread: threading.Thread

    def stop(self) -> None:
        """Stop serving and free the port; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def serve_metrics(host: str, port: int) -> MetricsServer:
    """Serve our metrics, and those of the process, at ``http://host:port/metrics``.

    Raises:
        Unavailable: the port is taken or the address is not ours.
    """
    try:
        server, thread = start_http_server(port, host, registry=_WithProcess())
    except OSError as error:
        raise Unavailable(
            f"cannot serve metrics on {host}:{port}: {error.strerror}; "
            "choose another port, or 0 for any free one"
        ) from error
    return MetricsServer(host, server.server_port, server, thread)


class _WithProcess(CollectorRegistry):
    """Our registry and, only where a process serves metrics, those of process and interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.register(REGISTRY)
        ProcessCollector(registry=self)
        PlatformCollector(registry=self)
        GCCollector(registry=self)


class _EventFormatter(logging.Formatter):
    """Renders our events, and plain records of others below our logger, in one shape."""

    def __init__(self, json: bool, colors: bool) -> None:
        super().__init__()
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        self._render: Any
        if json:
            self._render = structlog.processors.JSONRenderer(default=str)
        else:
            self._render = structlog.dev.ConsoleRenderer(colors=colors)
        self._json = json

    def format(self, record: logging.LogRecord) -> str:
        """Return one line (and, for people, a traceback below it)."""
        fields: EventDict | None = getattr(record, _FIELDS, None)
        event: EventDict = {} if fields is None else dict(fields)
        event.setdefault("event", record.getMessage())
        event["level"] = record.levelname.lower()
        event["logger"] = record.name
        event = self._stamp(record, "", event)
        if record.exc_info:
            event["exc_info"] = record.exc_info
            if self._json:
                event = structlog.processors.format_exc_info(record, "", event)
        return str(self._render(record, "", event))


def _to_record(
    logger: WrappedLogger, method: str, event: EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    """Make a record whose message reads well under any handler and that keeps its fields."""
    passed = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    fields = {key: value for key, value in event.items() if key != "event"}
    text = " ".join([str(event.get("event", "")), *(f"{k}={v!r}" for k, v in fields.items())])
    return (text,), {"extra": {_FIELDS: dict(event)}, **passed}
