"""Records of sinks: what was written is read, and only if nobody else wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from danube.core.errors import InvalidRequest
from danube.core.names import PartitionId
from danube.core.stores import Compare
from danube.metadata import keys
from danube.metadata.catalog import LostPart, Participant, SinkRecord, SinkRecords
from danube.metadata.memory import MemoryMetadata
from tests.unit.metadata.records import some_id

PARTITION = PartitionId(some_id(3), 2)
RECORD = SinkRecord(
    query_id="q/ü",
    sink_name="s",
    run_id="r2",
    streaming=True,
    decided_us=5,
    last_batch_id=7,
    commit_id="c",
    participants=(Participant("/ns/t", PARTITION),),
    finished=False,
    lost=(LostPart("/ns/t", PARTITION, "staged", 3, 9),),
    fenced_runs=("r0", "r1"),
    aborted=("x",),
)


async def test_a_sinks_record_is_read_as_it_was_written(memory: MemoryMetadata) -> None:
    sinks = SinkRecords(memory)
    assert await sinks.read("q/ü", "s") is None
    written = await sinks.write(RECORD, None)
    assert written is not None
    found = await sinks.read("q/ü", "s")
    assert found == RECORD
    assert found is not None
    assert found.revision == written.revision > 0


async def test_a_write_after_somebody_elses_is_refused(memory: MemoryMetadata) -> None:
    sinks = SinkRecords(memory)
    first = await sinks.write(RECORD, None)
    assert first is not None
    assert await sinks.write(RECORD, None) is None
    second = await sinks.write(replace(first, finished=True), first)
    assert second is not None
    assert await sinks.write(replace(first, run_id="other"), first) is None
    assert await sinks.remove(first) is False
    assert await sinks.write(second, second, [Compare.absent(keys.sink("q/ü", "s"))]) is None
    assert await sinks.remove(second) is True
    assert await sinks.page() == []


async def test_records_are_listed_page_by_page(memory: MemoryMetadata) -> None:
    sinks = SinkRecords(memory)
    for number in range(5):
        await sinks.write(replace(RECORD, query_id=f"q{number}"), None)
    first = await sinks.page(limit=3)
    rest = await sinks.page((first[-1].query_id, first[-1].sink_name), limit=3)
    assert [record.query_id for record in first + rest] == ["q0", "q1", "q2", "q3", "q4"]


@pytest.mark.parametrize(("query", "sink"), [("", "s"), ("q", ""), ("q" * 501, "s")])
async def test_a_sink_without_a_proper_name_is_refused(
    memory: MemoryMetadata, query: str, sink: str
) -> None:
    with pytest.raises(InvalidRequest, match="characters"):
        await SinkRecords(memory).read(query, sink)
