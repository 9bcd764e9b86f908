"""Small groups [81-83, Q3, Q6, Q14]: at most two members, or three with an initial delay."""

from __future__ import annotations

from tests.conformance.differential.actors import Member, describe, form
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.targets import FULL, LIMITED


@conversation(FULL)
async def full_group(talk: Conversation) -> None:
    """[82] A third is refused, its id included; the two continue as they like."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one, two)
    await three.join()
    await three.join(2)
    await three.join(group_instance_id="s3")
    await three.join(member_id="stranger")
    await three.join(protocol_type="connect")
    await two.join()
    await one.join()
    await three.join()
    await two.join()
    await one.sync()
    await two.leave()
    await three.join()
    await three.join()


@conversation(FULL)
async def promised_ids_do_not_count(talk: Conversation) -> None:
    """[81, Q14] Any number of ids is handed out; who comes back late is refused."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    for member in (one, two, three):
        await member.join()
    await one.join()
    await two.join()
    await one.join()
    await three.join()
    await one.heartbeat()
    await describe(talk)


@conversation(FULL)
async def late_member_refused(talk: Conversation) -> None:
    """[83, Q3] The first two to come back stay: the third, though a member, goes."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one)
    await two.join()
    await three.join()
    await two.join()
    await three.join()
    await one.join()
    await one.heartbeat()


@conversation(FULL)
async def refused_id_holds_up_nothing(talk: Conversation) -> None:
    """A promised id that comes back too late is void, and the phase does not wait for it."""
    one, two, three, four = (Member(talk, name) for name in ("one", "two", "three", "four"))
    for member in (one, two, three, four):
        await member.join()
    await one.join()
    await two.join()
    await three.join()
    await four.join()
    await four.join()
    await one.leave()
    await three.join()


@conversation(FULL)
async def static_restart_in_a_full_group(talk: Conversation) -> None:
    """[82, Q6] A static member takes its own place again."""
    one, two = Member(talk, "one", instance_id="s1"), Member(talk, "two", instance_id="s2")
    await form(talk, one, two)
    await Member(talk, "other", instance_id="s3").join()
    await Member(talk, "again", instance_id="s2").join()


@conversation(LIMITED, by_the_clock=True)
async def refused_within_the_delay(talk: Conversation) -> None:
    """[81] Four ids within one initial delay: the fourth is refused."""
    members = [Member(talk, name) for name in ("one", "two", "three", "four")]
    for member in members:
        await member.join()
    parked = [await member.join() for member in members]
    await talk.until_answered(*parked[:3])
