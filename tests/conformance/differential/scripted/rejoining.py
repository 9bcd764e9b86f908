"""Members that join again [32-39], and syncs in every order [43-47, 51, 54]."""

from __future__ import annotations

from typing import Any

from tests.conformance.differential.actors import Member, form
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.messages import VERSIONS
from tests.conformance.differential.sides import Side
from tests.kit.member import subscription

OTHER = (("range", subscription(["payments"])),)
BOTH = (("range", b"m"), ("rr", b"m"))


async def completing(talk: Conversation, *members: Member) -> None:
    """All of these have joined, and none has synced."""
    await form(talk, *members[:-1])
    await members[-1].enter()
    for member in members[:-1]:
        await member.join()


@conversation()
async def again_before_the_sync(talk: Conversation) -> None:
    """[32-34] The same metadata: answered at once, the leader with its list; a parked sync is not disturbed."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await completing(talk, one, two)
    await two.join()
    await one.join()
    await two.sync()
    await two.join()
    await two.sync()
    await one.sync()
    await two.sync()


@conversation()
async def changed_before_the_sync(talk: Conversation) -> None:
    """[35] Other metadata starts the phase again: parked syncs are answered."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await completing(talk, one, two)
    await one.heartbeat()
    await two.sync()
    await one.join(protocols=OTHER)
    await two.heartbeat()
    await two.sync()
    await two.join()
    await one.sync()
    await two.sync()


@conversation()
async def follower_changes_before_the_sync(talk: Conversation) -> None:
    """[35] The follower's other metadata; the leader has not synced yet."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await completing(talk, one, two)
    await two.join(protocols=OTHER)
    await one.sync()
    await one.join()
    await one.sync()
    await two.sync()


@conversation()
async def follower_again(talk: Conversation) -> None:
    """[36, 37, 39] Stable: the same answered at once, other timeouts ignored, other bytes or order a rebalance."""
    one, two = (Member(talk, name, protocols=BOTH) for name in ("one", "two"))
    await form(talk, one, two)
    await two.join()
    await two.sync()
    await two.join(session_timeout=30_000, rebalance_timeout=5_000)
    await two.join(protocols=tuple(reversed(BOTH)))
    await one.heartbeat()


@conversation()
async def follower_changes(talk: Conversation) -> None:
    """[37] Other bytes."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one, two)
    await two.join(protocols=OTHER)
    await one.heartbeat()
    await one.commit()
    await one.join()


@conversation()
async def leader_again(talk: Conversation) -> None:
    """[38] The leader asks for a rebalance by joining as it is."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one, two)
    await one.join()
    await two.heartbeat()
    await two.sync()
    await two.join()
    await two.sync()
    await one.sync()


@conversation()
async def synced_in_every_version(talk: Conversation) -> None:
    """[43] Followers before and after the leader, every version."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await completing(talk, one, two, three)
    for version in VERSIONS["SyncGroup"]:
        await two.sync(version)
        await one.sync(version)
        await three.sync(version)
        await two.sync(version)
        await one.join()
        await three.join()
        await two.join()


@conversation()
async def uneven_assignments(talk: Conversation) -> None:
    """[44] Members left out get no bytes, strangers are ignored, so is what followers hand in."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await completing(talk, one, two)

    def plan(side: Side) -> list[dict[str, Any]]:
        return [
            {"member_id": "stranger", "assignment": b"for a stranger"},
            {"member_id": side.of("one").member_id, "assignment": b"for one"},
            {"member_id": side.of("one").member_id, "assignment": b"for one, again"},
        ]

    await two.sync(plan=plan)
    await one.sync(plan=plan)
    await two.sync(plan=plan)
    await one.sync()


@conversation()
async def refused_syncs(talk: Conversation) -> None:
    """[45-47] Generations, strangers, protocols; then while a phase is on, and in an empty group."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one)
    for plus in (-1, 1):
        await one.sync(generation_id=one.generation(plus))
    await one.sync(member_id="stranger", generation_id=99)
    await one.sync(group_instance_id="nobody")
    for changes in (
        {"protocol_name": None},
        {"protocol_type": None},
        {"protocol_name": "other"},
        {"protocol_type": "connect"},
        {"protocol_name": "", "protocol_type": ""},
    ):
        await one.sync(5, **changes)
    await one.sync(4)
    await two.enter()
    await one.sync()
    await one.sync(generation_id=one.generation(1))
    await one.join()
    await one.sync(protocol_name="other")
    await two.sync(protocol_type="connect")
    await two.sync(generation_id=two.generation(-1))
    await one.sync()
    await two.leave()
    await one.leave()
    await one.sync()


@conversation()
async def leader_syncs_twice(talk: Conversation) -> None:
    """[51, 52] The first assignments of a generation stand."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await completing(talk, one, two)
    await one.sync()

    def other(side: Side) -> list[dict[str, Any]]:
        return [{"member_id": side.of("two").member_id, "assignment": b"other"}]

    await one.sync(plan=other)
    await two.sync()


@conversation()
async def sync_given_up(talk: Conversation) -> None:
    """[54] A follower whose parked sync timed out at its side joins and syncs again."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await completing(talk, one, two, three)
    await two.sync()
    await two.join()
    await two.sync()
    await three.sync()
    await one.sync()
    await two.heartbeat()


@conversation()
async def heartbeats_in_each_state(talk: Conversation) -> None:
    """[55, 56] Every version, right and wrong, in every state."""
    one, two = Member(talk, "one"), Member(talk, "two")

    async def heartbeats(member: Member) -> None:
        for version in VERSIONS["Heartbeat"]:
            await member.heartbeat(version)
        for plus in (-1, 1):
            await member.heartbeat(generation_id=member.generation(plus))
        await member.heartbeat(generation_id=-1)
        await member.heartbeat(member_id="stranger")
        await member.heartbeat(member_id="")
        await member.heartbeat(group_instance_id="nobody")

    await one.join()
    await heartbeats(one)
    await one.join()
    await heartbeats(one)
    await one.sync()
    await heartbeats(one)
    await two.join()
    await heartbeats(two)
    await two.join()
    await heartbeats(one)
    await heartbeats(two)
    await two.leave()
    await one.leave()
    await heartbeats(one)
