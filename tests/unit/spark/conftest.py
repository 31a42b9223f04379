from __future__ import annotations

from collections.abc import Iterator

import pytest

from danube.wire.blocking import close_channels
from tests.unit.spark.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A scripted broker that listens on a free port."""
    scripted = ScriptedBroker()
    scripted.start()
    yield scripted
    close_channels()
    scripted.stop()
