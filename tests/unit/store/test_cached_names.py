"""What is kept of names is bounded by bytes: a client may send names of 32 kB without end."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tidegate.errors import InvalidGroupId
from tidegate.groups.group_index import group_of
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.bounded_cache import BoundedCache
from tidegate.store.keys import GROUP_ID_LENGTH_MAX
from tidegate.store.store import Store


async def test_group_of_an_earlier_version_with_a_long_id_is_found_by_its_stored_name() -> None:
    store, group_id = Store(Settings()), "g" * (GROUP_ID_LENGTH_MAX + 1)
    with pytest.raises(InvalidGroupId):
        store.group_keys("default", group_id)

    assert group_of(store, f"default/{group_id}").group_id == group_id


async def test_group_keys_of_usual_names_are_cached() -> None:
    store, group_id = Store(Settings()), "g" * GROUP_ID_LENGTH_MAX
    assert store.group_keys("default", group_id) is store.group_keys("default", group_id)


async def test_names_of_many_owners_stay_below_their_share() -> None:
    store = Store(Settings(memory_max=384 << 20))
    share = shares_of(384 << 20).key_names
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(4_000):
        store.group_keys("default", f"{number:06d}" + "/" * (GROUP_ID_LENGTH_MAX - 6))
        store.log_keys("default", f"{number:06d}" + "t" * 240, 0, "ab" * 16)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert held < 2 * share


def test_bounded_cache_drops_the_oldest() -> None:
    cache: BoundedCache[str, str] = BoundedCache(3_900)
    for number in range(10):
        cache.put(str(number), "value", 800)
    assert (len(cache), cache.bytes, cache.get("9"), cache.get("0")) == (3, 3_900, "value", None)
    cache.put("9", "other", 100)
    cache.put("large", "value", 3_900)
    assert (cache.get("9"), cache.get("large"), len(cache)) == ("other", None, 3)
    cache.drop("none")
