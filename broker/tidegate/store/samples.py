"""Capped streams of samples that brokers write for metrics over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ADD_SAMPLES = Script("cluster/add_samples")

_TEXTS_AT_ONCE: Final = 2_000
"""Fields and values that one script adds, or those of one entry: it must not delay heartbeats."""


async def add_samples(store: Store, stream: str, entries_max: int, entries: Sequence[Sequence[Arg]]) -> None:
    """Add entries: `time` by Redis's clock, then the fields and values of each; keeps about `entries_max` entries.

    Raises StoreUnavailable; some samples may be stored nevertheless.
    """
    some: list[Sequence[Arg]] = []
    for entry in entries:
        if some and sum(map(len, some)) + len(entry) > _TEXTS_AT_ONCE:
            await _add(store, stream, entries_max, some)
            some = []
        some.append(entry)
    if some:
        await _add(store, stream, entries_max, some)


async def _add(store: Store, stream: str, entries_max: int, entries: Sequence[Sequence[Arg]]) -> None:
    await store.run(ADD_SAMPLES, [stream], entries_max, *chain.from_iterable((len(one), *one) for one in entries))
