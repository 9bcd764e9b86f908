"""Search the records of stored batches by timestamp, without delaying the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from tidegate.log.entries import Buffer
from tidegate.log.offload import STORED
from tidegate.records.batch import Batch, Codec

INLINE_RECORDS_MAX: Final = 1_000
"""Uncompressed batches with at most this many records together are searched on the event loop."""

P = ParamSpec("P")
R = TypeVar("R")


async def search_records(batches: Sequence[Buffer], search: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Search records of `batches`: on the event loop if they are few, otherwise, or if unknown, in a thread."""
    headers = [Batch.parse(batch) for batch in batches]
    compressed = any(one.codec != Codec.NONE for one in headers)
    if not compressed and sum(one.record_count for one in headers) <= INLINE_RECORDS_MAX:
        return search(*args, **kwargs)
    return await STORED.run(search, *args, **kwargs)
