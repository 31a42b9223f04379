"""A catalog on a store in memory, with time and ids that the test owns."""

from __future__ import annotations

import pytest

from danube.metadata.catalog import Catalog
from danube.metadata.memory import MemoryMetadata
from tests.clocks import CountedIds, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryMetadata:
    return MemoryMetadata(clock)


@pytest.fixture
def catalog(memory: MemoryMetadata, clock: ManualClock) -> Catalog:
    return Catalog(memory, clock, CountedIds())
