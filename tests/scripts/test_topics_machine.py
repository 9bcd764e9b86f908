"""Random lives of topics at two brokers that die between any two steps; then a third one tidies up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.machines import PHASES
from tests.support.valkey import ValkeyServer
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog, PartitionStorage

ORG = "default"
NAMES = ("a", "b.c", "b_c")

Step = tuple[int, str, str, int, int]
"""Broker, what it does, topic, number of partitions, steps until it dies."""

steps = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(("create", "delete", "grow", "grow", "alter", "find")),
        st.sampled_from(("a", "a", "a", *NAMES)),
        st.integers(1, 4),
        st.sampled_from((0, 1, 2, 3, 99, 99, 99)),
    ),
    min_size=25,
    max_size=40,
)


class Mortal:
    """The real steps on partitions, of which only some are still done."""

    def __init__(self) -> None:
        self.left = 99
        self.storage = PartitionStorage(self._until_death(create_partition), self._until_death(delete_partition))

    def _until_death(
        self, step: Callable[[Store, LogKeys], Awaitable[None]]
    ) -> Callable[[Store, LogKeys], Awaitable[None]]:
        async def run(store: Store, keys: LogKeys) -> None:
            if self.left <= 0:
                raise StoreUnavailable("dead")
            self.left -= 1
            await step(store, keys)

        return run


async def act(catalog: Catalog, what: str, name: str, count: int) -> None:
    with contextlib.suppress(KafkaError):
        match what:
            case "create":
                await catalog.create(ORG, name, count, {"retention.ms": str(count)})
            case "delete":
                await catalog.delete(ORG, name)
            case "grow":
                await catalog.add_partitions(ORG, name, count + 2)
            case "alter":
                await catalog.alter_configs(ORG, name, lambda _: {"retention.ms": str(count)})
            case _:
                await catalog.find(ORG, name)


async def live(url: str, todo: list[Step], together: bool) -> None:
    stores = [Store(Settings(redis_url=url)) for _ in range(3)]
    for store in stores:
        await store.start()
    await stores[0].command("FLUSHALL")
    mortals = [Mortal(), Mortal()]
    catalogs = [Catalog(store, store.settings, one.storage) for store, one in zip(stores, mortals, strict=False)]
    try:
        for pair in zip(todo[::2], todo[1::2], strict=False) if together else ((step,) for step in todo):
            for who, _, _, _, left in pair:
                mortals[who].left = left
            await asyncio.gather(*(act(catalogs[who], what, name, count) for who, what, name, count, _ in pair))
        tidy = Catalog(stores[2], stores[2].settings, PartitionStorage(create_partition, delete_partition))
        await check_all_is_well(stores[2], tidy)
    finally:
        for store in stores:
            await store.close()


async def check_all_is_well(store: Store, tidy: Catalog) -> None:
    for _ in range(3):
        await tidy.refresh()
        await tidy.finish_left_over()
    await tidy.refresh()
    topics = tidy.topics(ORG)
    expected = {
        store.log_keys(ORG, topic.name, index, topic.topic_hex).log
        for topic in topics
        for index in range(topic.partition_count)
    }

    assert {f"{ORG}/{topic.name}" for topic in topics} == set(tidy._records), "nothing is left under way"
    assert {key.decode() for key in await store.command("KEYS", "*:log")} == expected, "its streams, and no others"
    assert sum(topic.name in NAMES[1:] for topic in topics) <= 1, "no two names alike"
    kept = {key.decode() for key in await store.command("KEYS", "tidegate:{cluster}:topic:*")}
    assert kept == {f"tidegate:{{cluster}}:topic:{ORG}:{topic.name}" for topic in topics}, "configs of what is there"
    alike = await store.command("HGETALL", store.cluster_keys.topic_names)
    assert len(alike) == sum(topic.name in NAMES[1:] for topic in topics)


@settings(
    max_examples=60,
    deadline=None,
    phases=PHASES,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps, st.booleans())
def test_topics_interrupted_operations_end_consistent(valkey: ValkeyServer, todo: list[Step], together: bool) -> None:
    asyncio.run(live(valkey.url, todo, together))
