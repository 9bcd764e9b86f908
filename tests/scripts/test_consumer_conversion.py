"""Scenarios 56-65 and 67 of the specification's consumer groups: online change between the protocols, over a socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.member import Member, subscription
from tests.support.consumer_wire import LIST, Wire, code, wire_of
from tests.support.valkey import ValkeyServer
from tidegate.protocol.consumer_blobs import assigned_partitions, write_assignment

NONE, REBALANCE, ILLEGAL = ErrorCode.none, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation
UNKNOWN, FENCED = ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id
INCONSISTENT = ErrorCode.inconsistent_group_protocol


@pytest.fixture
async def wire(valkey: ValkeyServer, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """A broker with the topics t1 and t4; its migration policy may be a parameter."""
    policy = getattr(request, "param", "bidirectional")
    async with wire_of(valkey, group_consumer_migration_policy=policy) as opened:
        yield opened


async def eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(30):
        while not await is_so():
            await asyncio.sleep(0.02)


def metadata(owned: Mapping[str, Sequence[int]] | None = None, topics: Sequence[str] = ("t4",)) -> bytes:
    """A subscription of v1 with the partitions that the member owns."""
    parts = [struct.pack(">h", 1), subscription(list(topics))[2:], struct.pack(">i", len(owned or {}))]
    for name, indexes in (owned or {}).items():
        parts += [
            struct.pack(">h", len(name)),
            name.encode(),
            struct.pack(f">i{len(indexes)}i", len(indexes), *indexes),
        ]
    return b"".join(parts)


async def rejoin(member: Member) -> tuple[ErrorCode, int, list[int]]:
    """Join and sync, truthful about what the member owns: the code, the generation, the partitions of t4."""
    owned = assigned_partitions(member.assignment) or {}
    member.metadata = metadata(owned)
    joined = await member.join()
    if joined.error_code is not NONE:
        return joined.error_code, -1, []
    synced = await member.sync()
    return synced.error_code, joined.generation_id, (assigned_partitions(synced.assignment) or {}).get("t4", [])


async def classic_group(wire: Wire, *traits: Mapping[str, Any], generation: int = 2) -> list[Member]:
    """A stable classic group of t4 whose members got its partitions in runs, ordered by id, at a generation.

    The assignor `uniform` takes partitions from the later ones first.
    """
    members = [await wire.member(metadata=metadata(), **one) for one in traits or ({}, {})]

    def plan() -> dict[str, bytes]:
        ids = sorted(member.member_id for member in members)
        runs = [range(4 * place // len(ids), 4 * (place + 1) // len(ids)) for place in range(len(ids))]
        return {own_id: write_assignment({"t4": list(run)}) for own_id, run in zip(ids, runs, strict=True)}

    def is_stable() -> bool:
        return all(member.synced == members[0].synced >= generation for member in members)

    async def live(member: Member) -> None:
        while not is_stable():
            assert (await member.join()).error_code is NONE
            synced = await member.sync(plan() if member.is_leader else None)
            while synced.error_code is NONE and not is_stable() and await member.heartbeat() is NONE:
                if member.is_leader and len({one.synced for one in members}) == 1:
                    break  # a leader that joins again opens the next generation
                await asyncio.sleep(0.02)

    async with asyncio.timeout(30):
        await asyncio.gather(*map(live, members))
    return sorted(members, key=lambda member: member.member_id)


async def listed(wire: Wire) -> tuple[str, str]:
    """Type and state in the list of groups."""
    answer = await wire.ask(LIST, 5, states_filter=(), types_filter=())
    (found,) = [one for one in answer.groups if one.group_id == wire.group]
    return found.group_type, found.group_state


async def test_scenario_56_and_57_upgrade_and_downgrade(wire: Wire) -> None:
    a, b = await classic_group(wire)
    start = a.generation
    assert await a.commit("t4", {0: 7, 1: 8}) == {0: NONE, 1: NONE}

    n = await wire.join("n", "t4")
    assert (code(n), n.member_epoch, wire.parts(n)) == ("NONE", start + 1, {})
    assert (await listed(wire))[0] == "consumer"
    assert (await a.heartbeat(), await b.heartbeat()) == (REBALANCE, REBALANCE)
    assert await a.commit("t4", {0: 9}) == {0: NONE}
    assert await rejoin(a) == (NONE, start + 1, [0, 1])
    assert await rejoin(b) == (NONE, start, [2])
    assert await b.heartbeat() is REBALANCE
    assert await rejoin(b) == (NONE, start + 1, [2])
    assert (await a.heartbeat(), await b.heartbeat()) == (NONE, NONE)
    assert wire.parts(await wire.heartbeat("n", start + 1)) == {"t4": [3]}
    assert await listed(wire) == ("consumer", "Stable")
    described = await wire.describe()
    assert sorted(one.member_type for one in described.members) == [0, 0, 1]
    assert await wire.fetch(None, -1) == 9

    left = await wire.ask(13, 5, group_id=wire.group, members=[{"member_id": "n"}])
    assert code(left.members[0]) == "NONE"
    assert await listed(wire) == ("classic", "PreparingRebalance")
    assert (await a.heartbeat(), await b.heartbeat()) == (REBALANCE, REBALANCE)
    assert await a.commit("t4", {0: 10}) == {0: NONE}
    assert code(await wire.heartbeat("n", start + 1)) == "GROUP_ID_NOT_FOUND"
    joined = await asyncio.gather(a.join(), b.join())
    assert {one.generation_id for one in joined} == {start + 2}
    assert [one.leader for one in joined] in ([a.member_id] * 2, [b.member_id] * 2)
    assert await wire.fetch(None, -1) == 10


async def test_scenario_58_the_last_consumer_is_silent(valkey: ValkeyServer) -> None:
    async with wire_of(
        valkey, group_consumer_session_timeout_ms=5_000, group_consumer_heartbeat_interval_ms=100
    ) as wire:
        a, b = await classic_group(wire)
        n = await wire.join("n", "t4")
        assert await rejoin(a) == (NONE, n.member_epoch, [0, 1])

        async def is_classic() -> bool:
            return (await listed(wire))[0] == "classic"

        await eventually(is_classic)
        assert await a.heartbeat() is REBALANCE
        assert await b.heartbeat() is REBALANCE  # Kafka: ILLEGAL_GENERATION, for it never reached the consumer's epoch
        assert await b.commit("t4", {2: 6}) == {2: NONE}
        assert (await b.sync()).error_code is REBALANCE
        joined = await asyncio.gather(a.join(), b.join())
        assert {one.generation_id for one in joined} == {n.member_epoch + 1}


async def test_downgrade_a_member_behind_may_name_its_epoch_until_it_rejoins(wire: Wire) -> None:
    a, b = await classic_group(wire)
    n = await wire.join("n", "t4")
    assert await rejoin(a) == (NONE, n.member_epoch, [0, 1])
    behind = b.generation
    assert behind < n.member_epoch
    assert code(await wire.heartbeat("n", -1)) == "NONE"
    assert await listed(wire) == ("classic", "PreparingRebalance")
    assert await b.commit("t4", {2: 5}) == {2: NONE}
    assert await b.committed("t4", [2]) == {2: 5}
    for wrong in (behind - 1, behind + 2):
        b.generation = wrong
        assert (await b.heartbeat(), await b.commit("t4", {2: 4})) == (ILLEGAL, {2: ILLEGAL})
    b.generation = behind
    assert (await a.heartbeat(), await b.heartbeat()) == (REBALANCE, REBALANCE)

    other = await wire.member(member_id=b.member_id, generation=behind)
    again = asyncio.ensure_future(b.join())  # the group waits for `a`, but not for `b` any more

    async def is_refused() -> bool:
        return await other.heartbeat() is ILLEGAL

    await eventually(is_refused)
    assert await other.commit("t4", {2: 4}) == {2: ILLEGAL}
    assert (await other.sync()).error_code is ILLEGAL
    joined = [await a.join(), await again]
    assert {one.generation_id for one in joined} == {n.member_epoch + 1}
    assert await b.committed("t4", [2]) == {2: 5}


async def test_downgrade_the_epoch_of_a_static_member_ends_with_the_phase(wire: Wire) -> None:
    times = {"rebalance_timeout_ms": 5_000}
    members = await classic_group(wire, times, {**times, "instance_id": "b"})
    a, b = sorted(members, key=lambda member: member.instance_id or "")
    behind = b.generation
    n = await wire.join("n", "t4")
    while (await rejoin(a))[1] < n.member_epoch:
        pass  # it may have to give up a partition first
    assert code(await wire.heartbeat("n", -1)) == "NONE"
    assert await listed(wire) == ("classic", "PreparingRebalance")
    assert await b.heartbeat() is REBALANCE

    assert (await a.join()).error_code is NONE  # at the end of the phase, which `b` missed
    assert (await a.sync()).error_code is NONE
    again = asyncio.ensure_future(a.join())

    async def is_preparing() -> bool:
        return (await listed(wire))[1] == "PreparingRebalance"

    await eventually(is_preparing)
    b.generation = behind
    assert (await b.heartbeat(), await b.commit("t4", {2: 4})) == (ILLEGAL, {2: ILLEGAL})
    assert (await b.sync()).error_code is ILLEGAL
    assert (await again).error_code is NONE


async def test_scenario_59_what_hinders_an_upgrade(wire: Wire) -> None:
    custom = await wire.member(metadata=subscription(["t4"], b"user data"))
    await custom.join()
    await custom.sync({custom.member_id: write_assignment({"t4": [0]})[:-4] + struct.pack(">i", 1) + b"x"})
    refused = await wire.join("n", "t4")
    assert (code(refused), "custom assignor" in refused.error_message) == ("GROUP_ID_NOT_FOUND", True)
    assert await custom.heartbeat() is NONE

    await custom.join()
    await custom.sync({custom.member_id: write_assignment({"t4": [0]})})
    assert code(await wire.join("n", "t4")) == "NONE"

    wire.group += "-garbage"
    garbage = await wire.member(metadata=b"\x00\x01\xff")
    await garbage.round()
    assert code(await wire.join("n", "t4")) == "GROUP_ID_NOT_FOUND"
    assert await garbage.heartbeat() is NONE


async def test_consumer_joins_a_classic_group_without_members_before_its_first_generation(
    valkey: ValkeyServer,
) -> None:
    async with wire_of(valkey, group_initial_rebalance_delay_ms=60_000) as wire:
        k = await wire.member(metadata=metadata())
        parked = asyncio.ensure_future(k.join())

        async def has_joined() -> bool:
            return bool(k.member_id) and (await listed(wire))[1] == "PreparingRebalance"

        await eventually(has_joined)
        assert code(await (await wire.member(member_id=k.member_id)).leave()) == "NONE"
        assert (await parked).error_code is UNKNOWN
        assert await listed(wire) == ("classic", "PreparingRebalance")

        n = await wire.join("n", "t4")

        assert (code(n), wire.parts(n)) == ("NONE", {"t4": [0, 1, 2, 3]})
        assert await listed(wire) == ("consumer", "Stable")


async def test_scenario_60_parked_requests(wire: Wire) -> None:
    (a,) = await classic_group(wire, {})
    k = await wire.member(metadata=metadata())
    parked = asyncio.ensure_future(k.join())

    async def is_preparing() -> bool:
        return (await listed(wire))[1] == "PreparingRebalance"

    await eventually(is_preparing)
    assert code(await wire.join("n", "t4")) == "NONE"
    assert (await parked).error_code is REBALANCE
    assert k.member_id in {one.member_id for one in (await wire.describe()).members}
    assert (await rejoin(k))[0] is NONE
    assert await a.heartbeat() is REBALANCE

    wire.group += "-completing"
    c, d = await wire.member(metadata=metadata()), await wire.member(metadata=metadata())
    await asyncio.gather(c.join(), d.join())
    while not (c.generation == d.generation and (c.is_leader or d.is_leader)):
        await asyncio.gather(c.join(), d.join())
    follower = d if c.is_leader else c
    waiting = asyncio.ensure_future(follower.sync())
    await asyncio.sleep(0.05)
    assert code(await wire.join("n", "t4")) == "NONE"
    assert (await waiting).error_code is REBALANCE


async def test_scenario_61_a_classic_member_joins_a_consumer_group(wire: Wire) -> None:
    n = await wire.join("n", "t4")
    k = await wire.member(metadata=metadata())
    assert await rejoin(k) == (NONE, n.member_epoch + 1, [])
    reported = await wire.heartbeat("n", n.member_epoch, topic_partitions=())
    assert len(wire.parts(reported)["t4"]) == 2  # type: ignore[index]
    await wire.heartbeat("n", reported.member_epoch)
    assert await k.heartbeat() is REBALANCE
    rejoined = await rejoin(k)
    assert (rejoined[:2], len(rejoined[2])) == ((NONE, n.member_epoch + 1), 2)
    assert await k.heartbeat() is NONE

    other = await wire.member(metadata=metadata(), protocols=("unheard-of",))
    assert (await other.join()).error_code is INCONSISTENT
    k.generation += 1
    assert (await k.heartbeat(), (await k.sync()).error_code) == (ILLEGAL, ILLEGAL)
    k.generation -= 2
    assert await k.heartbeat() is ILLEGAL


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "never rejoins"])
async def test_scenario_62_a_classic_member_is_removed(wire: Wire, silent: bool) -> None:
    traits = {"session_timeout_ms": 5_000} if silent else {"rebalance_timeout_ms": 5_000}
    a, b = sorted(
        await classic_group(wire, traits, {}), key=lambda one: one.session_timeout_ms + one.rebalance_timeout_ms
    )
    n = await wire.join("n", "t4")
    await rejoin(b)

    async def is_removed() -> bool:
        if not silent:
            await a.heartbeat()
        return a.member_id not in {one.member_id for one in (await wire.describe()).members}

    await eventually(is_removed)
    assert await a.heartbeat() is UNKNOWN
    assert await b.heartbeat() is REBALANCE
    assert code(await wire.heartbeat("n", n.member_epoch)) == "NONE"


async def test_scenario_63_a_static_member_changes_its_protocol(wire: Wire) -> None:
    (a,) = await classic_group(wire, {"instance_id": "i1"}, generation=1)
    generation = a.generation

    n = await wire.join("n", "t4", instance_id="i1")
    assert (code(n), n.member_epoch, wire.parts(n)) == ("NONE", generation, {"t4": [0, 1, 2, 3]})
    assert await a.heartbeat() is FENCED
    assert (await a.join()).error_code is FENCED

    k = await wire.member(metadata=metadata(), instance_id="i1")
    joined = await k.join()
    assert (joined.error_code, joined.generation_id) == (NONE, generation)
    assert await listed(wire) == ("classic", "Stable")
    synced = await k.sync()
    assert assigned_partitions(synced.assignment) == {"t4": [0, 1, 2, 3]}
    assert code(await wire.heartbeat("n", generation)) == "GROUP_ID_NOT_FOUND"
    assert await k.heartbeat() is NONE


async def test_scenario_64_the_same_member_id_and_older_generations(wire: Wire) -> None:
    a, b = await classic_group(wire)
    old = a.generation
    changed = await wire.join(a.member_id, "t4")
    assert code(changed) == "NONE"
    types = {one.member_id: one.member_type for one in (await wire.describe()).members}
    assert types == {a.member_id: 1, b.member_id: 0}
    assert await a.heartbeat() is UNKNOWN

    await wire.join("n", "t4")
    await rejoin(b)
    (_, generation, [kept]) = await rejoin(b)
    assert generation > old
    (lost,) = {2, 3} - {kept}
    b.generation = old
    assert await b.commit("t4", {kept: 1}) == {kept: NONE}
    assert await b.commit("t4", {lost: 1}) == {lost: ILLEGAL}


@pytest.mark.parametrize("wire", ["disabled"], indirect=True)
async def test_scenario_65_disabled(wire: Wire) -> None:
    (a,) = await classic_group(wire, {})
    assert code(await wire.join("n", "t4")) == "GROUP_ID_NOT_FOUND"
    assert await a.heartbeat() is NONE
    wire.group += "-consumer"
    n = await wire.join("n", "t4")
    k = await wire.member(metadata=metadata())
    assert (await k.join()).error_code is INCONSISTENT
    assert code(await wire.heartbeat("n", n.member_epoch)) == "NONE"


@pytest.mark.parametrize("wire", ["upgrade", "downgrade"], indirect=True)
async def test_scenario_67_one_direction(wire: Wire) -> None:
    policy = wire.app.broker.settings.group_consumer_migration_policy
    (a,) = await classic_group(wire, {})
    joined = await wire.join("n", "t4")
    if policy == "downgrade":
        assert code(joined) == "GROUP_ID_NOT_FOUND"
        wire.group += "-consumer"
        await wire.join("n", "t4")
        a = await wire.member(metadata=metadata())
        await rejoin(a)
    await wire.heartbeat("n", -1)
    assert (await listed(wire))[0] == ("consumer" if policy == "upgrade" else "classic")
    assert await a.heartbeat() is REBALANCE
    if policy == "upgrade":
        assert (await rejoin(a))[2] == [0, 1, 2, 3]


async def test_conversion_forgets_an_unused_member_id(wire: Wire) -> None:
    unused = await wire.member(session_timeout_ms=1_000, metadata=subscription(["t4"]))
    assert (await unused.client.ask(unused.join_request())).error_code is ErrorCode.member_id_required
    joined = await wire.join("A", "t4")
    await asyncio.sleep(2.5)

    answered = await wire.heartbeat("A", joined.member_epoch)

    assert (answered.error_code, answered.member_epoch) == (NONE, joined.member_epoch)
    assert (await wire.heartbeat("A", joined.member_epoch)).error_code is NONE
