"""What a task tells the driver: all that connects ``write`` with ``commit``.

Spark makes a new writer for the commit, in another process, so nothing else survives.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One staged set: durable at the partition's owner, invisible, without offsets."""

    set_id: str
    topic: str
    topic_id: str
    partition: int
    count: int
    bytes: int


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What one task staged, and for which batch.

    Attributes:
        query_id: of the query, stable over restarts; of a batch write, its transaction.
        run_id: of this run of the query.
        batch_id: Spark's.
        parts: the staged sets, in the order in which they are to become visible.
    """

    query_id: str
    run_id: str
    batch_id: int
    parts: tuple[StagedPart, ...]
