"""Every request that may create a group, while its organisation has as many as it may have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.cluster.audit import Actor
from tidegate.errors import PolicyViolation
from tidegate.groups.directory import list_groups
from tidegate.groups.reset_plan import Choice
from tidegate.http.offset_actions import Reset, reset
from tidegate.protocol.consumer_blobs import write_subscription
from tidegate.quotas.entities import Entity, Quota
from tidegate.settings import Settings
from tidegate.store.store import Store

E = ErrorCode
SECONDS = timedelta(seconds=10)
Attempt = Callable[[Brokers, str], Awaitable[ErrorCode]]


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `t` and the group `first`, in an organisation that may have one group."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("t")
        opened.clients[0].group_id = "first"
        assert await opened.clients[0].commit("t", 1) is NONE
        change = Entity.of({"org": "default"}), Quota.GROUPS, 1.0
        for one in opened.all:
            assert one.context.quotas is not None
            await one.context.quotas.quotas.change("default", [change], "User:admin")
        yield opened


async def join(brokers: Brokers, group_id: str) -> ErrorCode:
    protocol = {"name": "range", "metadata": write_subscription(["t"])}
    return await code_of(
        brokers, 11, 3, group_id=group_id, session_timeout=SECONDS, rebalance_timeout=SECONDS, member_id="",
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip


async def commit(brokers: Brokers, group_id: str) -> ErrorCode:
    client = brokers.all[1].client()
    client.group_id = group_id
    return await client.commit("t", 5)


async def commit_in_a_transaction(brokers: Brokers, group_id: str) -> ErrorCode:
    producer = await brokers.producer().init()
    code = await producer.commit_offset(group_id, 50)
    await producer.end(True)
    return code


async def join_consumers(brokers: Brokers, group_id: str) -> ErrorCode:
    return await code_of(
        brokers, 68, 1, group_id=group_id, member_id="m", member_epoch=0, rebalance_timeout=SECONDS,
        subscribed_topic_names=("t",), topic_partitions=(),
    )  # fmt: skip


async def join_shares(brokers: Brokers, group_id: str) -> ErrorCode:
    return await code_of(
        brokers, 76, 1, group_id=group_id, member_id="m", member_epoch=0, subscribed_topic_names=("t",)
    )


async def join_streams(brokers: Brokers, group_id: str) -> ErrorCode:
    subtopology = {
        "subtopology_id": "0", "source_topics": ("t",), "source_topic_regex": (),
        "state_changelog_topics": (), "repartition_sink_topics": (), "repartition_source_topics": (),
        "copartition_groups": (),
    }  # fmt: skip
    return await code_of(
        brokers, 88, 0, group_id=group_id, member_id="m", member_epoch=0, endpoint_information_epoch=-1,
        rebalance_timeout=SECONDS, topology={"epoch": 0, "subtopologies": [subtopology]},
        client_tags=None, task_offsets=None, task_end_offsets=None, process_id="p", active_tasks=(), standby_tasks=(),
        warmup_tasks=(),
    )  # fmt: skip


async def alter_share_offsets(brokers: Brokers, group_id: str) -> ErrorCode:
    partition = {"partition_index": 0, "start_offset": 0}
    topic = {"topic_name": "t", "partitions": [partition]}
    return await code_of(brokers, 91, 0, group_id=group_id, topics=[topic])


async def reset_by_rest(brokers: Brokers, group_id: str) -> ErrorCode:
    wanted = Reset(group_id, Choice(to_earliest=True), ("t",))
    try:
        await reset(brokers.all[0].context, Actor("admin", "admin", "127.0.0.1"), "default", wanted)
    except PolicyViolation as error:
        return error.code
    return NONE


async def code_of(brokers: Brokers, api_key: int, version: int, **values: Any) -> ErrorCode:
    code: ErrorCode = (await brokers.ask(request(api_key, version, **values))).error_code
    return code


@pytest.mark.parametrize(
    "attempt",
    [
        join, commit, commit_in_a_transaction, join_consumers, join_shares, join_streams, alter_share_offsets,
        reset_by_rest,
    ],
)  # fmt: skip
async def test_group_above_the_limit_is_not_created(brokers: Brokers, attempt: Attempt, store: Store) -> None:
    assert await attempt(brokers, f"g-{uuid4().hex[:8]}") is E.policy_violation
    assert [one.group_id for one in await list_groups(store, "default", range(50))] == ["first"]


@pytest.mark.parametrize("attempt", [commit, commit_in_a_transaction, join, reset_by_rest])
async def test_group_that_exists_is_served_at_the_limit(brokers: Brokers, attempt: Attempt) -> None:
    assert await attempt(brokers, "first") is NONE
