"""Scenarios 8, 49, 52, 53 and 66 of the specification's consumer groups: rights, offsets by topic id, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.scripts.test_security_scenarios import Listener, listening
from tests.support import asking
from tests.support.consumer_wire import Wire, wire_of
from tests.support.transactions import Brokers, brokers_of
from tests.support.valkey import ValkeyServer
from tidegate.apis import consumer_groups
from tidegate.groups.decision_queue import LATE_S
from tidegate.settings import Settings
from tidegate.store.redis_clock import time_ms
from tidegate.store.store import Store

E = ErrorCode
assert consumer_groups.heartbeat  # importing registers its requests
GROUP, TOPIC, READ, DESCRIBE, DENY, ALLOW, LITERAL = 3, 2, 3, 8, 2, 3, 3


@pytest.fixture
async def wire(valkey: ValkeyServer) -> AsyncIterator[Wire]:
    async with wire_of(valkey) as opened:
        yield opened


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    async with brokers_of(settings, 2) as opened:
        await opened.create("t")
        yield opened


@pytest.fixture
async def listener(valkey: ValkeyServer) -> AsyncIterator[Listener]:
    async with listening(valkey) as opened:
        yield opened


def heartbeat(group: str, member: str, epoch: int, **fields: Any) -> Any:
    timeout_ms = 60_000 if epoch == 0 else -1
    identity = {"group_id": group, "member_id": member, "member_epoch": epoch}
    return request(68, 1, rebalance_timeout=timeout_ms, **identity, **{"topic_partitions": None, **fields})


def joining(group: str, member: str, *topics: str, **fields: Any) -> Any:
    return heartbeat(group, member, 0, subscribed_topic_names=list(topics), topic_partitions=[], **fields)


async def test_scenario_8_rights_are_checked_first(listener: Listener) -> None:
    admin, user = await listener.login("admin"), await listener.login("u")

    async def allow(kind: int, name: str, operation: int) -> None:
        rule = {
            "resource_type": kind, "resource_name": name, "resource_pattern_type": LITERAL,
            "principal": "User:u", "host": "*", "operation": operation, "permission_type": ALLOW,
        }  # fmt: skip
        answer = await admin.ask(request(30, 3, creations=[rule]))
        assert answer.results[0].error_code is E.none, answer

    for name in ("seen", "hidden"):
        topic = {
            "name": name, "num_partitions": 1, "replication_factor": -1, "assignments": [],
            "configs": [],
        }  # fmt: skip
        await admin.ask(request(19, 7, topics=[topic], timeout=timedelta(seconds=5), validate_only=False))

    blank = {"instance_id": ""}
    assert (await user.ask(joining("g", "m", "seen", **blank))).error_code is E.group_authorization_failed
    await allow(GROUP, "g", READ)
    assert (await user.ask(joining("g", "m", "hidden", **blank))).error_code is E.topic_authorization_failed
    await allow(TOPIC, "seen", DESCRIBE)  # READ of the topic is not needed
    joined = await user.ask(joining("g", "m", "seen"))
    assert joined.error_code is E.none
    later = await user.ask(heartbeat("g", "m", joined.member_epoch, subscribed_topic_names=["seen", "hidden"]))
    assert later.error_code is E.topic_authorization_failed
    assert (await user.ask(heartbeat("g", "m", joined.member_epoch))).error_code is E.none


async def test_request_that_waited_long_enters_no_group(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may have been answered by another broker meanwhile (here: for a quota, behind a larger request)."""
    entered = [
        joining("g", "A" * 22, "t"),
        request(76, 1, group_id="s", member_id="A" * 22, member_epoch=0, subscribed_topic_names=["t"]),
        request(
            88, 0, group_id="st", member_id="A" * 22, member_epoch=0, endpoint_information_epoch=0,
            rebalance_timeout=timedelta(seconds=60), process_id="p",
            topology={"epoch": 0, "subtopologies": [{
                "subtopology_id": "0", "source_topics": ["t"], "state_changelog_topics": [],
                "repartition_source_topics": [], "copartition_groups": [],
            }]},
            active_tasks=[], standby_tasks=[], warmup_tasks=[], client_tags=[], task_offsets=[], task_end_offsets=[],
        ),
    ]  # fmt: skip
    with monkeypatch.context() as late:
        late.setattr(asking, "perf_counter", lambda: perf_counter() - LATE_S - 1)
        codes = [(await brokers.ask(one)).error_code for one in entered]
    assert codes == [E.coordinator_load_in_progress] * 3
    assert [(await brokers.ask(one)).error_code for one in entered] == [E.none] * 3


