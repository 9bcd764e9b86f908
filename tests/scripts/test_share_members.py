"""Scenarios 1-10 of the specification's share groups: members, epochs, assignments."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.rounds import counted_rounds
from tests.support.shares import ShareWorld
from tests.support.steps import sweep_expiry
from tidegate.apis import share_groups
from tidegate.apis.slices import SLICE
from tidegate.groups.share import coordinator

INVALID, FENCED, UNKNOWN = "INVALID_REQUEST", "FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"
NOT_FOUND = "GROUP_ID_NOT_FOUND"


async def test_scenario_1_invalid_requests(shares: ShareWorld) -> None:
    a = shares.member("a")

    for fields in ({"group_id": " "}, {"member_id": " "}, {"rack_id": ""}, {"member_id": "m" * 37}):
        assert await a.heartbeat(0, subscribed_topic_names=["t1"], **fields) == INVALID
    for names in (None, []):
        assert await a.heartbeat(0, subscribed_topic_names=names) == INVALID
    assert await a.heartbeat(-2) == INVALID
    assert await a.heartbeat(0, subscribed_topic_names=["t1"], member_id="m" * 36) == (2, {"t1": [0]})


async def test_scenario_2_no_group_and_no_member(shares: ShareWorld) -> None:
    a, b = shares.member("a"), shares.member("b")
    assert await a.heartbeat(1) == await a.heartbeat(-1) == NOT_FOUND

    await shares.joined(b)

    assert await a.heartbeat(1) == await a.heartbeat(-1) == UNKNOWN


async def test_scenario_3_the_first_join_brings_the_partitions(shares: ShareWorld) -> None:
    a = shares.member("a", "t4")

    assert await a.join() == (2, {"t4": [0, 1, 2, 3]})  # Kafka: none yet, a later heartbeat brings them
    assert await a.heartbeat() == (2, None)


async def test_scenario_4_partitions_are_shared(shares: ShareWorld) -> None:
    a, b = shares.member("a", "t4"), shares.member("b", "t4", broker=1)
    await a.join()

    assert await b.join() == (3, {"t4": [2, 3]})
    assert await a.heartbeat() == (3, {"t4": [0, 1]})

    members = [a, b, *(shares.member(name, "t4") for name in "cdef")]
    await shares.joined(*members)
    for member in members:
        await member.heartbeat()
    assigned = [index for member in members for index in member.assigned["t4"]]
    assert sorted(assigned) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_scenario_5_epochs(shares: ShareWorld) -> None:
    a, b = shares.member("a", "t4"), shares.member("b", "t4")
    await shares.joined(a)
    for _ in range(3):
        await b.join()
        await b.leave()
    assert await a.heartbeat() == (8, None)

    assert await a.heartbeat(7) == await a.heartbeat(9) == FENCED
    assert await a.heartbeat(2) == (8, {"t4": [0, 1, 2, 3]})  # its answer may have been lost; Kafka sends no assignment
    assert await a.heartbeat(0, subscribed_topic_names=["t4"]) == (8, {"t4": [0, 1, 2, 3]})


async def test_scenario_6_leave(shares: ShareWorld) -> None:
    a, b = shares.member("a", "t4"), shares.member("b", "t4")
    await shares.joined(a, b)

    assert await a.leave() == (-1, None)
    group = await shares.describe()
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 4, 3)
    assert await a.leave() == UNKNOWN
    assert await b.leave() == (-1, None)
    assert (await shares.describe()).group_state == "Empty"


async def test_scenario_7_an_empty_subscription(shares: ShareWorld) -> None:
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(2)
    assert await a.fetch(0) == "0-1x1"

    assert await a.heartbeat(subscribed_topic_names=[]) == (3, {})

    await shares.produce(1)
    assert await a.fetch() == "2-2x1"
    assert await a.ack(0, 2) == "NONE"


async def test_scenario_8_a_silent_member(shares: ShareWorld) -> None:
    a, b = shares.member("a"), shares.member("b", broker=1)
    await shares.joined(a)
    await shares.configure(share_record_lock_duration_ms=100_000)
    await shares.produce(3)
    assert await a.fetch(0) == "0-2x1"

    await shares.clock.advance(45_000)

    assert (await shares.describe()).group_state == "Empty"
    assert await b.fetch(0) == ""
    assert await a.fetch() == ""
    assert await a.ack(0, 2) == "NONE"


async def test_scenario_9_the_size_of_a_group(shares: ShareWorld) -> None:
    for broker in shares.brokers:
        settings = broker.context.settings.model_copy(update={"group_max_size": 2})
        broker.context.shares.groups._settings = settings
    a, b, c = (shares.member(name) for name in "abc")
    await shares.joined(a, b)

    assert await c.join() == "GROUP_MAX_SIZE_REACHED"
    assert await a.join() == (3, {"t1": [0]})


async def test_describe(shares: ShareWorld) -> None:
    assert (await shares.describe()).error_code is ErrorCode.group_id_not_found
    a = shares.member("a", "t2")
    await shares.joined(a)

    group = await shares.describe()

    assert (group.error_code, group.assignor_name) == (ErrorCode.none, "simple")
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.client_host) == ("member-a", 2, "/127.0.0.1")
    assert member.subscribed_topic_names == ("t2",)
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t2", (0, 1))


async def test_group_outlives_the_floor_of_a_remembered_generation(shares: ShareWorld) -> None:
    assert await shares.report_generation(5)
    assert 0 < await shares.brokers[0].store.command("PTTL", shares.keys.group) <= 1_800_000
    a = shares.member("a")

    await shares.joined(a)

    assert await shares.brokers[0].store.command("PTTL", shares.keys.group) == -1


@pytest.mark.parametrize("generation", [9, -1])
async def test_group_with_lost_epochs_keeps_its_members(shares: ShareWorld, generation: int) -> None:
    a = shares.member("a")
    await shares.joined(a)

    assert not await shares.report_generation(generation, failover_epoch=7)

    group = await shares.describe()
    assert (group.group_state, group.group_epoch) == ("Stable", 2)
    (result,) = (await shares.brokers[1].connect().ask(request(42, 2, groups_names=["jobs"]))).results
    assert result.error_code is ErrorCode.non_empty_group
    assert await a.heartbeat() == (2, None)


async def test_sessions_are_swept(shares: ShareWorld) -> None:
    from tidegate.groups.expiry import SHARE_KIND, GroupExpiry

    broker = shares.brokers[1]
    expiry = GroupExpiry(broker.store, lambda _: True, lambda: "1", {SHARE_KIND: broker.context.shares.groups.expire})
    await sweep_expiry(expiry)
    await shares.joined(shares.member("a"))
    for _ in range(45):
        await shares.clock.advance(1_000)
        await sweep_expiry(expiry)

    assert await broker.store.command("HGET", shares.keys.group, "state") == b"Empty"


async def test_decision_on_many_partitions_is_taken_beside_the_event_loop(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    decide = coordinator.decide

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return decide(*args)

    monkeypatch.setattr(coordinator, "decide", watched)
    await shares.member("a").join()
    assert set(threads) == {threading.main_thread()}
    await shares.create("many", 2_000)
    threads.clear()

    await shares.member("b", "many").join()

    assert threads
    assert threading.main_thread() not in threads


async def test_describe_checks_each_topic_once_and_in_slices(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"absent-{number}" for number in range(4 * SLICE)]
    for name in ("a", "b"):
        await shares.member(name).join(*names)
    threads: list[threading.Thread] = []
    members = share_groups._members

    def noting(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return members(*args)

    monkeypatch.setattr(share_groups, "_members", noting)
    with counted_rounds() as rounds:
        allows = rounds.counting(lambda _requester, _operation, _type, name: name in names)
        authorizer = SimpleNamespace(is_super_user=lambda _: False, allows=allows)
        monkeypatch.setattr(shares.brokers[0].context, "security", SimpleNamespace(authorizer=authorizer))
        group = await shares.describe()

    assert [len(one.subscribed_topic_names) for one in group.members] == [len(names)] * 2
    assert (rounds.total, rounds.most) == (len(names), SLICE)
    assert threading.main_thread() not in threads
