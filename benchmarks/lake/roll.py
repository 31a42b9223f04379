"""From journal to committed Parquet, beside pyarrow writing the same table to one file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import MIB, NO_ROLLS, Bench
from benchmarks.measure import Stopwatch, in_turns
from benchmarks.messaging.publishing import Publisher, publisher
from benchmarks.payloads import flights, random_records
from benchmarks.results import Figure, Row, Setup, compared
from danube.client.client import Client
from danube.core.batch import TABLE_SCHEMA

AT_LEAST = 0.7
ROW_GROUP_ROWS = 50_000


def run(bench: Bench) -> Iterator[Row]:
    """Random 1 KiB messages, for which there is a target, and the real flights."""
    records = random_records(bench.sizes.roll_mib * MIB, 1024)
    yield _roll(bench, "1 KiB random", records, AT_LEAST)
    keys, values = flights()
    some = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"])
    yield _roll(bench, "flights as JSON, about 180 B", some, None)


def _roll(bench: Bench, payload: str, records: pa.RecordBatch, at_least: float | None) -> Row:
    size = records.nbytes
    with bench.broker(NO_ROLLS) as broker, bench.entered(publisher(broker.url)) as topic:
        table = bench.wait(_first_roll(topic, records))
        alone = bench.new_directory("pyarrow")
        figures = in_turns(
            {"ours": _roller(bench, topic, records), "peer": _writer(table, size, alone)},
            bench.repeats,
        )
        shutil.rmtree(alone)
    return compared(
        bench.name,
        f"roll, {payload.split(',')[0]}",
        Figure.of("B/s", figures["ours"]),
        Figure.of("B/s", figures["peer"]),
        Setup(
            payload=payload,
            batch=f"{records.num_rows} messages, {size // MIB} MiB, one Delta commit",
            durability="files, directories and Delta commit synced",
            client="admin.roll: the broker reads its journal, writes, syncs, commits",
            peer="pyarrow.parquet.write_table of the same table from memory, zstd 1, row groups of "
            "50 000, a new file each time, not synced",
        ),
        at_least=at_least,
    )


async def _first_roll(topic: Publisher, records: pa.RecordBatch) -> pa.Table:
    """Fill the table once, and read what the peer is to write."""
    await topic.send_batch(records)
    await topic.roll()
    files = [pq.read_table(path, partitioning=None) for path in await table_files(topic)]
    return pa.concat_tables(files)


async def table_files(topic: Publisher) -> list[Path]:
    """The Parquet files of the topic's table."""
    directory = await table_directory(topic.client, topic.topic)
    return sorted(directory.glob("partition=*/*.parquet"))


async def table_directory(client: Client, topic: str) -> Path:
    """Where the topic's table lies."""
    described = await client.admin.describe_topic(topic)
    return Path(described.table_uri.removeprefix("file://"))


def _roller(bench: Bench, topic: Publisher, records: pa.RecordBatch) -> Callable[[], float]:
    def roll() -> float:
        bench.wait(topic.send_batch(records))
        return records.nbytes / bench.wait(topic.roll())

    return roll


def _writer(table: pa.Table, size: int, directory: Path) -> Callable[[], float]:
    """Writes a new file every time, as a roll does: overwriting one finds its pages cached."""
    number = count()
    known = [name for name in TABLE_SCHEMA.names if name in table.column_names]
    ordered = table.select(known)

    def write() -> float:
        path = directory / f"{next(number)}.parquet"
        watch = Stopwatch()
        pq.write_table(
            ordered, path, compression="zstd", compression_level=1, row_group_size=ROW_GROUP_ROWS
        )
        return size / watch.seconds

    return write
