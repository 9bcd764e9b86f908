"""Arrow columns of decoded records: keys and values are gathered in C++, constants are made once and sliced.

A column of bytes is first a `binary_view`, 16 bytes an item that point into the records' own bytes, made in numpy;
its cast to `binary`, which is what Spark takes, does the copying.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate_pipeline.decode.fields import Fields, HeaderFields, NeedsSlowPath, Positions
from tidegate_pipeline.decode.schema import HEADERS_ARROW

_INLINE_BYTES_MAX: Final = 12
_CAPACITY_MIN: Final = 1 << 13

PADDING_BYTES: Final = 16
"""What may be read behind a field and then not be used."""


class Constant:
    """A column with one value in every row; `value` None makes nulls."""

    def __init__(self, value: Any, arrow_type: pa.DataType) -> None:
        self._scalar = pa.scalar(value, arrow_type)
        self._column = pa.repeat(self._scalar, _CAPACITY_MIN)

    def of(self, count: int) -> pa.Array:
        """The column of `count` rows: a slice, nothing is copied."""
        if count > len(self._column):
            self._column = pa.repeat(self._scalar, 2 * count)
        return self._column.slice(0, count)


@lru_cache(maxsize=64)
def constant(value: Any, arrow_type: pa.DataType) -> Constant:
    """One that is kept: a task has few topics, partitions and timestamp types."""
    return Constant(value, arrow_type)


def fixed(values: NDArray[Any], arrow_type: pa.DataType) -> pa.Array:
    """A column without nulls of numbers, or of what is stored as numbers: the array itself."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


class Bytes:
    """The bytes that columns point into; at least `SPARE_BYTES` follow the last field."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._buffer = pa.py_buffer(data)
        self._words = np.ndarray(len(data) - 3, np.dtype("<i4"), data, strides=(1,))

    def column(self, at: Positions, length: Positions, arrow_type: pa.DataType) -> pa.Array:
        """The fields at these positions as `binary` or `string`; a length of -1 is null. Raises NeedsSlowPath for
        invalid UTF-8."""
        null = length < 0
        views = np.zeros((len(length), 4), np.int32)
        views[:, 0] = np.where(null, 0, length)
        views[:, 1] = self._words[at]
        views[:, 3] = at
        short = np.flatnonzero(length <= _INLINE_BYTES_MAX)
        if short.size:
            views[short, 2] = self._words[at[short] + 4]
            views[short, 3] = self._words[at[short] + 8]
        validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
        views_of_bytes = pa.Array.from_buffers(
            pa.binary_view(), len(length), [validity, pa.py_buffer(views), self._buffer]
        )
        column = views_of_bytes.cast(pa.binary())
        if arrow_type != pa.string():
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise NeedsSlowPath("the name of a header is not UTF-8") from error


def headers(data: Bytes, fields: Fields, found: HeaderFields) -> pa.Array:
    """The column of lists of header names and values, null where a record has none."""
    counts = fields.header_count
    names = data.column(found.name_at, found.name_length, pa.string())
    values = data.column(found.value_at, found.value_length, pa.binary())
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    items = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_ARROW.value_type))
    return pa.Array.from_buffers(HEADERS_ARROW, len(counts), [validity, pa.py_buffer(offsets)], children=[items])
