"""The broker as a process: settings in, signals handled, one exit code out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from danube.broker.server import Broker
from danube.broker.settings import BrokerSettings
from danube.core import telemetry
from danube.core.errors import DanubeError, InvalidRequest
from danube.core.settings import Loaded

LOG = telemetry.get_logger(__name__)
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STORAGE = 70
"""The journal's disk failed: the process must not go on, and must not be taken for healthy."""


def run(loaded: Loaded[BrokerSettings]) -> int:
    """Run a broker until it is told to stop; returns the process's exit code."""
    settings = loaded.model
    telemetry.configure_logging(
        settings.broker.log_level, json=settings.broker.log_format == "json"
    )
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings))
    except InvalidRequest as error:
        print(f"danube broker: {error}", file=sys.stderr)
        return EXIT_USAGE
    except DanubeError as error:
        print(f"danube broker: {error}", file=sys.stderr)
        return EXIT_FAILED


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: about a fifth more calls per second."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: BrokerSettings) -> int:
    broker = Broker(settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    broker.on_failure = _die
    try:
        await broker.start()
    except BaseException:
        await broker.stop()
        raise
    print(f"danube broker ready on {broker.url}", flush=True)
    await stopped.wait()
    LOG.info("stopping")
    await broker.stop()
    return EXIT_OK


def _die(error: BaseException) -> None:
    """End the process at once: after a failed sync nothing that is in memory may be trusted."""
    LOG.error("the journal's disk failed; ending the process", error=str(error))
    sys.stderr.flush()
    os._exit(EXIT_STORAGE)
