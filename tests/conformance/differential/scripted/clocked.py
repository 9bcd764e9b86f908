"""Deadlines [14-18, 20, 22, 23, 48-50, 53, 57-60, 75-77, 79, Q4, Q5], with times scaled down."""

from __future__ import annotations

import asyncio

from tests.conformance.differential.actors import Member, describe, form
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.targets import LIMITED

SHORT_MS = 2_000


async def beating(talk: Conversation, seconds: float, *members: Member) -> None:
    """Time passes; these heartbeat meanwhile."""
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(0.4)
        for member in members:
            await member.heartbeat()


@conversation(LIMITED, by_the_clock=True)
async def delay_of_one(talk: Conversation) -> None:
    """[2, 3] One member alone waits for the initial delay."""
    one = Member(talk, "one")
    await talk.until_answered(await one.enter())


@conversation(LIMITED, by_the_clock=True)
async def delay_extended(talk: Conversation) -> None:
    """[14] A second member within the delay: both wait for two."""
    one, two = Member(talk, "one"), Member(talk, "two")
    first = await one.enter()
    await talk.rest(0.5)
    second = await two.enter()
    await talk.until_answered(first, second)
    await one.sync()
    await two.sync()


@conversation(LIMITED, by_the_clock=True)
async def delay_bounded(talk: Conversation) -> None:
    """[15] Joiners in each tick: no longer than the first one's rebalance timeout."""
    one, two, three = (Member(talk, name, rebalance_timeout_ms=3_600) for name in ("one", "two", "three"))
    first = await one.enter()
    await talk.rest(0.5)
    second = await two.enter()
    await talk.rest(1.5)
    third = await three.enter()
    await talk.until_answered(first, second, third)


@conversation(LIMITED, by_the_clock=True)
async def delay_longer_than_the_timeout(talk: Conversation) -> None:
    """[16] A rebalance timeout below the delay: one delay, not extended."""
    one, two = Member(talk, "one", rebalance_timeout_ms=800), Member(talk, "two")
    first = await one.enter()
    await talk.rest(0.5)
    await talk.until_answered(first, await two.enter())


@conversation(LIMITED, by_the_clock=True)
async def delay_and_a_leave(talk: Conversation) -> None:
    """[17] The first leaves within the delay; the second leads."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await one.enter()
    await talk.rest(0.3)
    second = await two.enter()
    await talk.rest(0.3)
    await one.leave()
    await talk.until_answered(second)


@conversation(LIMITED, by_the_clock=True)
async def delay_of_nobody(talk: Conversation) -> None:
    """[18] All left within the delay: a generation passes all the same."""
    one = Member(talk, "one")
    await one.enter()
    await talk.rest(0.3)
    await one.leave()
    await describe(talk)
    await talk.rest(2.2)
    await describe(talk)
    one.forget()
    await talk.until_answered(await one.enter())


@conversation(LIMITED, by_the_clock=True)
async def delay_and_a_promised_id(talk: Conversation) -> None:
    """[20] An id that is not used does not hold up the first generation; used later, it makes the second."""
    one, two = Member(talk, "one"), Member(talk, "two")
    first = await one.enter()
    await talk.rest(0.3)
    await two.join()
    await talk.until_answered(first)
    second = await two.join()
    await one.join()
    await talk.until_answered(second)


@conversation(LIMITED, by_the_clock=True)
async def delay_cut_short(talk: Conversation) -> None:
    """[Q4] A promised id ends within the delay: Kafka hurries."""
    one, two = Member(talk, "one"), Member(talk, "two", session_timeout_ms=300)
    await one.join()
    await two.join()
    talk.notes.add("id ends in the initial delay")
    await talk.until_answered(await one.join())


@conversation(by_the_clock=True)
async def promised_id_forgotten(talk: Conversation) -> None:
    """[6] An id is good for one session timeout."""
    one = Member(talk, "one", session_timeout_ms=1_000)
    await one.join()
    await talk.rest(1.6)
    await one.join()


@conversation(by_the_clock=True)
async def session_ends(talk: Conversation) -> None:
    """[55, 60, 79] Silence for a session timeout ends a membership, static or not; then one rebalance."""
    one = Member(talk, "one")
    two = Member(talk, "two", session_timeout_ms=SHORT_MS)
    three = Member(talk, "three", instance_id="s3", session_timeout_ms=SHORT_MS)
    await form(talk, one, two, three)
    await talk.rest(1.2)
    await one.heartbeat()
    await talk.rest(1.4)
    await one.heartbeat()
    await two.heartbeat()
    await three.heartbeat()
    await three.join()
    await one.join()
    await one.sync()


@conversation(by_the_clock=True)
async def session_kept(talk: Conversation) -> None:
    """[59, 60] Heartbeats keep it, and so do commits."""
    one, two = (Member(talk, name, session_timeout_ms=SHORT_MS) for name in ("one", "two"))
    await form(talk, one, two)
    for _ in range(5):
        await talk.rest(0.8)
        await one.heartbeat()
        await two.commit()
    await talk.rest(2.6)
    await one.heartbeat()
    await two.commit()


@conversation(by_the_clock=True)
async def session_not_kept(talk: Conversation) -> None:
    """[57] Neither by heartbeats of another generation, nor by an immediate rejoin or sync [39]."""
    one = Member(talk, "one")
    two, three = (Member(talk, name, session_timeout_ms=SHORT_MS) for name in ("two", "three"))
    await form(talk, one, two, three)
    for _ in range(3):
        await talk.rest(0.7)
        await two.heartbeat(generation_id=two.generation(1))
        if _ < 2:
            await three.join()
            await three.sync()
    await talk.rest(0.5)
    await one.heartbeat()
    await two.heartbeat()
    await three.heartbeat()


@conversation(by_the_clock=True)
async def parked_join_holds_the_session(talk: Conversation) -> None:
    """[58] Parked for longer than its session; a fresh one begins with the answer."""
    one, two = Member(talk, "one"), Member(talk, "two", session_timeout_ms=1_000)
    await form(talk, one, two)
    await one.heartbeat()
    three = Member(talk, "three")
    await three.enter()
    await two.join()
    await beating(talk, 2.0, one)
    await one.join()
    await one.sync()
    await two.heartbeat()
    await talk.rest(1.7)
    await two.heartbeat()


@conversation(by_the_clock=True)
async def late_for_the_phase(talk: Conversation) -> None:
    """[22] Who heartbeats but does not rejoin goes when the phase's time is up."""
    one, two, three = (Member(talk, name, rebalance_timeout_ms=2_500) for name in ("one", "two", "three"))
    await form(talk, one, two)
    third = await three.enter()
    first = await one.join()
    await beating(talk, 1.2, two)
    await talk.until_answered(first, third)
    await two.heartbeat()
    await one.sync()
    await three.sync()


