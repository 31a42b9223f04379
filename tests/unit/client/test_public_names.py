"""``import danube`` is one curated list, and costs nothing until a name is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import danube


def test_the_public_list_is_this_one() -> None:
    assert len(set(danube.__all__)) == len(danube.__all__)
    assert set(danube._HOME_OF) | {"blocking"} == set(danube.__all__)
    assert set(danube.__all__) == {
        "MESSAGE_SCHEMA", "Admin", "AlreadyExists", "Client", "ClientSettings", "Consumer",
        "Corruption", "CursorInfo", "DanubeError", "DataLost", "DeadlineExceeded", "Delivery",
        "FailedPrecondition", "InvalidName", "InvalidRequest", "MemoryFull", "Message",
        "MessageId", "MessageRange", "MessageTooLarge", "MessagesView", "NotFound",
        "OffsetOutOfRange", "OutOfRange", "OutcomeUnknown", "PartitionView", "Producer",
        "ProducerCounts", "ProducerFenced", "Reader", "ReceivedBatch", "ResourceExhausted",
        "SinkInfo", "SubscriptionBusy", "SubscriptionInfo", "SubscriptionNotFound",
        "TopicDescription", "TopicInfo", "TopicNotFound", "TopicReplaced", "TopicView",
        "Unavailable", "Unsupported", "VerifyStep", "blocking", "connect",
    }  # fmt: skip


def test_every_public_name_is_there_and_documented() -> None:
    for name in danube.__all__:
        found = getattr(danube, name)
        assert name in dir(danube)
        if name != "MESSAGE_SCHEMA":
            assert found.__doc__, name
    with pytest.raises(AttributeError, match="nothing_like_it"):
        danube.nothing_like_it  # noqa: B018


def test_the_twin_has_a_list_too() -> None:
    module = importlib.import_module("danube.blocking")
    assert module.__all__ == ["Admin", "Client", "Consumer", "Producer", "Reader", "connect"]


@pytest.mark.parametrize("module", ["danube", "danube.core.names", "danube.core.frames"])
def test_importing_a_part_loads_neither_grpc_nor_the_client(module: str) -> None:
    script = (
        f"import sys, {module}; print([m for m in ('grpc', 'danube.client') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
