"""One opened segment of the archive: its footer, and its row groups, read one at a time.

The batches of a row group are contiguous in one buffer, in the form in which they are served: a run of them is a slice,
without copying. The file stays open, once per concurrently reading thread, because reopening doubles the cost of a
read. Instances are thread-safe. This module imports pyarrow; brokers without an archive do not import it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import fs, parquet

from tidegate.records.batch_header import INT32, INT64, LAST_DELTA_AT
from tidegate.records.segments import COLUMNS, FORMAT_VERSION, METADATA_KEY, SegmentMissing, SegmentUnreadable

_START_BYTES: Final = 4
_BYTES_PER_FOOTER_BYTE: Final = 14
"""Memory of a parsed footer, by the bytes that it has in the file: measured 11 to 14.5, with 1 to 128 row groups."""
_COLUMN_AT: Final = {name: at for at, (name, _) in enumerate(COLUMNS)}


class RowGroup(NamedTuple):
    """A row group by the footer: offsets of its first and last record, largest timestamp in ms."""

    from_offset: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class _Offsets(Sequence[int]):
    """The first (or last) offset of each batch, from its header: further columns would make each read slower."""

    __slots__ = ("_data", "_last", "_starts")

    def __init__(self, data: memoryview, starts: Sequence[int], *, last: bool) -> None:
        self._data, self._starts, self._last = data, starts, last

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        start = self._starts[range(len(self))[at]]
        base: int = INT64.unpack_from(self._data, start)[0]
        return base + INT32.unpack_from(self._data, start + LAST_DELTA_AT)[0] if self._last else base


class Batches:
    """The batches of one row group: batch i is `data[starts[i]:starts[i + 1]]`, offsets `bases[i]` to `lasts[i]`."""

    __slots__ = ("bases", "data", "lasts", "starts")

    def __init__(self, data: memoryview, starts: Sequence[int]) -> None:
        self.data = data
        self.starts = starts
        self.bases: Sequence[int] = _Offsets(data, starts, last=False)
        self.lasts: Sequence[int] = _Offsets(data, starts, last=True)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def memory_bytes(self) -> int:
        """The bytes of the buffers."""
        return self.data.nbytes + len(self.starts) * _START_BYTES

    def batch(self, at: int) -> memoryview:
        """One whole batch."""
        return self.data[self.starts[at] : self.starts[at + 1]]

    def find(self, offset: int) -> int:
        """Index of the first batch that ends above `offset`; `len` if none does."""
        return bisect_left(self.lasts, offset)

    def fit(self, at: int, bytes_max: int) -> int:
        """How many whole batches from index `at` have at most `bytes_max` bytes together."""
        return bisect_right(self.starts, self.starts[at] + bytes_max, lo=at) - 1 - at


class _OpenFile(NamedTuple):
    source: pa.NativeFile
    file: parquet.ParquetFile


class SegmentFile:
    """A segment's footer. `fields` is the writer's metadata: org, topic, topic_id, partition, ..."""

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        """Read the footer of the file at `path`. Raises SegmentMissing, SegmentUnreadable."""
        self.path = path
        self._filesystem = filesystem
        self._remote = filesystem.type_name != "local"
        self._footer: Any = None
        opened = self._opened()
        file = opened.file
        self._footer = file.metadata
        self._idle = [opened]
        self.fields = _fields(path, self._footer.metadata or {})
        if file.schema_arrow.names[: len(COLUMNS)] != list(_COLUMN_AT):
            raise SegmentUnreadable(f"{path}: its columns are not those of a segment")
        self.row_groups = [self._row_group(at) for at in range(self._footer.num_row_groups)]
        self._lasts = [group.last_offset for group in self.row_groups]

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the footer, mostly pyarrow's objects for each column of each row group."""
        size: int = self._footer.serialized_size
        return size * _BYTES_PER_FOOTER_BYTE

    def find(self, offset: int) -> int:
        """Index of the row group with the first batch that ends above `offset`; their number if none does."""
        return bisect_left(self._lasts, offset)

    def read(self, index: int) -> Batches:
        """One row group's batches, as views of the bytes read. Raises SegmentMissing, SegmentUnreadable."""
        column = self.table(index, ("batch",)).column(0)
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        _, starts, data = array.buffers()
        return Batches(memoryview(data).cast("B"), memoryview(starts).cast("B").cast("i"))  # pyarrow's are signed

    def table(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One row group as a table, of `columns` or all. Raises SegmentMissing, SegmentUnreadable."""
        try:
            opened = self._idle.pop()
        except IndexError:
            opened = self._opened()
        try:
            table = opened.file.read_row_group(index, columns=columns and list(columns), use_threads=False)
        except FileNotFoundError as error:
            raise SegmentMissing(f"{self.path}: there is no such file") from error
        except (OSError, pa.ArrowException) as error:
            raise SegmentUnreadable(f"{self.path}: row group {index}: {error}") from error
        self._idle.append(self._reader(opened.source) if self._remote else opened)
        return table

    def _reader(self, source: pa.NativeFile) -> _OpenFile:
        """A reader of the open file, with the known footer.

        One of a remote file pre-buffers, so that a row group is one ranged GET, and retains the bytes: it reads once.
        """
        return _OpenFile(source, parquet.ParquetFile(source, metadata=self._footer, pre_buffer=self._remote))

    def _opened(self) -> _OpenFile:
        try:
            return self._reader(self._filesystem.open_input_file(self.path))
        except FileNotFoundError as error:
            raise SegmentMissing(f"{self.path}: there is no such file") from error
        except (OSError, pa.ArrowException) as error:
            raise SegmentUnreadable(f"{self.path}: {error}") from error

    def _row_group(self, at: int) -> RowGroup:
        group = self._footer.row_group(at)

        def statistics(name: str) -> Any:
            found = group.column(_COLUMN_AT[name]).statistics
            if found is None or not found.has_min_max:
                raise SegmentUnreadable(f"{self.path}: no statistics of {name}")
            return found

        return RowGroup(
            statistics("from_offset").min,
            statistics("base_offset").min,
            statistics("last_offset").max,
            statistics("max_timestamp").max,
        )


def open_archive(uri: str) -> tuple[fs.FileSystem, str]:
    """The pyarrow filesystem of an archive and the root in it. Accepts a local folder or a URI (file, s3, gs, ...).

    Raises ValueError with a reason in one line, without the keys in the URI.
    """
    if "://" not in uri:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).replace(uri, _without_keys(uri))
        raise ValueError(f"the archive cannot be opened at {_without_keys(uri)}: {reason}") from error
    return filesystem, root.rstrip("/")


def _without_keys(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    login, _, place = rest.rpartition("@")
    return f"{scheme}://***@{place}" if login else uri


def _fields(path: str, metadata: dict[bytes, bytes]) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(metadata[METADATA_KEY])
        version = fields["version"]
    except (KeyError, ValueError, TypeError):
        raise SegmentUnreadable(f"{path}: it is not a segment of an archive") from None
    if version != FORMAT_VERSION:
        raise SegmentUnreadable(f"{path}: format version {version} is not known here, only {FORMAT_VERSION}")
    return fields
