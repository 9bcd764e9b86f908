"""Scenarios 6, 10, 12 and 49-51 of the specification's share groups: administration, configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.log_broker import Connection
from tests.support.shares import ACCEPT, ShareWorld, code
from tidegate.groups.share import offsets
from tidegate.groups.share.partitions import partitions_of
from tidegate.groups.share.sessions import SharePartition
from tidegate.store.scripts import Script
from tidegate.store.store import Store

DESCRIBE, ALTER, DELETE, DELETE_GROUPS, LIST_GROUPS, DESCRIBE_GROUPS = 90, 91, 92, 42, 16, 15
LEGACY_ALTER_CONFIGS, LIST_CONFIG_RESOURCES = 33, 74
COMMIT, OFFSET_DELETE, CONSUMER_HEARTBEAT, JOIN, DESCRIBE_CONFIGS, ALTER_CONFIGS = 8, 47, 68, 11, 32, 44
GROUP = 32
NOT_FOUND, NON_EMPTY, NOT_AVAILABLE = "GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP", "COORDINATOR_NOT_AVAILABLE"


def admin(shares: ShareWorld) -> Connection:
    """An administrator's connection, to the second broker."""
    return shares.brokers[1].connect()


async def described(shares: ShareWorld, *indexes: int, group: str = "jobs", version: int = 1) -> list[tuple[int, int]]:
    """(start offset, lag) of partitions of t1; of all that are known if none is named."""
    topics = [
        {"topic_name": "t1", "partitions": list(indexes)}
    ] if indexes else None  # fmt: skip
    asked = {"group_id": group, "topics": topics}
    (found,) = (await admin(shares).ask(request(DESCRIBE, version, groups=[asked]))).groups
    assert found.error_code is ErrorCode.none
    return [
        (one.start_offset, getattr(one, "lag", -1)) for topic in found.topics for one in topic.partitions
    ]  # fmt: skip


async def altered(shares: ShareWorld, *changes: tuple[str, int, int], group: str = "jobs") -> str:
    """Alter offsets (topic, partition, offset); the codes of the partitions, or of the request."""
    topics = [
        {
            "topic_name": topic,
            "partitions": [{"partition_index": index, "start_offset": offset}],
        }
        for topic, index, offset in changes
    ]
    answer = await admin(shares).ask(request(ALTER, 0, group_id=group, topics=topics))
    if answer.error_code is not ErrorCode.none:
        return code(answer.error_code)
    return " ".join(code(one.error_code) for topic in answer.responses for one in topic.partitions)


async def deleted(shares: ShareWorld, topic: str, group: str = "jobs") -> str:
    """Delete the offsets of a topic; its code, or that of the request."""
    topics = [{"topic_name": topic}]
    answer = await admin(shares).ask(request(DELETE, 0, group_id=group, topics=topics))
    return code(answer.error_code or answer.responses[0].error_code)


async def deleted_group(shares: ShareWorld) -> str:
    (result,) = (await admin(shares).ask(request(DELETE_GROUPS, 2, groups_names=["jobs"]))).results
    return code(result.error_code)


async def test_scenario_49_describe(shares: ShareWorld) -> None:
    a = shares.member("a")
    assert await described(shares, 0) == [(-1, -1)]
    assert await described(shares) == []
    await shares.joined(a)
    await shares.produce(10)
    assert await described(shares, 0, 7) == [(0, 10), (-1, -1)]
    await a.fetch(0)

    assert await a.acknowledge({0: [(0, 3, (ACCEPT,)), (6, 7, (ACCEPT,))]}) == "NONE"

    assert await described(shares, 0) == await described(shares) == [(4, 4)]
    assert await described(shares, 0, version=0) == [(4, -1)]
    assert await a.acknowledge({0: [(4, 5, (ACCEPT,)), (8, 9, (ACCEPT,))]}) == "NONE"
    assert await described(shares, 0) == [(10, 0)]


