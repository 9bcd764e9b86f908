"""Capped streams of samples: what brokers tell of themselves and of what they see, the stuff of history."""

from __future__ import annotations

from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ADD_SAMPLE = Script("cluster/add_sample")


async def add_sample(store: Store, stream: str, entries_max: int, *fields: Arg) -> None:
    """Add an entry: `time` by Redis's clock, then these fields and values, some thousands at most.

    Raises StoreUnavailable; the sample may be there all the same.
    """
    await store.run(ADD_SAMPLE, [stream], entries_max, *fields)
