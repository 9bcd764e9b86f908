"""What is kept of names is bounded by bytes: a client may send names of 32 kB without end."""

from __future__ import annotations

import tracemalloc

from tidegate.groups.identity import locator
from tidegate.settings import Settings
from tidegate.store.keys import CACHED_NAME_LENGTH_MAX, GroupKeys
from tidegate.store.store import Store


async def test_group_keys_of_long_names_leave_nothing_behind() -> None:
    store = Store(Settings())
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(100):
        group_id = f"{number:06d}" + "/" * 32_000
        keys = store.group_keys("default", group_id)
        assert locator("default", group_id) and keys.group_id == group_id
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert kept < 2 << 20


async def test_group_keys_of_usual_names_are_kept() -> None:
    store, group_id = Store(Settings()), "g" * CACHED_NAME_LENGTH_MAX
    assert store.group_keys("default", group_id) is store.group_keys("default", group_id)
    assert GroupKeys.of.__wrapped__(store.prefix, 1, "default", group_id).group_id == group_id
