"""A group is an entity of its organisation: id, locator, what survives leaves and restarts; two organisations apart.

Each test is a statement of the document on group identity, or where ours goes further: offsets and ids are durable.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.clock import START_MS, SteppedClock
from tests.support.log_broker import fetch_request
from tests.support.steps import refresh_waits
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.settings import Settings

UNKNOWN_MEMBER = ErrorCode.unknown_member_id
Open = Callable[..., Awaitable[WholeBroker]]


@pytest.fixture
async def opened(clock: SteppedClock, settings: Settings) -> AsyncIterator[Open]:
    """Makes brokers on a clock that stands still; groups form without a delay unless a test says otherwise."""
    brokers: list[WholeBroker] = []

    async def open_one(**changes: Any) -> WholeBroker:
        own = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0} | changes)
        broker = await WholeBroker(own, len(brokers) + 1).start()
        brokers.append(broker)
        return broker

    yield open_one
    for broker in brokers:
        await broker.close()


@pytest.fixture
async def broker(opened: Open) -> WholeBroker:
    made = await opened()
    await made.create("t", 2)
    return made


async def wait_for_state(client: ClientOf, state: str) -> None:
    """The group comes into a state."""
    async with asyncio.timeout(40):
        while (await hash_of(client)).get("state") != state:
            await asyncio.sleep(0.005)


async def hash_of(client: ClientOf) -> dict[str, str]:
    """What `HGETALL` of the group shows."""
    store = client.broker.store
    keys = store.group_keys(client.client.org, client.group_id)
    return {name.decode(): value.decode() for name, value in (await store.command("HGETALL", keys.group)).items()}


# -- the id


async def test_first_join_assigns_an_id(broker: WholeBroker) -> None:
    member = broker.client()
    assert await hash_of(member) == {}
    await member.join("t")

    assert re.fullmatch(r"cgp_[0-9a-hjkmnp-tv-z]{26}", (await hash_of(member))["id"])


async def test_first_commit_of_a_group_without_members_assigns_one_too(broker: WholeBroker) -> None:
    nobody = broker.client()
    await nobody.commit("t", 1)
    shown = await hash_of(nobody)

    assert shown["id"].startswith("cgp_")
    assert (shown["org"], shown["tier"], shown["locator"]) == ("default", "org", "default/consumer-groups/orders")


async def test_ids_sort_by_when_they_were_assigned(broker: WholeBroker) -> None:
    ids = []
    for number in range(3):
        member = broker.client()
        member.group_id = f"g{number}"
        await member.join("t")
        ids.append((await hash_of(member))["id"])
        await asyncio.sleep(0.002)

    assert ids == sorted(set(ids))


async def test_id_is_assigned_once_and_offsets_survive_the_leave(broker: WholeBroker) -> None:
    first = broker.client("member1")
    await first.own("t")
    await first.commit("t", 7)
    before = await hash_of(first)
    await first.leave()
    assert (await hash_of(first))["state"] == "Empty"
    second = broker.client("member2")
    await second.own("t")

    after = await hash_of(second)
    assert after["id"] == before["id"]
    assert int(after["generation"]) > int(before["generation"])
    assert await second.committed("t") == 7


async def test_broker_restart_loses_neither_id_nor_offsets_nor_generation(opened: Open, broker: WholeBroker) -> None:
    member = broker.client()
    await member.own("t")
    await member.commit("t", 7)
    before = await hash_of(member)
    await broker.close()

    again = await opened()
    same = again.client()
    same.member_id, same.generation = member.member_id, member.generation
    assert await hash_of(same) == before
    assert await same.commit("t", 9) is ErrorCode.none  # still a member, of the same generation
    assert await same.committed("t") == 9
    await same.leave()
    await same.own("t")
    after = await hash_of(same)
    assert (after["id"], int(after["generation"]) > int(before["generation"])) == (before["id"], True)


async def test_group_deleted_and_made_again_is_another_entity(broker: WholeBroker) -> None:
    member = broker.client()
    await member.own("t")
    before = await hash_of(member)
    await member.leave()
    assert await member.delete() is ErrorCode.none
    await member.own("t")

    after = await hash_of(member)
    assert after["id"] > before["id"]
    assert after["locator"] == before["locator"]


# -- tier and locator


async def test_group_has_org_tier_and_locator(broker: WholeBroker) -> None:
    member = broker.client(org="acme")
    member.group_id = "Order Processor"
    await broker.create("t", org="acme")
    await member.join("t")
    shown = await hash_of(member)

    assert (shown["org"], shown["tier"]) == ("acme", "org")
    assert re.fullmatch(r"acme/consumer-groups/order-processor-[0-9a-f]{8}", shown["locator"])
    assert int(shown["created"]) == START_MS


# -- offsets


async def test_uncommitted_partition_is_minus_one_without_an_error(broker: WholeBroker) -> None:
    member = broker.client()
    await member.own("t")
    await member.commit("t", 3, index=0)

    assert await member.committed("t", index=0) == 3
    assert await member.committed("t", index=1) == -1


# -- the rebalance of one member


async def test_without_an_initial_delay_a_single_member_completes_at_once(broker: WholeBroker) -> None:
    member = broker.client()
    joined = await member.join("t")  # the clock stands still: nothing but the join itself can end the phase

    assert (joined.generation_id, joined.leader, [one.member_id for one in joined.members]) == (
        1,
        member.member_id,
        [member.member_id],
    )
    assert (await hash_of(member))["state"] == "CompletingRebalance"
    await member.sync({member.member_id: {"t": [0, 1]}})
    assert (await hash_of(member))["state"] == "Stable"


async def test_initial_delay_waits_for_more_members(opened: Open, broker: WholeBroker, clock: SteppedClock) -> None:
    patient = await opened(group_initial_rebalance_delay_ms=3_000)
    first, second = patient.client("first"), patient.client("second")
    joins = [asyncio.ensure_future(member.join("t")) for member in (first, second)]
    async with asyncio.timeout(40):
        while await patient.store.command("HLEN", patient.store.group_keys("default", "orders").members) < 2:
            await asyncio.sleep(0.005)
    assert not any(join.done() for join in joins)
    assert (await hash_of(first))["state"] == "PreparingRebalance"
    for _ in range(2):  # once more, for a member came meanwhile
        await clock.advance(3_000)
        await refresh_waits(patient.context.waits)
    answers = await asyncio.wait_for(asyncio.gather(*joins), 40)

    assert {answer.generation_id for answer in answers} == {1}


async def test_states_of_a_group(broker: WholeBroker) -> None:
    async def state() -> str:
        return (await hash_of(first)).get("state", "")

    async def heartbeat(member: ClientOf) -> ErrorCode:
        answer = await member.ask(
            request(
                12, 4, group_id="orders", generation_id=member.generation, member_id=member.member_id,
                group_instance_id=None,
            )
        )  # fmt: skip
        code: ErrorCode = answer.error_code
        return code

    first, second = broker.client("first"), broker.client("second")
    await first.own("t")
    assert (await state(), await heartbeat(first)) == ("Stable", ErrorCode.none)
    joining = asyncio.ensure_future(second.join("t"))
    await wait_for_state(first, "PreparingRebalance")
    assert await heartbeat(first) is ErrorCode.rebalance_in_progress
    await asyncio.gather(first.join("t"), joining)
    assert await state() == "CompletingRebalance"
    leader, follower = (first, second) if first.members else (second, first)
    await asyncio.gather(leader.sync({leader.member_id: {"t": [0]}, follower.member_id: {"t": [1]}}), follower.sync())
    assert await state() == "Stable"
    await leader.leave()
    assert await state() == "PreparingRebalance"
    await follower.leave()
    assert await state() == "Empty"


# -- two organisations with the same names


@pytest.fixture
async def organisations(broker: WholeBroker) -> tuple[ClientOf, ClientOf]:
    """A member of group `orders` in each of two organisations, owning the topic `t` of its own."""
    members = []
    for org in ("acme", "globex"):
        await broker.create("t", org=org)
        member = broker.client(org=org)
        await member.own("t")
        members.append(member)
    return members[0], members[1]


async def test_orgs_form_groups_of_their_own(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, globex = organisations
    first, second = await hash_of(acme), await hash_of(globex)

    assert acme.generation == globex.generation == 1
    assert (len(acme.members), len(globex.members)) == (1, 1)
    assert first["id"] != second["id"]
    assert (first["locator"], second["locator"]) == ("acme/consumer-groups/orders", "globex/consumer-groups/orders")


async def test_orgs_commit_offsets_of_their_own(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, globex = organisations
    await acme.commit("t", 5)
    assert await globex.committed("t") == -1
    await globex.commit("t", 8)

    assert (await acme.committed("t"), await globex.committed("t")) == (5, 8)


async def test_orgs_have_topics_of_their_own(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, globex = organisations
    await acme.produce("t", 3)

    assert (await acme.fetch("t", 0)).high_watermark == 3
    assert (await globex.fetch("t", 0)).high_watermark == 0
    catalog = acme.broker.context.catalog
    acme_topic, globex_topic = catalog.get("acme", "t"), catalog.get("globex", "t")
    assert acme_topic is not None and globex_topic is not None
    assert acme_topic.topic_id != globex_topic.topic_id
    answer = await globex.ask(fetch_request([(acme_topic.topic_id, [(0, 0)])], version=13))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id


async def test_orgs_list_only_their_own_groups(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, _ = organisations
    acme.group_id = "extra"
    acme.member_id = ""
    await acme.own("t")

    assert [await client.list_groups() for client in organisations] == [["extra", "orders"], ["orders"]]
    assert await acme.broker.client().list_groups() == []


async def test_orgs_describe_only_their_own_groups(organisations: tuple[ClientOf, ClientOf]) -> None:
    for client in organisations:
        assert [member.member_id for member in (await client.describe()).members] == [client.member_id]
    stranger = organisations[0].broker.client()
    assert (await stranger.describe()).group_state == "Dead"


async def test_orgs_delete_only_their_own_groups(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, globex = organisations
    for client in organisations:
        await client.commit("t", 4)
        await client.leave()
    assert await acme.broker.client().delete() is ErrorCode.group_id_not_found
    assert await acme.delete() is ErrorCode.none

    assert await hash_of(acme) == {}
    assert await acme.committed("t") == -1
    assert await globex.committed("t") == 4


async def test_member_of_one_org_is_unknown_to_the_other(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, globex = organisations
    stranger = acme.broker.client(org="globex")
    stranger.member_id, stranger.generation = acme.member_id, acme.generation

    assert await stranger.commit("t", 1) is UNKNOWN_MEMBER
    assert await globex.committed("t") == -1


async def test_orgs_have_mirrors_of_their_own(organisations: tuple[ClientOf, ClientOf]) -> None:
    acme, globex = organisations
    broker = acme.broker
    for client, count in ((acme, 2), (globex, 3)):
        await client.produce("t", *[1] * count)
        await client.fetch("t", 0)
    await acme.commit("t", 1)
    await broker.mirrored()
    pending = []
    for client in organisations:
        topic = broker.context.catalog.get(client.client.org, "t")
        assert topic is not None
        keys = broker.store.log_keys(client.client.org, "t", 0, topic.topic_hex)
        rows = await broker.store.command("XPENDING", keys.log, "orders", "-", "+", 10)
        pending.append([(row[0].decode(), row[1].decode()) for row in rows])

    assert pending == [
        [("1-1", acme.member_id)],
        [(entry, globex.member_id) for entry in ("0-1", "1-1", "2-1")],
    ]