@conversation(by_the_clock=True)
async def silent_in_the_phase(talk: Conversation) -> None:
    """[23, 24] The phase ends with the session of the last one missing, here the leader."""
    one, two, three = Member(talk, "one", session_timeout_ms=SHORT_MS), Member(talk, "two"), Member(talk, "three")
    await form(talk, one, two)
    await three.join()
    await one.heartbeat()
    third = await three.join()
    await talk.until_answered(third, within_s=1.0)
    second = await two.join()
    try:
        await talk.until_answered(second, third)
    finally:
        await one.heartbeat()


@conversation(by_the_clock=True)
async def deadline_stays(talk: Conversation) -> None:
    """[26] A later member with a longer timeout does not move the deadline."""
    one, two = (Member(talk, name, rebalance_timeout_ms=2_500) for name in ("one", "two"))
    await form(talk, one)
    second = await two.enter()
    await beating(talk, 0.9, one)
    third = await Member(talk, "three", rebalance_timeout_ms=60_000).join(3)
    await talk.until_answered(second, third)
    await one.heartbeat()


@conversation(by_the_clock=True)
async def version_0_waits_a_session(talk: Conversation) -> None:
    """[12] At v0 the session timeout is the rebalance timeout too."""
    one, two = Member(talk, "one", session_timeout_ms=SHORT_MS), Member(talk, "two", session_timeout_ms=SHORT_MS)
    await one.join(0)
    await one.sync(0)
    second = await two.join(0)
    await beating(talk, 0.9, one)
    await talk.until_answered(second)


@conversation(by_the_clock=True)
async def leader_never_syncs(talk: Conversation) -> None:
    """[48] At the sync timer the leader is removed, parked followers are answered."""
    one, two = (Member(talk, name, rebalance_timeout_ms=2_500) for name in ("one", "two"))
    await form(talk, one)
    await two.enter()
    await one.join()
    parked = await two.sync()
    await beating(talk, 1.2, one)
    await talk.until_answered(parked)
    await one.heartbeat()
    await two.join()
    await two.sync()


