"""Scenarios 1-6, 35, 47-51, 54, 55 and 65 of the specification's consumer groups, over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.member import subscription
from tests.support.consumer_wire import JOIN, LEAVE, LIST, Wire, code, wire_of
from tests.support.valkey import ValkeyServer
from tidegate.groups.consumer.coordinator import ConsumerGroups


@pytest.fixture
async def wire(valkey: ValkeyServer) -> AsyncIterator[Wire]:
    """A broker with two topics; online changes of the protocol are disabled."""
    async with wire_of(valkey, group_consumer_migration_policy="disabled") as opened:
        yield opened


async def test_scenario_1_to_3_blank_names(wire: Wire) -> None:
    for version in (0, 1):
        for group in ("", " "):
            assert code(await wire.join("m", "t1", version=version, group_id=group)) == "INVALID_REQUEST"
    for member_id in ("", " "):
        assert code(await wire.join(member_id, "t1")) == "INVALID_REQUEST"
        assert code(await wire.heartbeat(member_id, 1)) == "INVALID_REQUEST"
        assert code(await wire.heartbeat(member_id, 1, version=0)) == "INVALID_REQUEST"
    for field in ("instance_id", "rack_id"):
        assert code(await wire.join("m", "t1", **{field: " "})) == "INVALID_REQUEST"
        assert code(await wire.join("m", "t1", **{field: ""})) == "INVALID_REQUEST"

    joined = await wire.join("", "t1", version=0)
    assert (code(joined), len(joined.member_id)) == ("NONE", 22)


async def test_scenario_4_and_5_what_a_join_needs(wire: Wire) -> None:
    owned = [{"topic_id": wire.topics["t1"], "partitions": (0,)}]
    for fields in (
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": owned},
        {"subscribed_topic_names": None},
    ):
        assert code(await wire.join("m", "t1", **fields)) == "INVALID_REQUEST"
    assert code(await wire.heartbeat("m", -2)) == "INVALID_REQUEST"
    assert code(await wire.heartbeat("m", -3)) == "INVALID_REQUEST"
    for assignor in ("foo", "", "UNIFORM"):
        refused = await wire.join("m", "t1", server_assignor=assignor)
        assert code(refused) == "UNSUPPORTED_ASSIGNOR"
        assert (refused.member_id, refused.member_epoch, refused.assignment) == (None, 0, None)
    assert code(await wire.describe()) == "GROUP_ID_NOT_FOUND"

    for timeout_ms in (0, -5):
        assert code(await wire.join("m", "t1", "t1", rebalance_timeout_ms=timeout_ms)) == "NONE"


async def test_scenario_47_commits_without_a_group(wire: Wire) -> None:
    assert await wire.commit("", 1, version=8) == "ILLEGAL_GENERATION"
    assert await wire.commit("", 1, version=9) == "GROUP_ID_NOT_FOUND"
    assert await wire.commit("", -1) == "NONE"


async def test_scenario_48_commits_of_a_member(wire: Wire) -> None:
    assert await wire.commit("", -1) == "NONE"
    assert (await wire.join("a", "t4")).member_epoch > 0
    epoch = (
        await wire.heartbeat("a", 0, subscribed_topic_names=("t4",), topic_partitions=(), rebalance_timeout_ms=1)
    ).member_epoch

    assert await wire.commit("", -1) == "UNKNOWN_MEMBER_ID"
    assert await wire.commit("a", epoch, version=8) == "UNSUPPORTED_VERSION"
    assert await wire.commit("a", epoch, 5, version=9) == "NONE"
    assert await wire.commit("a", epoch, 6, version=10) == "NONE"
    assert await wire.commit("a", epoch + 1) == "STALE_MEMBER_EPOCH"
    assert await wire.commit("a", epoch - 1) == "STALE_MEMBER_EPOCH"
    assert await wire.commit("b", epoch) == "UNKNOWN_MEMBER_ID"
    assert await wire.fetch("a", epoch) == 6
    # The broker no longer remembers the group: the commit finds its way all the same.
    groups = wire.app.broker.context.consumers.groups
    groups.cached.drop(wire.app.broker.store.group_keys("default", wire.group).group)
    assert await wire.commit("a", epoch, 7) == "NONE"
    assert await wire.commit("a", epoch + 1) == "STALE_MEMBER_EPOCH"


async def test_scenario_50_commits_at_an_older_epoch(wire: Wire) -> None:
    a = await wire.join("a", "t4")
    await wire.join("b", "t4")
    kept = wire.parts(await wire.heartbeat("a", a.member_epoch))
    assert kept == {"t4": [0, 1]}
    owned = [{"topic_id": wire.topics["t4"], "partitions": (0, 1)}]
    moved = await wire.heartbeat("a", a.member_epoch, topic_partitions=owned)
    assert moved.member_epoch == a.member_epoch + 1
    b = await wire.heartbeat("b", moved.member_epoch)
    assert wire.parts(b) == {"t4": [2, 3]}

    old, new = a.member_epoch, moved.member_epoch
    assert await wire.commit("a", old, partition=0) == "NONE"
    assert await wire.commit("a", old, partition=1) == "NONE"
    assert await wire.commit("a", old, partition=2) == "STALE_MEMBER_EPOCH"
    assert await wire.commit("a", old - 1, partition=0) == "STALE_MEMBER_EPOCH"
    assert await wire.commit("a", new, partition=2) == "NONE"
    assert await wire.commit("b", old, partition=2) == "STALE_MEMBER_EPOCH"


async def test_scenario_51_fetches_of_a_member(wire: Wire) -> None:
    assert await wire.fetch("nobody", 3) == -1
    epoch = (await wire.join("a", "t4")).member_epoch
    await wire.commit("a", epoch, 42)

    assert await wire.fetch("a", epoch) == 42
    for other in (epoch - 1, epoch + 1, -1, 0):
        assert await wire.fetch("a", other) == "STALE_MEMBER_EPOCH"
    assert await wire.fetch("b", epoch) == "UNKNOWN_MEMBER_ID"
    assert await wire.fetch(None, -1) == 42


async def test_scenario_35_leave_group_removes_members(wire: Wire) -> None:
    a = await wire.join("a", "t4", instance_id="i1")

    async def leave(**fields: Any) -> str:
        answer = await wire.ask(LEAVE, 5, group_id=wire.group, members=[{"member_id": "", **fields}])
        return code(answer.members[0])

    assert await leave(group_instance_id="i1") == "NONE"
    assert code(await wire.heartbeat("a", a.member_epoch)) == "UNKNOWN_MEMBER_ID"
    await wire.join("b", "t4")
    assert await leave(member_id="b") == "NONE"
    assert await leave(member_id="b") == "UNKNOWN_MEMBER_ID"


async def test_leave_group_removes_many_members_in_one_decision(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        await wire.join(name, "t4")
    decided: list[int] = []
    decide = ConsumerGroups._decide

    async def watched(self: ConsumerGroups, keys: Any, base: Any, works: Any) -> Any:
        decided.append(len(works))
        return await decide(self, keys, base, works)

    monkeypatch.setattr(ConsumerGroups, "_decide", watched)
    members = [{"member_id": name} for name in ("a", "x", "b")]

    answer = await wire.ask(LEAVE, 5, group_id=wire.group, members=members)

    assert [code(one) for one in answer.members] == ["NONE", "UNKNOWN_MEMBER_ID", "NONE"]
    assert decided == [3]
    assert [one.member_id for one in (await wire.describe()).members] == ["c"]


async def test_scenario_54_and_55_describe_list_and_delete(wire: Wire) -> None:
    a = await wire.join("a", "t4", server_assignor="range", rack_id="r1")
    await wire.commit("a", a.member_epoch)

    group = await wire.describe()
    assert (code(group), group.group_state, group.assignor_name) == ("NONE", "Stable", "range")
    assert group.group_epoch == group.assignment_epoch == a.member_epoch
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.rack_id) == ("a", a.member_epoch, "r1")
    assert (member.client_host, member.subscribed_topic_names) == ("/127.0.0.1", ("t4",))
    assert (member.subscribed_topic_regex, member.member_type) == ("", 1)
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_name, topic.topic_id, topic.partitions) == ("t4", wire.topics["t4"], (0, 1, 2, 3))
    assert (await wire.describe(version=0)).members[0].member_id == "a"

    listed = await wire.ask(LIST, 5, states_filter=("stable",), types_filter=("Consumer",))
    assert [(one.group_id, one.group_type, one.group_state) for one in listed.groups] == [
        (wire.group, "consumer", "Stable")
    ]
    for version, answer in ((5, "NONE"), (6, "GROUP_ID_NOT_FOUND")):
        old = await wire.ask(15, version, groups=(wire.group,), include_authorized_operations=False)
        assert (code(old.groups[0]), old.groups[0].group_state) == (answer, "Dead")

    async def delete() -> str:
        return code((await wire.ask(42, 2, groups_names=(wire.group,))).results[0])

    assert await delete() == "NON_EMPTY_GROUP"
    await wire.heartbeat("a", -1)
    assert (await wire.describe()).group_state == "Empty"
    assert await delete() == "NONE"
    assert code(await wire.describe()) == "GROUP_ID_NOT_FOUND"


async def test_scenario_65_a_classic_join_meets_a_consumer_group(wire: Wire) -> None:
    async def join(member_id: str = "") -> Any:
        return await wire.ask(
            JOIN, 5, group_id=wire.group, session_timeout=10_000, rebalance_timeout=10_000, member_id=member_id,
            protocol_type="consumer", protocols=[{"name": "range", "metadata": subscription(["t4"])}],
        )  # fmt: skip

    a = await wire.join("a", "t4")
    assert code(await join()) == "INCONSISTENT_GROUP_PROTOCOL"
    assert code(await wire.heartbeat("a", a.member_epoch)) == "NONE"
    await wire.commit("a", a.member_epoch, 7)
    await wire.heartbeat("a", -1)

    asked = await join()
    joined = await join(asked.member_id)
    assert (code(joined), joined.protocol_name) == ("NONE", "range")
    assert await wire.fetch(None, -1) == 7
    assert code(await wire.join("a", "t4")) == "GROUP_ID_NOT_FOUND"
    assert code(await wire.describe()) == "GROUP_ID_NOT_FOUND"

    member = SimpleNamespace(id=asked.member_id)
    left = await wire.ask(LEAVE, 2, group_id=wire.group, member_id=member.id)
    assert code(left) == "NONE"
    again = await wire.join("a", "t4")
    assert (code(again), wire.parts(again)) == ("NONE", {"t4": [0, 1, 2, 3]})
    assert again.member_epoch > a.member_epoch
