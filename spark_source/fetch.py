"""What an executor does with its pieces: files by itself, the tail as frames from its owner."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from danube.core.errors import Corruption, DanubeError, NotFound
from danube.core.frames import decode_frame, parse_frame
from danube.core.limits import MIB
from danube.wire._generated import DanubeBatch_pb2 as pb
from spark_source.admission import advance, readable
from spark_source.broker import Broker
from spark_source.planning import Planner, Range
from spark_source.schema import frame_columns, to_target
from spark_source.splits import Piece

_log = logging.getLogger("danube.spark.source")

SMALL_BATCH_BYTES: Final = 1 * MIB
LARGE_BATCH_BYTES: Final = 2 * MIB
"""Batches of 1-2 MB crossed to the JVM fastest."""


OpenFile: TypeAlias = Callable[[Piece, list[str]], Iterator[pa.RecordBatch]]
"""Batches with the named columns of a piece's file, for exactly the piece's offsets."""


def from_lake(piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Read a piece's Parquet file.

    Raises:
        NotFound: it is gone, or cannot be reached from here.
    """
    from danube.lake.reader import read_file  # a task of tail frames needs no Parquet

    uri = piece.uri or ""
    if uri.startswith("file://") and not os.access(unquote(urlsplit(uri).path), os.R_OK):
        raise NotFound(f"{uri} cannot be reached on this host")
    return read_file(uri, piece, piece.start, piece.end, columns)


@dataclass(slots=True)
class Fetcher:
    """Reads one task's pieces.

    Attributes:
        broker: the query's broker, for re-planning; owners are named by the pieces.
        target: the Arrow schema of what comes out.
        fail_on_data_loss: raise where offsets are gone.
        frame_fallbacks: files that could not be read here and came as frames from a broker.
        open_file: reads columns of a piece's file.
    """

    broker: Broker
    target: pa.Schema
    fail_on_data_loss: bool
    frame_fallbacks: int = 0
    open_file: OpenFile = from_lake

    def read(self, pieces: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
        """Every message of ``pieces``, in order, in batches of about 1-2 MB.

        Raises:
            DataLost: offsets are gone and that is to fail.
            Corruption: a file or a broker left out offsets that are not recorded as lost.
            DanubeError: the broker refused, or was away for too long.
        """
        return resized(batch for piece in pieces for batch in self._piece(piece))

    def _piece(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if piece.uri is None:
            yield from self._tail(piece)
            return
        at = piece.start
        try:
            for batch in self._file(piece):
                yield batch
                at = advance(at, batch.num_rows, piece.end, piece.lost_set())
        except NotFound:
            yield from self._replanned(piece.between(at, piece.end))

    def _file(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        due = readable(piece.start, piece.end, piece.lost_set())
        got = 0
        for batch in self.open_file(piece, self.target.names):
            got += batch.num_rows
            yield to_target(batch, self.target)
        if got != due:
            raise Corruption(
                f"{piece.uri} has {got} messages of partition {piece.partition} of {piece.topic} "
                f"in [{piece.start}, {piece.end}), not {due}; run 'danube verify {piece.topic}'"
            )

    def _replanned(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The file is gone (retention, compaction) or on another host: ask where its range is."""
        _log.info("%s cannot be found here; asking the broker again", piece.uri)
        planner = Planner(self.broker, fail_on_data_loss=self.fail_on_data_loss)
        wanted = Range(piece.topic, piece.topic_id, piece.partition, piece.start, piece.end)
        for found in planner.plan([wanted]):
            yield from self._second_try(found, same_file=found.uri == piece.uri)

    def _second_try(self, piece: Piece, *, same_file: bool) -> Iterator[pa.RecordBatch]:
        if piece.uri is None:
            yield from self._tail(piece)
            return
        at = piece.start
        try:
            if not same_file:
                for batch in self._file(piece):
                    yield batch
                    at = advance(at, batch.num_rows, piece.end, piece.lost_set())
                return
        except NotFound:
            pass
        self.frame_fallbacks += 1
        _log.warning(
            "%s is in the table and cannot be read on this host; its messages come from the "
            "broker instead: mount the broker's data directory here, or use an object store",
            piece.uri,
        )
        yield from self._tail(piece.between(at, piece.end))

    def _tail(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Frames of the piece's range; goes on where it was when the stream breaks."""
        at, url = piece.start, piece.broker_url
        patience = self.broker.patience()
        while at < piece.end:
            try:
                for response in self.broker.read(url, self._request(piece, at)):
                    yield self._decode(piece, response, at)
                    at = response.span.end
                    patience.progressed()
                self._check_end(piece, at)
                return
            except DanubeError as error:
                what = f"reading partition {piece.partition} of {piece.topic} from {url}"
                patience.wait(error, what)
                url = self.broker.owner(piece.topic, piece.partition)

    def _request(self, piece: Piece, at: int) -> pb.ReadRequest:
        return pb.ReadRequest(
            topic=piece.topic,
            topic_id=piece.topic_id,
            partition=piece.partition,
            start=at,
            end=piece.end,
            skip_lost=not self.fail_on_data_loss,
        )

    def _decode(self, piece: Piece, response: pb.ReadResponse, at: int) -> pa.RecordBatch:
        start, end = response.span.start, response.span.end
        if start < at or end > piece.end or not start < end:
            raise Corruption(
                f"the broker sent offsets [{start}, {end}) of partition {piece.partition} of "
                f"{piece.topic} where [{at}, {piece.end}) was asked for"
            )
        if start > at:
            self._check_gap(piece, at, start)
        records = decode_frame(parse_frame(response.frame))
        records = records.slice(start - response.base_offset, end - start)
        if records.num_rows != end - start:
            raise Corruption(
                f"a frame of partition {piece.partition} of {piece.topic} at offset "
                f"{response.base_offset} is shorter than its span [{start}, {end})"
            )
        return frame_columns(
            records,
            topic=piece.topic,
            partition=piece.partition,
            base_offset=start,
            append_time_us=response.append_time_us,
            target=self.target,
        )

    def _check_end(self, piece: Piece, at: int) -> None:
        if at < piece.end:
            self._check_gap(piece, at, piece.end)

    def _check_gap(self, piece: Piece, start: int, end: int) -> None:
        """Nothing came for [start, end): right only for lost ranges that may be stepped over."""
        if self.fail_on_data_loss and not piece.lost_set().covers(start, end):
            raise Corruption(
                f"the broker left out offsets [{start}, {end}) of partition {piece.partition} of "
                f"{piece.topic}; run 'danube verify {piece.topic}'"
            )


def resized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about 1-2 MB: small ones joined, large ones cut (not copied)."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        size = batch.nbytes
        if waiting and waiting_bytes + size > LARGE_BATCH_BYTES:
            yield _joined(waiting)
            waiting, waiting_bytes = [], 0
        if size > LARGE_BATCH_BYTES:
            yield from _cut(batch, size)
        elif batch.num_rows:
            waiting.append(batch)
            waiting_bytes += size
            if waiting_bytes >= SMALL_BATCH_BYTES:
                yield _joined(waiting)
                waiting, waiting_bytes = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    # Not in pyarrow's stubs.
    return cast(pa.RecordBatch, cast(Any, pa).concat_batches(batches))


def _cut(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * SMALL_BATCH_BYTES // size)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