async def test_commit_to_a_group_that_was_not_cached_is_not_stored_behind_the_next(brokers: Brokers) -> None:
    """The first is taken for one to a classic group; until the answer comes, a heartbeat may bring the group back."""
    client = brokers.clients[0]
    store, groups = client.broker.store, client.broker.context.consumers.groups
    store.clock.observe(time_ms(await store.command("TIME")), 0.001)
    client.group_id, client.member_id = "g", "A" * 22
    client.generation = (await client.ask(joining(client.group_id, client.member_id, "t"))).member_epoch
    key = store.group_keys("default", "g").group
    group = groups.cached.get(key)
    assert group is not None

    groups.cached.drop(key)
    first = asyncio.create_task(client.commit("t", 5, version=9))
    await asyncio.sleep(0)
    groups.cached.put(key, group, group.held_bytes)
    codes = [await client.commit("t", 9, version=9), await first]

    assert codes == [E.none, E.coordinator_not_available]
    assert await client.committed("t") == 9


async def test_scenario_49_topics_by_id_and_by_name(wire: Wire) -> None:
    epoch = (await wire.join("a", "t4")).member_epoch

    async def commit(version: int, *named: tuple[Any, int]) -> list[ErrorCode]:
        label = "topic_id" if version >= 10 else "name"
        topics = [
            {
                label: topic, "partitions": [{
                    "partition_index": index, "committed_offset": 1,
                    "committed_leader_epoch": -1, "committed_metadata": None,
                }],
            }
            for topic, index in named
        ]  # fmt: skip
        answer = await wire.client.ask(
            request(
                8, version, group_id=wire.group, generation_id_or_member_epoch=epoch, member_id="a",
                group_instance_id=None, topics=topics,
            )
        )  # fmt: skip
        return [one.partitions[0].error_code for one in answer.topics]

    assert await commit(10, (uuid4(), 0), (wire.topics["t4"], 0)) == [E.unknown_topic_id, E.none]
    assert await commit(10, (wire.topics["t4"], 9)) == [E.unknown_topic_or_partition]
    found = await commit(9, ("nothing", 0), ("t4", 9), ("t4", 1))
    assert found == [E.unknown_topic_or_partition, E.unknown_topic_or_partition, E.none]


async def test_scenario_52_offsets_of_members_in_transactions(brokers: Brokers) -> None:
    topic_id: UUID = (await brokers.all[0].context.catalog.find("default", "t")).topic_id  # type: ignore[union-attr]
    producer = await brokers.producer().init()
    for version, code in ((5, E.illegal_generation), (6, E.group_id_not_found)):
        named = {"topic": topic_id if version == 6 else "t", "version": version}
        assert await producer.commit_offset("none", 1, generation=3, member_id="m", **named) is code

    joined = await brokers.ask(joining("g", "m", "t"))
    assert joined.error_code is E.none
    # KIP-1251: the partition is the member's ever since its epoch, also when the epoch moves on
    moved = await brokers.ask(heartbeat("g", "m", joined.member_epoch, subscribed_topic_names=["t", "other"]))
    assert moved.member_epoch == joined.member_epoch + 1
    for version, stale, unknown_topic in (
        (5, E.illegal_generation, E.unknown_topic_or_partition),
        (6, E.stale_member_epoch, E.unknown_topic_id),
    ):
        named = {"version": version, "topic": topic_id if version == 6 else "t"}
        epoch = moved.member_epoch
        assert await producer.commit_offset("g", 5, generation=epoch, member_id="m", **named) is E.none
        assert await producer.commit_offset("g", 5, generation=epoch - 1, member_id="m", **named) is E.none
        assert await producer.commit_offset("g", 5, generation=epoch + 1, member_id="m", **named) is stale
        assert await producer.commit_offset("g", 5, generation=joined.member_epoch - 1, member_id="m", **named) is stale
        assert await producer.commit_offset("g", 5, generation=epoch, member_id="x", **named) is E.unknown_member_id
        assert await producer.commit_offset("g", 5, **named) is E.none  # no member id: not validated
        other = {**named, "topic": uuid4() if version == 6 else "nothing"}
        assert await producer.commit_offset("g", 5, generation=epoch, member_id="m", **other) is unknown_topic


async def test_scenario_53_a_pending_offset_of_a_member(brokers: Brokers) -> None:
    joined = await brokers.ask(joining("g", "m", "t"))
    producer = await brokers.producer().init()
    assert await producer.commit_offset("g", 9, generation=joined.member_epoch, member_id="m") is E.none

    assert await brokers.committed("g", stable=True) == (E.unstable_offset_commit, -1)
    assert await brokers.committed("g", stable=False) == (E.none, -1)
    await producer.end(True)
    assert await brokers.committed("g", stable=True) == (E.none, 9)


async def test_scenario_66_features_and_versions(wire: Wire) -> None:
    answer = await wire.client.ask(request(18, 3, client_software_name="t", client_software_version="1"))

    served = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    expected = {8: (2, 10), 9: (1, 10), 28: (0, 6), 42: (0, 3), 68: (0, 1), 69: (0, 1), 76: (1, 1), 78: (1, 2)}
    assert {key: served[key][1] for key in expected} == {key: last for key, (_, last) in expected.items()}
    assert served.keys().isdisjoint({83, 84, 85, 86, 87, 93})  # between brokers; without a plugin
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized["group.version"] == 1
    assert finalized["share.version"] == 2
    assert finalized["transaction.version"] == 2
