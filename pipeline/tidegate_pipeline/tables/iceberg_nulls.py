"""Null lists and maps of structs stay null: pyiceberg 0.12 makes them empty where it writes, merges and reads files.

Its projection (`ArrowProjectionVisitor`) builds them again from offsets and items, without their validity.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

_list: Final = ArrowProjectionVisitor.list
_map: Final = ArrowProjectionVisitor.map


def _null_list(self: Any, list_type: Any, list_array: Any, value_array: Any) -> Any:
    found = _list(self, list_type, list_array, value_array)
    if found is None or found.null_count == list_array.null_count:
        return found
    return type(found).from_arrays(_own(found.offsets), found.values, type=found.type, mask=list_array.is_null())


def _null_map(self: Any, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
    found = _map(self, map_type, map_array, key_result, value_result)
    if found is None or found.null_count == map_array.null_count:
        return found
    return pa.MapArray.from_arrays(
        _own(found.offsets), found.keys, found.items, type=found.type, mask=map_array.is_null()
    )


def _own(offsets: pa.Array) -> pa.Array:
    return pa.array(offsets.to_numpy())  # a copy: beside a mask they may not be a slice


def keep_null_lists() -> None:
    """In this process."""
    ArrowProjectionVisitor.list = _null_list
    ArrowProjectionVisitor.map = _null_map
