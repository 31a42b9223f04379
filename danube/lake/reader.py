"""Reads offset ranges out of one Parquet file of a table, in Spark executors and brokers alike.

Imports neither deltalake nor boto3, and nothing of a broker. Row groups are chosen by their offset
statistics; footers are kept per process, for a file never changes under its name.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from danube.core.batch import TABLE_SCHEMA
from danube.core.errors import Corruption, InvalidRequest, Unsupported
from danube.core.stores import ObjectNotFound, ObjectStore
from danube.lake.layout import partition_of_path

# The stubs are older than Arrow.
pc: Final[Any] = pyarrow.compute

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 1536 * 1024
"""Batches of at most 10 000 rows and of 1-2 MB cross to the JVM fastest."""

FOOTERS: Final = 512
"""Parquet footers kept per process, about 5 KB each."""


class HasKey(Protocol):
    """A file of a table as :class:`danube.lake.snapshot.FileInfo` describes it."""

    @property
    def key(self) -> str:
        """In its object store."""


def read_file(
    source: ObjectStore | str,
    file: HasKey | object,
    start: int,
    end: int,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a file at offsets [start, end), ascending.

    Args:
        source: the object store that holds ``file.key``, or the URI of the file itself
            (``file://…``), for which ``file`` is not looked at.
        file: a :class:`danube.lake.snapshot.FileInfo`.
        start: first offset wanted.
        end: one above the last.
        columns: which of ``TABLE_SCHEMA``'s; the batches have them in that schema's order.
        verify: check the checksum of every page.

    Raises:
        ObjectNotFound: the file is gone (retention, compaction) or out of reach (another host,
            other rights); plan the range again, or have it as frames from a broker.
        Corruption: the file cannot be decoded.
        InvalidRequest: an unknown column.
        Unsupported: a URI that is not ``file://``.
    """
    name = source if isinstance(source, str) else f"{source.uri}/{cast(HasKey, file).key}"
    wanted = _columns(columns)
    try:
        with _open(source, file, name, verify) as parquet:
            yield from _read(parquet, name, start, end, wanted)
    except (ObjectNotFound, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        _FOOTERS.drop(name)
        raise _gone(name, error) from None
    except pa.ArrowException as error:
        raise _damaged(name, error) from error
    except OSError as error:
        # Arrow reports a bad page, and a file that is too short, as an OSError of its own.
        raise _damaged(name, error) from error


def row_groups_between(footer: pq.FileMetaData, start: int, end: int) -> list[int]:
    """The row groups that may hold offsets in [start, end), by their statistics."""
    bounds = _offset_bounds(footer)
    return [at for at, (least, most) in enumerate(bounds) if least < end and most >= start]


def _columns(columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(TABLE_SCHEMA.names)
    unknown = [name for name in columns if name not in TABLE_SCHEMA.names]
    if unknown:
        raise InvalidRequest(
            f"a topic's table has no column {unknown[0]!r}; choose of "
            f"{', '.join(TABLE_SCHEMA.names)}"
        )
    return [name for name in TABLE_SCHEMA.names if name in columns]


def _open(source: ObjectStore | str, file: object, name: str, verify: bool) -> pq.ParquetFile:
    path = _local_path(name)
    handle: Any = path
    if path is None:
        if isinstance(source, str):
            raise Unsupported(f"cannot read {name} yet: only file:// URIs")
        handle = pa.PythonFile(ObjectFile(source, cast(HasKey, file).key), mode="r")
    footer = _FOOTERS.get(name)
    parquet = pq.ParquetFile(
        handle, metadata=footer, pre_buffer=path is None, page_checksum_verification=verify
    )
    if footer is None:
        _FOOTERS.put(name, parquet.metadata)
    return parquet


def _local_path(uri: str) -> str | None:
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else None


def _read(
    parquet: pq.ParquetFile, name: str, start: int, end: int, wanted: list[str]
) -> Iterator[pa.RecordBatch]:
    stored = [column for column in wanted if column != "partition"]
    # The offsets decide which rows are meant, whether or not anybody asked for them.
    read = stored if "offset" in stored else [*stored, "offset"]
    groups = row_groups_between(parquet.metadata, start, end)
    if not groups:
        return
    partition = partition_of_path(name)
    if partition is None:
        raise Corruption(f"{name} is not named as a file of a topic's table")
    rows = _batch_rows(parquet.metadata, groups)
    # Threads would decode ahead of whoever takes the batches; tasks and brokers have their own.
    batches = parquet.iter_batches(rows, row_groups=groups, columns=read, use_threads=False)
    for batch in batches:
        cut = _cut(batch, start, end)
        if cut.num_rows:
            yield _shape(cut, wanted, partition)


def _batch_rows(footer: pq.FileMetaData, groups: list[int]) -> int:
    rows = sum(footer.row_group(group).num_rows for group in groups)
    size = sum(footer.row_group(group).total_byte_size for group in groups)
    return max(min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)), 1)


def _cut(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows at [start, end): offsets ascend, so that is one slice."""
    offsets = batch.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if start <= first and last < end:
        return batch
    if last - first + 1 == batch.num_rows:
        low, high = max(start - first, 0), min(end - first, batch.num_rows)
    else:  # a lost range lies in between
        low = pc.sum(pc.less(offsets, start)).as_py()
        high = pc.sum(pc.less(offsets, end)).as_py()
    return batch.slice(low, max(high - low, 0))


def _shape(batch: pa.RecordBatch, wanted: list[str], partition: int) -> pa.RecordBatch:
    arrays: list[Any] = []
    for name in wanted:
        if name == "partition":
            arrays.append(pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows))
        else:
            arrays.append(batch.column(name))
    schema = pa.schema([TABLE_SCHEMA.field(name) for name in wanted])
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _offset_bounds(footer: pq.FileMetaData) -> list[tuple[int, int]]:
    column = footer.schema.names.index("offset")
    bounds: list[tuple[int, int]] = []
    for at in range(footer.num_row_groups):
        statistics = footer.row_group(at).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            raise Corruption("a file of a topic's table has no statistics on its offsets")
        bounds.append((cast(int, statistics.min), cast(int, statistics.max)))
    return bounds


class ObjectFile(io.RawIOBase):
    """One object of a store as a seekable file; every read is one range request."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = store.head(key).size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """In bytes."""
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(self._size - self._at, 0)
        length = rest if size is None or size < 0 else min(size, rest)
        data = self._store.get_range(self._key, self._at, length) if length else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Footers:
    """The most recently used footers of this process."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._found: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> pq.FileMetaData | None:
        with self._lock:
            if name in self._found:
                self._found.move_to_end(name)
            return self._found.get(name)

    def put(self, name: str, footer: pq.FileMetaData) -> None:
        with self._lock:
            self._found[name] = footer
            while len(self._found) > self._bound:
                self._found.popitem(last=False)

    def drop(self, name: str) -> None:
        with self._lock:
            self._found.pop(name, None)


_FOOTERS = _Footers(FOOTERS)


def _gone(name: str, error: Exception) -> ObjectNotFound:
    return ObjectNotFound(
        f"the file {name} is gone, or out of this process's reach ({error}): retention or "
        "compaction removed it, or it is on another host. Plan the range again"
    )


def _damaged(name: str, error: Exception) -> Corruption:
    return Corruption(
        f"the file {name} cannot be read ({error}); restore it from a backup, and run `danube "
        "verify` on its topic"
    )
