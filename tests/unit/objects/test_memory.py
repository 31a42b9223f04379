"""The store in memory is an object store."""

from __future__ import annotations

import pytest

from danube.core.stores import ObjectStore
from danube.objects.memory import MemoryObjects
from tests.conformance.objects import ObjectStoreConformance


class TestMemoryObjects(ObjectStoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjects()