async def test_describe_share_offsets_repeated_group_is_read_once(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await altered(shares, ("t1", 0, 5)) == "NONE"
    asked: list[str] = []

    async def counted(store: Any, keys: Any) -> Any:
        asked.append(keys.group)
        return await partitions_of(store, keys)

    monkeypatch.setattr("tidegate.apis.share_offsets.partitions_of", counted)
    group = {"group_id": "jobs", "topics": None}
    found = (await admin(shares).ask(request(DESCRIBE, 1, groups=[group] * 300))).groups

    assert len(asked) == 1
    assert [[topic.topic_name for topic in one.topics] for one in found] == [["t1"]] * 300


async def test_scenario_50_alter(shares: ShareWorld) -> None:
    a, b = shares.member("a"), shares.member("b")
    await shares.joined(a)
    await shares.produce(10)
    assert await a.fetch(0) == "0-9x1"
    assert await altered(shares, ("t1", 0, 2)) == NON_EMPTY
    await a.leave()

    assert await altered(shares, ("t1", 0, 2), ("none", 0, 2), ("t2", 9, 2)) == (
        "NONE UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_OR_PARTITION"
    )

    assert await described(shares, 0) == [(2, 8)]
    assert await a.ack(0, 9) == "NOT_LEADER_OR_FOLLOWER"
    await shares.joined(b)
    assert await b.fetch(0) == "2-9x1"


async def test_scenario_50_alter_creates_a_group(shares: ShareWorld) -> None:
    assert await altered(shares, ("t1", 0, 3)) == "NONE"

    assert (await shares.describe()).group_state == "Empty"
    await shares.produce(5)
    a = shares.member("a")
    assert await a.join() == (2, {"t1": [0]})
    assert await a.fetch(0) == "3-4x1"


async def test_group_made_by_altered_offsets_outlives_the_floor(shares: ShareWorld) -> None:
    assert await shares.report_generation(5)

    assert await altered(shares, ("t1", 0, 3)) == "NONE"

    assert await shares.brokers[0].store.command("PTTL", shares.keys.group) == -1


async def test_altered_offsets_of_one_partition_leave_the_others_to_the_reset_policy(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    for partition in (0, 1):
        await shares.produce(3, topic="t2", partition=partition)

    assert await altered(shares, ("t2", 0, 2)) == "NONE"

    await shares.produce(1, topic="t2", partition=1)
    a = shares.member("a", "t2")
    await shares.joined(a)
    assert await a.fetch(0, partitions=(0, 1)) == "2-2x1 1: 3-3x1"


async def test_altered_offsets_of_unknown_partitions_create_no_group(shares: ShareWorld) -> None:
    assert await altered(shares, ("none", 0, 3), ("t1", 9, 3)) == (
        "UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_OR_PARTITION"
    )
    assert await deleted(shares, "t1") == NOT_FOUND
    assert await deleted_group(shares) == NOT_FOUND


async def test_scenario_51_delete_offsets(shares: ShareWorld) -> None:
    a = shares.member("a")
    assert await deleted(shares, "t1") == NOT_FOUND
    await shares.joined(a)
    await shares.produce(2)
    await a.fetch(0)
    await a.ack(0, 1)
    assert await deleted(shares, "t1") == NON_EMPTY
    await a.leave()

    assert await deleted(shares, "none") == "UNKNOWN_TOPIC_OR_PARTITION"
    assert await deleted(shares, "t1") == "NONE"

    assert await described(shares) == []
    await a.join()
    assert await a.fetch() == "0-1x1"


async def test_offsets_of_a_topic_named_many_times_are_deleted_once(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await altered(shares, ("t1", 0, 5)) == "NONE"
    removed: list[SharePartition] = []

    async def counted(store: Any, keys: Any, partitions: Any, **_: Any) -> None:
        removed.extend(partitions)

    monkeypatch.setattr(offsets, "remove_partitions", counted)
    topics = [{"topic_name": "t1"}] * 300
    answer = await admin(shares).ask(request(DELETE, 0, group_id="jobs", topics=topics))

    assert [one.error_code for one in answer.responses] == [ErrorCode.none] * 300
    assert removed == list(dict.fromkeys(removed)) != []


async def test_scenario_6_delete_the_group(shares: ShareWorld) -> None:
    a = shares.member("a")
    assert await deleted_group(shares) == NOT_FOUND
    await shares.joined(a)
    await shares.produce(3)
    await a.fetch(0)
    assert await deleted_group(shares) == NON_EMPTY
    await a.leave()

    assert await deleted_group(shares) == "NONE"

    store = shares.brokers[0].store
    assert await store.command("KEYS", f"{shares.keys.group}:share*") == []
    assert await store.command("EXISTS", shares.keys.group) == 0
    assert await a.heartbeat(1) == NOT_FOUND


async def test_group_of_many_partitions_is_deleted_in_parts(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_PARTITIONS_AT_ONCE", 3)
    a = shares.member("a", "t1", "t2", "t4")
    await shares.joined(a)
    counts, run = list[int](), Store.run

    async def counting(store: Store, script: Script, keys: Sequence[str], *args: Any) -> Any:
        counts.append(sum(":share:" in key for key in keys) // 4)
        return await run(store, script, keys, *args)

    store = shares.brokers[0].store
    monkeypatch.setattr(Store, "run", counting)
    assert await deleted_group(shares) == NON_EMPTY
    assert len(await partitions_of(store, shares.keys)) == 7
    await a.leave()
    counts.clear()

    assert await deleted_group(shares) == "NONE"
    assert (sum(counts), max(counts)) == (7, 3)
    assert await store.command("KEYS", f"{shares.keys.group}:share*") == []


async def test_deleted_topic_leaves_nothing(shares: ShareWorld) -> None:
    from tidegate.groups.share.offsets import forget_topic

    a = shares.member("a", "t1", "t2")
    await shares.joined(a)
    store, topic = shares.brokers[0].store, shares.topics["t1"]

    await forget_topic(store, "default", topic.topic_id, topic.partition_count)

    fields = await store.command("HKEYS", shares.keys.shares)
    assert sorted(fields) == [f"{shares.topics['t2'].topic_hex}:{index}".encode() for index in range(2)]
    assert not [
        key for key in await store.command("KEYS", f"{shares.keys.group}:share:*") if topic.topic_hex in str(key)
    ]


async def test_scenario_10_a_group_id_has_one_type(shares: ShareWorld) -> None:
    a, client = shares.member("a"), admin(shares)
    await shares.joined(a)
    await a.leave()  # not even an empty share group changes its type

    heartbeat = request(
        CONSUMER_HEARTBEAT, 1, group_id="jobs", member_id="m", member_epoch=0, subscribed_topic_names=["t1"],
        topic_partitions=(), rebalance_timeout=timedelta(seconds=1),
    )  # fmt: skip
    assert code((await client.ask(heartbeat)).error_code) == NOT_FOUND
    (group,) = (
        await client.ask(request(DESCRIBE_GROUPS, 6, groups=["jobs"], include_authorized_operations=False))
    ).groups
    assert (code(group.error_code), group.group_state) == (NOT_FOUND, "Dead")
    topics = [
        {
            "name": "t1",
            "partitions": [
                {"partition_index": 0, "committed_offset": 1,
                 "committed_leader_epoch": -1, "committed_metadata": None}
            ],
        }
    ]  # fmt: skip
    commit = request(
        COMMIT,
        9,
        group_id="jobs",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=topics,
    )
    assert code((await client.ask(commit)).topics[0].partitions[0].error_code) == NOT_FOUND
    (listed,) = (await client.ask(request(LIST_GROUPS, 5, states_filter=(), types_filter=["Share"]))).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type, listed.group_state) == (
        "jobs", "share", "share", "Empty",
    )  # fmt: skip


async def test_scenario_10_join_on_a_group_of_commits(shares: ShareWorld) -> None:
    await shares.brokers[0].store.command("HSET", shares.keys.group, "id", "cgp_1", "type", "classic", "state", "Empty")

    assert await shares.member("a").join() == NOT_FOUND


async def configure(
    shares: ShareWorld, *changes: tuple[str, int, str | None], group: str = "jobs", validate_only: bool = False
) -> str:
    """Alter configs of a group incrementally: (name, operation, value); the code."""
    configs = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    (answer,) = (
        await admin(shares).ask(request(ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only))
    ).responses
    return code(answer.error_code)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "by_duration:1h"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.isolation.level", "committed"),
        ("share.record.lock.duration.ms", "999"),
        ("share.record.lock.duration.ms", "soon"),
        ("share.delivery.count.limit", "1"),
        ("share.delivery.count.limit", "26"),
        ("share.partition.max.record.locks", "99"),
        ("share.renew.acknowledge.enable", "yes"),
        ("share.other", "1"),
        ("consumer.session.timeout.ms", "100"),
        ("consumer.session.timeout.ms", "99999999"),
        ("consumer.session.timeout.ms", "5000"),
        ("consumer.heartbeat.interval.ms", "45000"),
        ("consumer.heartbeat.interval.ms", "often"),
        ("consumer.assignment.interval.ms", "15001"),
        ("share.heartbeat.interval.ms", "50000"),
    ],
)
async def test_scenario_12_invalid_configs(shares: ShareWorld, name: str, value: str) -> None:
    changes = (("share.session.timeout.ms", 0, "50000"), (name, 0, value))

    assert (
        await configure(shares, *changes) == await configure(shares, *changes, validate_only=True) == "INVALID_CONFIG"
    )

    assert await shares.brokers[0].store.command("HGET", shares.keys.configs, "share.session.timeout.ms") is None


async def test_pair_of_configs_is_checked_as_it_then_is(shares: ShareWorld) -> None:
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    assert await configure(shares, (session, 0, "3000"), (interval, 0, "2000")) == "NONE"

    assert await configure(shares, (interval, 1, None)) == "INVALID_CONFIG"  # the default is 5 s
    assert await configure(shares, (session, 0, "2000")) == "INVALID_CONFIG"
    assert await configure(shares, (session, 0, "2000"), (interval, 0, "1000"), validate_only=True) == "NONE"

    store = shares.brokers[0].store
    assert await store.command("HMGET", shares.keys.configs, session, interval) == [b"3000", b"2000"]


async def test_groups_with_configs_are_listed(shares: ShareWorld) -> None:
    interval = "consumer.heartbeat.interval.ms"
    for group in ("a b", "c"):
        assert await configure(shares, (interval, 0, "2000"), group=group) == "NONE"

    assert await configured(shares) == ["a b", "c"]

    assert await configure(shares, (interval, 1, None), group="c") == "NONE"
    resource = {"resource_type": GROUP, "resource_name": "a b", "configs": []}
    asked = request(LEGACY_ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
    (answer,) = (await admin(shares).ask(asked)).responses
    assert code(answer.error_code) == "NONE"
    assert await configured(shares) == []


async def configured(shares: ShareWorld) -> list[str]:
    """The groups that ListConfigResources names."""
    answer = await admin(shares).ask(request(LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP]))
    return [one.resource_name for one in answer.config_resources]


async def test_configs_are_described_and_act_at_once(shares: ShareWorld) -> None:
    a = shares.member("a")
    assert await configure(shares, ("share.session.timeout.ms", 0, "5000"), group=" ") == "INVALID_REQUEST"
    assert await configure(shares, ("share.session.timeout.ms", 2, "5000")) == "INVALID_CONFIG"
    assert await configure(
        shares, ("share.session.timeout.ms", 0, "6000"), ("share.heartbeat.interval.ms", 0, "700")
    ) == "NONE"  # fmt: skip
    answer = await a.send_heartbeat(0, subscribed_topic_names=["t1"])
    assert answer.heartbeat_interval == timedelta(milliseconds=700)
    await shares.clock.advance(6_000)
    assert (await shares.describe()).group_state == "Empty"

    assert await configure(shares, ("share.heartbeat.interval.ms", 1, None)) == "NONE"

    resource = {
        "resource_type": GROUP,
        "resource_name": "jobs",
        "configuration_keys": None,
    }
    asked = request(DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True, include_documentation=True)
    (found,) = (await admin(shares).ask(asked)).results
    values: dict[str, Any] = {one.name: (one.value, one.config_source) for one in found.configs}
    assert values["share.session.timeout.ms"] == ("6000", 8)
    assert values["share.heartbeat.interval.ms"] == ("5000", 5)
    assert values["share.auto.offset.reset"] == ("earliest", 8)
    assert (await a.send_heartbeat(0, subscribed_topic_names=["t1"])).heartbeat_interval == timedelta(seconds=5)


async def test_offsets_of_many_partitions_are_altered_in_several_scripts(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One script for all of 10,000 partitions would keep Redis from everybody for half a second."""
    monkeypatch.setattr(offsets, "_PARTITIONS_AT_ONCE", 2)
    store, sizes = shares.brokers[1].store, list[int]()
    run = store.run

    async def watched(script: Any, names: Any, *args: Any) -> Any:
        if script is offsets.ALTER_OFFSETS:
            sizes.append((len(names) - 3) // 4)
        return await run(script, names, *args)

    monkeypatch.setattr(store, "run", watched)
    await shares.create("many", 5)

    changes = [("many", index, offset) for offset in (7, 3) for index in range(5)]
    assert await altered(shares, *changes) == " ".join(["NONE"] * 10)

    assert sizes == [2, 2, 1]
    assert [await shares.start_offset("many", index) for index in range(5)] == [3] * 5


async def test_describe_leaves_out_share_partitions_with_a_foreign_name(shares: ShareWorld) -> None:
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(1)
    assert await a.fetch(0) == "0-0x1"
    store = shares.brokers[0].store
    before = await partitions_of(store, shares.keys)
    await store.command("HSET", shares.keys.shares, "foreign", "x", b"\xff:0", "y")

    assert await partitions_of(store, shares.keys) == before
    assert list(before.values()) == ["t1"]


# -- executed late


def watch_scripts(shares: ShareWorld, monkeypatch: pytest.MonkeyPatch, before: Callable[[Any], None]) -> None:
    """Call `before` with each script that the second broker sends."""
    store = shares.brokers[1].store
    run = store.run

    async def watched(script: Any, names: Any, *args: Any) -> Any:
        before(script)
        return await run(script, names, *args)

    monkeypatch.setattr(store, "run", watched)


async def test_share_offsets_lease_ended_are_neither_altered_nor_deleted(shares: ShareWorld) -> None:
    """As when the script was on its way for long: the group may have been altered again through another broker."""
    assert await altered(shares, ("t1", 0, 5)) == "NONE"
    await shares.produce(9)
    lease = shares.brokers[1].context.broker_lease
    lease.ends_ms = shares.clock.now_ms

    assert await altered(shares, ("t1", 0, 2)) == NOT_AVAILABLE
    assert await altered(shares, ("t1", 0, 2), group="new") == NOT_AVAILABLE
    assert await deleted(shares, "t1") == NOT_AVAILABLE
    assert await described(shares) == [(5, 4)]
    assert (
        await shares.brokers[0].store.command("EXISTS", shares.brokers[0].store.group_keys("default", "new").group) == 0
    )

    lease.ends_ms = shares.clock.now_ms + 1
    assert await altered(shares, ("t1", 0, 2)) == await deleted(shares, "t1") == "NONE"


async def test_share_offsets_of_a_client_that_left_are_neither_altered_nor_deleted(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have repeated the request through another broker."""
    assert await altered(shares, ("t1", 0, 5)) == "NONE"
    await shares.produce(9)
    client = admin(shares)
    topic: dict[str, Any] = {"topic_name": "t1"}
    partitions = [{"partition_index": 0, "start_offset": 2}]
    asked = [
        request(ALTER, 0, group_id="jobs", topics=[topic | {"partitions": partitions}]),
        request(DELETE, 0, group_id="jobs", topics=[topic]),
    ]
    client.close()

    assert [code((await client.ask(one)).error_code) for one in asked] == ["REQUEST_TIMED_OUT"] * 2
    assert await described(shares) == [(5, 4)]


@pytest.mark.parametrize("is_delete", [False, True])
async def test_share_offsets_of_many_partitions_end_when_the_client_has_left(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch, is_delete: bool
) -> None:
    await shares.create("many", 5)
    changes = [("many", index, 7) for index in range(5)]
    assert await altered(shares, *changes) == " ".join(["NONE"] * 5)
    client, sent = admin(shares), list[Any]()
    monkeypatch.setattr(offsets, "_PARTITIONS_AT_ONCE", 2)

    def leave(script: Any) -> None:
        if script in (offsets.ALTER_OFFSETS, offsets.REMOVE_PARTITIONS):
            sent.append(script)
            client.client.closed = True

    watch_scripts(shares, monkeypatch, leave)
    partitions = [{"partition_index": index, "start_offset": 3} for index in range(5)]
    topics = [{"topic_name": "many"} if is_delete else {"topic_name": "many", "partitions": partitions}]
    answer = await client.ask(request(DELETE if is_delete else ALTER, 0, group_id="jobs", topics=topics))

    assert code(answer.error_code) == "REQUEST_TIMED_OUT"
    assert sent == [offsets.REMOVE_PARTITIONS if is_delete else offsets.ALTER_OFFSETS]
