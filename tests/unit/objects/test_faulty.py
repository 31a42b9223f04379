"""Injected faults do what their names say, and nothing else."""

from __future__ import annotations

import pytest

from danube.core.stores import ObjectNotFound, ObjectStore, ObjectStoreUnavailable
from danube.objects.faulty import Crashed, Fault, FaultyObjects
from danube.objects.memory import MemoryObjects
from tests.conformance.objects import ObjectStoreConformance


class TestFaultyObjectsWithoutFaults(ObjectStoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyObjects(MemoryObjects(), lambda operation, key: None)


def failing(fault: Fault) -> tuple[MemoryObjects, FaultyObjects]:
    inner = MemoryObjects()
    return inner, FaultyObjects(inner, lambda op, key: fault if op == "create" else None)


@pytest.mark.parametrize(
    ("fault", "landed"), [(Fault.LOST_REPLY, True), (Fault.TIMEOUT, False), (Fault.REFUSED, False)]
)
def test_the_caller_cannot_tell_whether_it_landed(fault: Fault, landed: bool) -> None:
    inner, store = failing(fault)
    with pytest.raises(ObjectStoreUnavailable, match="not known"):
        store.create("k", b"1")
    assert bool(list(inner.list("k"))) is landed


@pytest.mark.parametrize(
    ("fault", "landed"), [(Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)]
)
def test_a_crash_is_no_ordinary_exception(fault: Fault, landed: bool) -> None:
    inner, store = failing(fault)
    with pytest.raises(Crashed):
        store.create("k", b"1")
    assert not issubclass(Crashed, Exception)
    assert bool(list(inner.list("k"))) is landed


def test_a_late_call_lands_when_it_is_delivered() -> None:
    inner, store = failing(Fault.LATE)
    with pytest.raises(ObjectStoreUnavailable):
        store.create("k", b"1")
    with pytest.raises(ObjectNotFound):
        inner.get("k")
    store.deliver_late()
    store.deliver_late()
    assert inner.get("k") == b"1"


def test_a_late_call_that_fails_is_heard_by_nobody() -> None:
    inner, store = failing(Fault.LATE)
    with pytest.raises(ObjectStoreUnavailable):
        store.create("k", b"late")
    inner.create("k", b"other")
    store.deliver_late()
    assert inner.get("k") == b"other"
