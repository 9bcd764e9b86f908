"""ListGroups, DescribeGroups, DeleteGroups at every version (scenarios 1, 84, 96 and 97)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.wire import request
from tests.scripts.test_offsets_commit import commit_request
from tests.scripts.test_offsets_fetch import NOTHING, fetch
from tests.support.clock import SteppedClock
from tests.support.handlers import Broker, FakeCatalog, given_group, topic
from tidegate.apis import bounded_answers, group_admin
from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound, NonEmptyGroup
from tidegate.groups import directory
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

NONE, LOADING, NOT_AVAILABLE, NON_EMPTY, NOT_FOUND = 0, 14, 15, 68, 69
DELETE, DESCRIBE, LIST = 42, 15, 16
T1 = topic("t1", number=1)

assert group_admin  # importing the module registers its handlers


async def listed(broker: Broker, version: int = 5, **filters: tuple[str, ...]) -> list[tuple[str, str, str, str]]:
    """(group, protocol type, state, type) of ListGroups; "" where the version lacks it."""
    response = await broker.ask(request(LIST, version, **filters))
    assert response.error_code.value == NONE
    return [
        (one.group_id, one.protocol_type, getattr(one, "group_state", ""), getattr(one, "group_type", ""))
        for one in response.groups
    ]


async def described(broker: Broker, *group_ids: str, version: int = 6, with_operations: bool = False) -> list[Any]:
    """DescribeGroups."""
    operations = {"include_authorized_operations": with_operations} if version >= 3 else {}
    response = await broker.ask(request(DESCRIBE, version, groups=group_ids, **operations))
    return list(response.groups)


async def deleted(broker: Broker, *group_ids: str, version: int = 2) -> list[tuple[str, int]]:
    """DeleteGroups; (group, code) in order."""
    response = await broker.ask(request(DELETE, version, groups_names=group_ids))
    return [(one.group_id, one.error_code.value) for one in response.results]


# -- list


@pytest.mark.parametrize("version", range(6))
async def test_scenario_84_a_simple_group_is_listed_empty_with_no_protocol_type(broker: Broker, version: int) -> None:
    assert await listed(broker, version) == []
    await broker.ask(commit_request(9))
    assert await listed(broker, version) == [
        ("orders", "", "Empty" if version >= 4 else "", "classic" if version >= 5 else "")
    ]


async def test_scenario_97_filters(broker: Broker, store: Store, keys: GroupKeys) -> None:
    await given_group(store, keys)
    await given_group(store, store.group_keys("default", "idle"), state="Empty", members=(), subscribed=[])
    stable, empty = ("orders", "consumer", "Stable", "classic"), ("idle", "consumer", "Empty", "classic")

    assert await listed(broker) == [empty, stable]
    assert await listed(broker, states_filter=(" sTable ",)) == [stable]
    assert await listed(broker, states_filter=("stable", "EMPTY")) == [empty, stable]
    assert await listed(broker, states_filter=("nope",)) == []
    assert await listed(broker, types_filter=("Classic",)) == [empty, stable]
    assert await listed(broker, types_filter=(" classic ",)) == []
    assert await listed(broker, types_filter=("consumer",)) == []
    assert await listed(broker, version=4, states_filter=("empty",)) == [(*empty[:3], "")]


async def test_scenario_97_the_union_over_brokers_lists_each_group_once(store: Store) -> None:
    live = [SimpleNamespace(node_id=node_id) for node_id in (1, 2, 3)]
    brokers = [Broker(store, FakeCatalog(T1), one.node_id, live) for one in live]
    names = [f"group {number}/ü" for number in range(40)]
    for name in names:
        await brokers[0].ask(commit_request(9, group_id=name))

    lists = [[one[0] for one in await listed(broker)] for broker in brokers]
    assert sorted(name for names_here in lists for name in names_here) == sorted(names)
    assert all(lists)


async def test_list_groups_returns_only_those_of_the_org(store: Store, broker: Broker) -> None:
    await given_group(store, store.group_keys("other", "orders"))
    assert await listed(broker) == []


# -- describe


async def test_list_groups_leaves_out_what_no_broker_wrote(store: Store, broker: Broker, keys: GroupKeys) -> None:
    await broker.ask(commit_request(9))
    for name in (b"\xff", "default/by-hand"):
        await store.command("HSET", keys.shard_keys.groups, name, "yes")

    assert [name for name, *_ in await listed(broker)] == [keys.group_id]


@pytest.mark.parametrize("version", range(7))
async def test_scenario_97_an_absent_group_is_dead(broker: Broker, version: int) -> None:
    (group,) = await described(broker, "absent", version=version)
    assert (group.group_state, group.protocol_type, group.protocol_data, group.members) == ("Dead", "", "", ())
    assert group.error_code.value == (NOT_FOUND if version >= 6 else NONE)
    if version >= 6:
        assert "absent" in group.error_message
    if version >= 3:
        assert group.authorized_operations == -(1 << 31)


@pytest.mark.parametrize("version", range(7))
async def test_stable_group_shows_its_members_and_their_bytes(
    broker: Broker, store: Store, keys: GroupKeys, version: int
) -> None:
    await given_group(store, keys, members=["a", "b"], instances={"i": "b"})
    await store.command("HSET", keys.pending, "p", "{}")

    (group,) = await described(broker, "orders", version=version)
    assert (group.error_code.value, group.group_state) == (NONE, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert [
        (one.member_id, one.client_id, one.client_host, one.member_metadata, one.member_assignment)
        for one in group.members
    ] == [
        ("a", "client", "/127.0.0.1", b"wants a", b"has a"),
        ("b", "client", "/127.0.0.1", b"wants b", b"has b"),
    ]
    if version >= 4:
        assert [one.group_instance_id for one in group.members] == [None, "i"]


@pytest.mark.parametrize("version", range(3, 7))
async def test_authorized_operations_are_returned_on_request(
    broker: Broker, store: Store, keys: GroupKeys, version: int
) -> None:
    await given_group(store, keys)
    here, absent = await described(broker, "orders", "absent", version=version, with_operations=True)
    assert here.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11  # as in Kafka 4.1
    assert absent.authorized_operations == (-(1 << 31) if version == 6 else here.authorized_operations)


async def test_between_generations_no_protocol_and_no_metadata_is_shown(
    broker: Broker, store: Store, keys: GroupKeys
) -> None:
    await given_group(store, keys, state="CompletingRebalance")
    (group,) = await described(broker, "orders")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("CompletingRebalance", "consumer", "")
    assert [(one.member_metadata, one.member_assignment) for one in group.members] == [(b"", b"")]

    await given_group(store, keys, state="PreparingRebalance")
    await store.command("HSET", keys.assignments, "m-1", b"had")
    (group,) = await described(broker, "orders")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("PreparingRebalance", "consumer", "")
    assert [(one.member_metadata, one.member_assignment) for one in group.members] == [(b"", b"had")]


async def test_empty_group_of_pending_members_is_answered_alike_everywhere(
    broker: Broker, store: Store, keys: GroupKeys
) -> None:
    await given_group(store, keys, state="Empty", protocol_type="", members=(), subscribed=None)
    await store.command("HSET", keys.pending, "p", "{}")
    await store.command("ZADD", keys.sessions, 9_000_000_000_000, "p")

    for version in range(7):
        (group,) = await described(broker, "orders", version=version)
        assert (group.error_code.value, group.group_state, group.members) == (NONE, "Empty", ())
    assert await listed(broker) == [("orders", "", "Empty", "classic")]
    assert await deleted(broker, "orders") == [("orders", NONE)]


async def test_describe_expires_an_overdue_group_first(clock: SteppedClock, clock_store: Store) -> None:
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, deadline=clock.now_ms + 10_000)
    await clock.advance(10_000)
    (group,) = await described(broker, "orders")
    assert (group.group_state, group.members) == ("Empty", ())


async def test_group_named_many_times_is_described_once(
    broker: Broker, store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_group(store, keys)
    describe, asked, encoded = directory.describe, list[str](), list[Any]()

    async def counted(store: Store, keys: GroupKeys, broker: str) -> Any:
        asked.append(keys.group)
        return await describe(store, keys, broker)

    monkeypatch.setattr(directory, "describe", counted)
    monkeypatch.setattr(group_admin, "DescribeGroupsResponse", recorded(encoded, group_admin.DescribeGroupsResponse))
    found = await described(broker, *["orders"] * 500, "absent")

    assert len(asked) == 2
    assert [one.group_state for one in found] == ["Stable"] * 500 + ["Dead"]
    assert len({id(one) for one in encoded[0]["groups"]}) == 2, "they share one object"


def recorded(values: list[Any], kind: Any) -> Any:
    """Makes a `kind`, and appends its values."""

    def make(**fields: Any) -> Any:
        values.append(fields)
        return kind(**fields)

    return make


async def test_groups_beyond_the_bytes_of_an_answer_are_retriable(
    broker: Broker, store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_group(store, keys)
    await store.command("HSET", keys.assignments, "m-1", bytes(10_000))
    monkeypatch.setattr(bounded_answers, "ANSWER_BYTES_MAX", 25_000)

    found = await described(broker, *["orders"] * 4)
    assert [(one.error_code.value, len(one.members)) for one in found] == [(NONE, 1)] * 2 + [(LOADING, 0)] * 2
    monkeypatch.setattr(bounded_answers, "ANSWER_BYTES_MAX", 5_000)
    assert [one.error_code.value for one in await described(broker, "orders", "orders")] == [NONE, LOADING]


async def test_groups_beyond_the_bytes_of_an_answer_are_not_read(
    broker: Broker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_ids = [f"g{number}" for number in range(100)]
    describe, asked = directory.describe, list[str]()

    async def counted(store: Store, keys: GroupKeys, broker: str) -> Any:
        asked.append(keys.group)
        return await describe(store, keys, broker)

    monkeypatch.setattr(directory, "describe", counted)
    monkeypatch.setattr(bounded_answers, "ANSWER_BYTES_MAX", 1)
    found = await described(broker, *group_ids, version=5)

    assert len(asked) == 4, "those of one step"
    assert [one.error_code.value for one in found] == [NONE] + [LOADING] * 99


async def test_group_that_changed_while_it_was_read_is_read_again(
    broker: Broker, store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_group(store, keys, members=["a"])
    command, heads = store.command, 0

    async def interfere(*args: Any) -> Any:
        nonlocal heads
        if args[:2] == ("HMGET", keys.group):
            heads += 1
            if heads == 2:
                await given_group(store, keys, members=["a", "b"], generation=2)
        return await command(*args)

    monkeypatch.setattr(store, "command", interfere)
    found = await directory.describe(store, keys, "1")
    assert [member.member_id for member in found.members] == ["a", "b"]
    assert heads == 4


async def test_describe_group_that_always_changes_is_retriable(
    broker: Broker, store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_group(store, keys)
    command, heads = store.command, 0

    async def interfere(*args: Any) -> Any:
        nonlocal heads
        if args[:2] == ("HMGET", keys.group):
            heads += 1
            if heads % 2 == 0:
                await command("HINCRBY", keys.group, "version", 1)
        return await command(*args)

    monkeypatch.setattr(store, "command", interfere)
    with pytest.raises(CoordinatorLoadInProgress):
        await directory.describe(store, keys, "1")


async def test_store_that_is_away_is_retriable(broker: Broker) -> None:
    await broker.store.close()
    for version in range(7):
        (group,) = await described(broker, "orders", version=version)
        assert (group.error_code.value, group.group_state) == (NOT_AVAILABLE, "")
    for version in range(3):
        assert await deleted(broker, "orders", version=version) == [("orders", NOT_AVAILABLE)]


# -- delete


@pytest.mark.parametrize("version", range(3))
async def test_scenario_96_only_empty_groups_are_deleted(
    broker: Broker, store: Store, keys: GroupKeys, version: int
) -> None:
    for state in ("Stable", "PreparingRebalance", "CompletingRebalance"):
        await given_group(store, keys, state=state)
        assert await deleted(broker, "orders", version=version) == [("orders", NON_EMPTY)]
    for node in store.nodes:
        await node.control.call("FLUSHALL")

    await broker.ask(commit_request(9, topics={"t1": {0: (5, "")}}))
    assert await deleted(broker, "orders", "absent", "orders", version=version) == [
        ("orders", NONE),
        ("absent", NOT_FOUND),
    ]
    assert await fetch(broker, {"t1": [0]}) == (NONE, {"t1:0": NOTHING})
    assert await deleted(broker, "orders", version=version) == [("orders", NOT_FOUND)]
    assert await store.command("KEYS", "*:group:*") == []
    assert await listed(broker) == []


async def test_scenario_96_nothing_of_a_deleted_group_is_left(broker: Broker, store: Store, keys: GroupKeys) -> None:
    await given_group(store, keys, state="Empty", members=(), subscribed=[])
    own = [keys.subscriptions, keys.assignments, keys.protocols, keys.instances, keys.pending]
    for key in [*own, keys.offsets]:
        await store.command("HSET", key, "a", "1")
    for kind in ("session", "join", "sync", "retention"):
        await store.command("ZADD", keys.shard_keys.deadlines, 9_000_000_000_000, f"{kind}|{keys.ref}")

    assert await deleted(broker, "orders") == [("orders", NONE)]
    assert await store.command("KEYS", "*") == [keys.shard_keys.events.encode()]


async def test_scenario_96_racing_a_commit_one_of_the_two_is_first(
    store: Store, settings: Settings, keys: GroupKeys
) -> None:
    """Deletion through one broker, a simple commit through another: the value is there or it is not, never half."""
    other = Store(settings)
    await other.start()
    try:
        first, second = Broker(store, FakeCatalog(T1)), Broker(other, FakeCatalog(T1))
        for offset in range(30):
            await first.ask(commit_request(9))
            gone, committed = await asyncio.gather(
                deleted(first, "orders"), second.ask(commit_request(9, topics={"t1": {0: (100 + offset, "")}}))
            )
            assert gone == [("orders", NONE)]
            assert committed.topics[0].partitions[0].error_code.value == NONE
            there = (await fetch(first, {"t1": [0]}))[1]["t1:0"][0]
            assert there in (-1, 100 + offset)
            exists = [await store.command("EXISTS", key) for key in (keys.group, keys.offsets)]
            assert exists == ([1, 1] if there >= 0 else [0, 0])
            assert await store.command("HEXISTS", keys.shard_keys.groups, keys.ref) == exists[0]
    finally:
        await other.close()


async def test_overdue_members_do_not_protect_a_group(clock: SteppedClock, clock_store: Store) -> None:
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, deadline=clock.now_ms + 10_000)
    with pytest.raises(NonEmptyGroup):
        await directory.delete_group(clock_store, keys, "1")
    await clock.advance(10_000)
    await directory.delete_group(clock_store, keys, "1")
    with pytest.raises(GroupIdNotFound):
        await directory.delete_group(clock_store, keys, "1")
