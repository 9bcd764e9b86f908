"""Lag samples as `monitoring/lag_sampler.py` stores them in `{cluster}:lag`, read in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tidegate.store.foreign_entries import Parsed, StreamEntry
from tidegate.store.store import Store

FRESH_S: Final = 2.0
"""How long what was read counts as new."""
_PAGE: Final = 500
_NAMES: Final = (b"time", b"group")
_HEAD: Final = 2 * len(_NAMES)
"""Values of an entry before its partitions: time and group, each with its field name."""


class Sample(NamedTuple):
    """An entry: a group's partitions at one time, each with its text; `ref` is the group in its shard's keys."""

    time_ms: int
    ref: str
    texts: list[tuple[bytes, bytes]]

    @staticmethod
    def of(values: Sequence[bytes]) -> Sample:
        """Parse an entry's values. Raises ValueError if no sampler wrote it."""
        names, (time_ms, ref) = tuple(values[:_HEAD:2]), values[1:_HEAD:2]
        if names != _NAMES:
            raise ValueError(f"it begins with {names!r}")
        return Sample(int(time_ms), ref.decode(), list(zip(values[_HEAD::2], values[_HEAD + 1 :: 2], strict=True)))


def fields_of(text: bytes) -> dict[bytes, bytes]:
    """The values by name in what the sampler's `sample_text` wrote for a partition."""
    return dict(part.split(b"=", 1) for part in text.split(b" ", 7))


def samples(
    page: Iterable[StreamEntry], store: Store, parse: Callable[[bytes, Sequence[bytes]], Parsed | None]
) -> list[Parsed]:
    """What `parse` makes of each entry, without those that no sampler wrote."""
    return store.foreign_entries.leave_out(store.cluster_keys.lag, page, parse)


async def read_new(
    store: Store, after: bytes, since_ms: int, take: Callable[[Sequence[StreamEntry], Store], None]
) -> bytes:
    """Pass the entries behind the id `after`, and not before a time, to `take` in a thread; returns the last id.

    Raises StoreUnavailable.
    """
    start = f"({after.decode()}" if after and int(after.partition(b"-")[0]) >= since_ms else str(since_ms)
    while page := await store.read("XRANGE", store.cluster_keys.lag, start, "+", "COUNT", _PAGE):
        await asyncio.to_thread(take, page, store)
        after = page[-1][0]
        start = f"({after.decode()}"
    return after
