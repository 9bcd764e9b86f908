"""Capped streams of samples that brokers write for metrics over time."""

from __future__ import annotations

from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ADD_SAMPLE = Script("cluster/add_sample")


async def add_sample(store: Store, stream: str, entries_max: int, *fields: Arg) -> None:
    """Add an entry: `time` by Redis's clock, then the given fields and values; keeps about `entries_max` entries.

    Raises StoreUnavailable; the sample may be stored nevertheless.
    """
    await store.run(ADD_SAMPLE, [stream], entries_max, *fields)
