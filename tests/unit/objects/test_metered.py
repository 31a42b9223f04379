"""Metrics change nothing of what a store does, and count what it did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from danube.core.stores import ObjectExists, ObjectStore
from danube.core.telemetry import REGISTRY
from danube.objects.faulty import FaultyObjects
from danube.objects.local import LocalObjects
from danube.objects.memory import MemoryObjects
from danube.objects.metered import MeteredObjects
from danube.objects.syncing import sync
from tests.conformance.objects import ObjectStoreConformance


class TestMeteredObjects(ObjectStoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MeteredObjects(MemoryObjects())


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"danube_{name}", labels) or 0.0


def test_bytes_and_failures_are_counted() -> None:
    store = MeteredObjects(MemoryObjects())
    written = count("object_store_bytes_total", direction="written")
    failed = count("object_store_failures_total", operation="create", error="ObjectExists")
    store.create("k", b"12345")
    with pytest.raises(ObjectExists):
        store.create("k", b"12345")
    assert count("object_store_bytes_total", direction="written") == written + 5
    assert (
        count("object_store_failures_total", operation="create", error="ObjectExists") == failed + 1
    )


def test_a_sync_reaches_the_directory_behind_any_wrapper(tmp_path: Path) -> None:
    synced: list[str] = []

    class Watched(LocalObjects):
        def sync(self, keys: Sequence[str]) -> None:
            synced.extend(keys)

    store = MeteredObjects(FaultyObjects(Watched(tmp_path), lambda operation, key: None))
    sync(store, ["a", "b"])
    assert synced == ["a", "b"]
    sync(MeteredObjects(MemoryObjects()), ["a"])
