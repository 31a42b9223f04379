"""A real broker in a process of its own, and the few calls that these tests make to it."""

from __future__ import annotations

import os
import queue
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from danube.core.batch import message_records
from danube.core.frames import decode_frame, encode_frame, parse_frame
from danube.core.names import TopicId, producer_id
from danube.testing import brokers
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import channel_options

READY_TIMEOUT_S = 60


class BrokerProcess(brokers.BrokerProcess):
    """``danube broker`` on one data directory and one port, through kills and restarts."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        self._metrics = f"127.0.0.1:{brokers.free_port()}"
        changed = {name.replace("__", "."): value for name, value in settings.items()}
        changed["broker.metrics_listen"] = self._metrics
        super().__init__(data_dir, settings=changed)
        self._channel: grpc.Channel | None = None

    def stop(self) -> None:
        """SIGTERM it and wait."""
        super().stop()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # --- calls ---------------------------------------------------------------------------------

    @property
    def batch(self) -> rpc.BatchServiceStub:
        """The data plane."""
        return rpc.BatchServiceStub(self._connected())

    @property
    def admin(self) -> rpc.BatchAdminStub:
        """Topics and the like."""
        return rpc.BatchAdminStub(self._connected())

    def _connected(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.url, options=channel_options())
        grpc.channel_ready_future(self._channel).result(READY_TIMEOUT_S)
        return self._channel

    def create(self, topic: str, partitions: int = 0) -> None:
        """Create a reliable topic."""
        request = pb.CreateTopicRequest(
            topic=topic, partitions=partitions, options=pb.TopicOptions(reliable=True)
        )
        self.admin.CreateTopic(request, timeout=20)

    def publish(
        self,
        topic: str,
        partition: int,
        values: Sequence[str],
        *,
        keys: Sequence[str | None] | None = None,
    ) -> None:
        """Append messages; returns when they are durable."""
        requests: queue.SimpleQueue[pb.PublishRequest | None] = queue.SimpleQueue()
        responses: Any = self.batch.Publish(iter(requests.get, None), timeout=30)
        name = os.urandom(8).hex()
        opening = pb.PublishOpen(topic=topic, partition=partition, producer_name=name)
        requests.put(pb.PublishRequest(open=opening))
        opened = next(responses).opened
        frame = encode_frame(
            message_records(values, keys=keys, now_us=1_700_000_000_000_000, producer="test"),
            topic_id=TopicId.parse(opened.topic_id).raw,
            partition=partition,
            producer_id=opened.producer_id or producer_id(TopicId.parse(opened.topic_id), name),
            producer_epoch=opened.producer_epoch,
            first_sequence=0,
        )
        requests.put(pb.PublishRequest(frame=frame.to_bytes()))
        receipt = next(responses).receipt
        assert not receipt.HasField("failure"), receipt.failure
        requests.put(None)
        for _ in responses:
            pass

    def roll(self, topic: str) -> None:
        """Bring everything durable into the table."""
        self.admin.Roll(pb.RollRequest(topic=topic), timeout=60)

    def lookup(self, topic: str) -> pb.LookupResponse:
        """Where the topic stands."""
        return self.batch.Lookup(pb.LookupRequest(topic=topic), timeout=20)

    def values(self, topic: str) -> list[list[str]]:
        """What readers see, per partition."""
        found = self.lookup(topic)
        return [list(self._read(found, info)) for info in found.partitions]

    def _read(self, found: pb.LookupResponse, info: pb.PartitionInfo) -> Iterator[str]:
        if info.durable_offset == info.log_start_offset:
            return
        request = pb.ReadRequest(
            topic=found.topic,
            topic_id=found.topic_id,
            partition=info.partition,
            start=info.log_start_offset,
            end=info.durable_offset,
        )
        for response in self.batch.Read(request, timeout=30):
            records = decode_frame(parse_frame(response.frame))
            span = response.span
            values: Any = records.column("value").slice(
                span.start - response.base_offset, span.end - span.start
            )
            yield from (value.decode() for value in values.to_pylist())

    def metric(self, name: str) -> float:
        """The sum of a counter over its labels; 0 when it does not show yet."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^danube_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))
