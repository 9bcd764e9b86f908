"""A refused request leaves no cycle: collections go by objects, and a group id of 32 kB has 2 MB of key names."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.kit.wire import request
from tests.support.whole_broker import WholeBroker
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

GROUP = "g" * 1_000
"""Too long to be cached."""


def _heartbeat() -> Any:
    return request(12, 4, group_id=GROUP, generation_id=1, member_id="m")


def _leave() -> Any:
    return request(13, 4, group_id=GROUP, members=[{"member_id": "m"}])


def _delete() -> Any:
    return request(42, 1, groups_names=(GROUP,))


def _delete_offsets() -> Any:
    return request(47, 0, group_id=GROUP, topics=[{"name": "t", "partitions": [{"partition_index": 0}]}])


def _describe() -> Any:
    return request(15, 4, groups=(GROUP,), include_authorized_operations=False)


def _commit() -> Any:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    topics = [{"name": "t", "partitions": [partition]}]
    return request(8, 8, group_id=GROUP, generation_id_or_member_epoch=3, member_id="m", topics=topics)


@pytest.fixture
async def broker(settings: Settings, store: Store) -> AsyncIterator[WholeBroker]:
    """`store` has made the server empty."""
    opened = await WholeBroker(settings, 1).start()
    try:
        await opened.create("t", 1)
        yield opened
    finally:
        await opened.close()


@pytest.mark.parametrize(
    "request_of", [_heartbeat, _leave, _delete, _delete_offsets, _describe, _commit], ids=lambda one: one.__name__[1:]
)
@pytest.mark.parametrize("protocol", ["absent", "consumer"])
async def test_refused_request_leaves_no_cycle(
    broker: WholeBroker, store: Store, request_of: Callable[[], Any], protocol: str
) -> None:
    client = broker.client("c")
    if protocol == "consumer":  # with a member, so that the requests of others are refused
        joining = broker.client("member")
        joining.group_id = GROUP
        await joining.ask(request(
            68, 0, group_id=GROUP, member_id="", member_epoch=0, rebalance_timeout=60_000,
            subscribed_topic_names=("t",), topic_partitions=(),
        ))  # fmt: skip
    await client.ask(request_of())  # what is kept once
    gc.collect()
    gc.disable()
    try:
        before = _held()
        for _ in range(3):
            await client.ask(request_of())
        async with asyncio.timeout(30):  # the last callbacks end behind the answer
            while _held() > before:
                await asyncio.sleep(0.05)
    finally:
        gc.enable()


def _held() -> int:
    return sum(isinstance(one, GroupKeys) and one.group_id == GROUP for one in gc.get_objects())