@conversation(by_the_clock=True)
async def follower_never_syncs(talk: Conversation) -> None:
    """[49] Stable without it, until the sync timer."""
    one, two = (Member(talk, name, rebalance_timeout_ms=2_500) for name in ("one", "two"))
    await form(talk, one)
    await two.enter()
    await one.join()
    await one.sync()
    await beating(talk, 1.2, one, two)
    await talk.rest(2.0)
    await two.heartbeat()
    await one.heartbeat()


@conversation(by_the_clock=True)
async def nobody_syncs(talk: Conversation) -> None:
    """[50] At the timer all go: Empty, one generation on."""
    one, two = (Member(talk, name, rebalance_timeout_ms=2_000) for name in ("one", "two"))
    await form(talk, one)
    await two.enter()
    await one.join()
    await beating(talk, 1.0, one, two)
    await talk.rest(1.8)
    await describe(talk)
    await one.heartbeat()
    again = Member(talk, "again")
    await again.enter()


@conversation(by_the_clock=True)
async def all_synced(talk: Conversation) -> None:
    """[50] Then the sync timer has no effect."""
    one, two = (Member(talk, name, rebalance_timeout_ms=1_000) for name in ("one", "two"))
    await form(talk, one, two)
    await talk.rest(1.8)
    await one.heartbeat()
    await two.heartbeat()


@conversation(by_the_clock=True)
async def leader_silent_before_the_sync(talk: Conversation) -> None:
    """[53] Its session ends; the follower's, parked in its sync for longer than its own, does not."""
    one, two = Member(talk, "one", session_timeout_ms=SHORT_MS), Member(talk, "two", session_timeout_ms=1_000)
    await form(talk, one)
    await two.enter()
    await one.join()
    parked = await two.sync()
    await talk.until_answered(parked)
    await two.heartbeat()
    await two.join()
    await one.heartbeat()


@conversation(by_the_clock=True)
async def static_member_misses_the_phase(talk: Conversation) -> None:
    """[75] Still in the leader's list; gone at the sync timer, then one rebalance."""
    one = Member(talk, "one", rebalance_timeout_ms=1_500)
    two = Member(talk, "two", instance_id="s2", rebalance_timeout_ms=1_500)
    await form(talk, one, two)
    await talk.until_answered(await one.join())
    await one.sync()
    await describe(talk)
    await beating(talk, 0.8, one)
    await talk.rest(1.4)
    await one.heartbeat()
    await one.join()
    await two.heartbeat()


@conversation(by_the_clock=True)
async def only_static_members(talk: Conversation) -> None:
    """[76] None rejoins: the phase begins again without a generation, until the sessions end."""
    one, two = (
        Member(talk, name, instance_id=name, rebalance_timeout_ms=1_000, session_timeout_ms=3_500)
        for name in ("s1", "s2")
    )
    await form(talk, one, two)
    await Member(talk, "three", rebalance_timeout_ms=1_000).join()
    three = Member(talk, "four")
    await three.join()
    await three.join()
    await three.leave()
    await talk.rest(1.7)
    await describe(talk)
    await talk.rest(3.4)
    await describe(talk)
    await one.heartbeat()


@conversation(by_the_clock=True)
async def static_leader_misses_the_phase(talk: Conversation) -> None:
    """[77] A joined member leads, the old leader stays."""
    one = Member(talk, "one", instance_id="s1", rebalance_timeout_ms=1_500)
    two = Member(talk, "two", rebalance_timeout_ms=1_500)
    await form(talk, one, two)
    await talk.until_answered(await two.join(protocols=(("range", b"other"),)))
    await describe(talk)
    await two.sync()
    await one.heartbeat()


@conversation(by_the_clock=True)
async def replaced_before_its_sync(talk: Conversation) -> None:
    """[Q5] A static member is replaced in Stable before it synced; its successor syncs in time."""
    one = Member(talk, "one", rebalance_timeout_ms=2_000)
    two = Member(talk, "two", instance_id="s2", rebalance_timeout_ms=2_000)
    await form(talk, one)
    await two.enter()
    await one.join()
    await one.sync()
    two.forget()
    await two.join()
    await two.sync()
    await beating(talk, 1.0, one, two)
    await talk.rest(1.8)
    await describe(talk)


@conversation(by_the_clock=True)
async def replaced_keeps_the_old_timeout(talk: Conversation) -> None:
    """(7) The successor's session is the old one's until it is next extended."""
    one, two = Member(talk, "one"), Member(talk, "two", instance_id="s2", session_timeout_ms=1_500)
    await form(talk, one, two)
    again = Member(talk, "again", instance_id="s2", session_timeout_ms=60_000)
    await again.join()
    await talk.rest(2.2)
    await one.heartbeat()
    await again.heartbeat()
