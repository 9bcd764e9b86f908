"""Leaves, alone and together [17, 61-66, Q2, Q9]."""

from __future__ import annotations

from tests.conformance.differential.actors import Member, form, leave
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.messages import VERSIONS

STRANGER = {"member_id": "stranger", "group_instance_id": None, "reason": None}


@conversation()
async def left_in_every_version(talk: Conversation) -> None:
    """[61] Known and unknown members; the rest carries on."""
    for version in VERSIONS["LeaveGroup"]:
        one = Member(talk, f"one-v{version}")
        await form(talk, one)
        await leave(talk, STRANGER, version=version, member_id="stranger")
        await one.leave(version)
        await one.leave(version)


@conversation()
async def left_together(talk: Conversation) -> None:
    """[62] One rebalance for all; twice the same, none at all."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one, two, three)
    await leave(talk, two, STRANGER, three, three)
    await one.heartbeat()
    await leave(talk)
    await one.join()
    await one.sync()


@conversation()
async def leader_left(talk: Conversation) -> None:
    """[24, 31] Another leads."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one, two)
    await one.leave()
    await two.heartbeat()
    await two.join()
    await two.sync()


@conversation()
async def leader_left_to_several(talk: Conversation) -> None:
    """[24] One of those that join leads; which, Kafka leaves open."""
    members = [Member(talk, name) for name in ("one", "two", "three", "four")]
    await form(talk, *members)
    for _ in range(8):
        leader = next(member for member in members if member.leads)
        await leader.leave()
        others = [member for member in members if member is not leader]
        for member in others:
            await member.join()
        leader.forget()
        await leader.enter()
        for member in others:
            await member.join()


@conversation()
async def static_removed(talk: Conversation) -> None:
    """[63] By instance id alone, whoever owns it; unknown ones."""
    one, two = Member(talk, "one", instance_id="s1"), Member(talk, "two", instance_id="s2")
    await form(talk, one, two)
    await leave(talk, {"member_id": "", "group_instance_id": "nobody", "reason": None})
    await leave(talk, {"member_id": "", "group_instance_id": None, "reason": None})
    await leave(talk, {"member_id": "", "group_instance_id": "s2", "reason": "admin"})
    await two.heartbeat()
    await one.heartbeat()
    await one.join()


@conversation()
async def replaced_leaves(talk: Conversation) -> None:
    """[64] The fenced process says good-bye: it is fenced, its successor is not disturbed."""
    one, two = Member(talk, "one", instance_id="s1"), Member(talk, "two", instance_id="s2")
    await form(talk, one, two)
    again = Member(talk, "again", instance_id="s2")
    await again.join()
    await two.leave()
    await two.leave(2)
    await again.heartbeat()
    await one.heartbeat()


@conversation()
async def left_while_joining(talk: Conversation) -> None:
    """[17, 66] A parked join is answered."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one)
    await two.enter()
    await three.enter()
    await two.leave()
    await one.join()
    await one.sync()


@conversation()
async def left_while_syncing(talk: Conversation) -> None:
    """[66, Q2] A parked sync: Kafka leaves it unanswered."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one, two)
    await three.enter()
    await one.join()
    await two.join()
    await two.sync()
    await three.sync()
    await two.leave()
    await one.join()
    await three.join()


@conversation()
async def promised_id_leaves_its_phase(talk: Conversation) -> None:
    """[65] The phase that it held up ends at once."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one)
    await two.enter()
    await three.join()
    await one.join()
    await three.leave()
    await three.join()


@conversation()
async def promised_id_leaves_a_stable_group(talk: Conversation) -> None:
    """[65, Q9] Nobody is missing, yet Kafka rebalances."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one)
    await two.join()
    await two.leave()
    await one.heartbeat()


@conversation()
async def left_in_each_state(talk: Conversation) -> None:
    """[31] Preparing with the others joined; Completing; the only one of a phase."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one)
    await two.enter()
    await one.leave()
    await three.enter()
    await two.join()
    await three.leave()
    await two.heartbeat()
    await two.join()
    await two.leave()
    await two.heartbeat()
