"""Static members: restarts, fences, places kept [67-78, Q5, Q15]."""

from __future__ import annotations

from tests.conformance.differential.actors import Member, delete_offsets, describe, fetch, form, leave
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.kit.member import subscription

OTHER = (("range", subscription(["payments"])),)


def pair(talk: Conversation) -> tuple[Member, Member]:
    """s1 and s2."""
    return Member(talk, "one", instance_id="s1"), Member(talk, "two", instance_id="s2")


@conversation()
async def follower_restarts(talk: Conversation) -> None:
    """[67, 69] A new id, the same generation and assignment; what the old process sees."""
    one, two = pair(talk)
    await form(talk, one, two)
    again = Member(talk, "again", instance_id="s2")
    await again.join()
    await one.heartbeat()
    await again.sync()
    await again.heartbeat()
    await again.commit()
    await two.heartbeat()
    await two.commit()
    await two.sync()
    await two.join()
    await two.heartbeat(group_instance_id=None)
    await two.commit(group_instance_id=None)
    await two.sync(group_instance_id=None)
    await two.join(group_instance_id=None)
    await two.heartbeat(2)
    await fetch(talk)


@conversation()
async def leader_restarts(talk: Conversation) -> None:
    """[68] v9 learns that it leads and need not assign; v8 gets the dead id."""
    one, two = pair(talk)
    await form(talk, one, two)
    for version in (9, 8, 5, 9):
        one.forget()
        await one.join(version)
        await one.sync(min(version, 5))
        await one.heartbeat()
    await one.join()
    await two.join()
    await one.sync()
    await two.sync()


@conversation()
async def restarted_with_another_subscription(talk: Conversation) -> None:
    """[70] No rebalance; described again, judged by the old one."""
    one, two = pair(talk)
    await form(talk, one, two)
    two.forget()
    await two.join(protocols=OTHER)
    await describe(talk)
    await delete_offsets(talk, {"orders": (0,), "payments": (0,)})
    await one.heartbeat()
    await two.sync()


@conversation()
async def restarted_with_another_vote(talk: Conversation) -> None:
    """[71] The vote changes: a rebalance."""
    one = Member(talk, "one", instance_id="s1", protocols=(("a", b"m"), ("b", b"m")))
    two = Member(talk, "two", instance_id="s2", protocols=(("a", b"m"), ("b", b"m")))
    await form(talk, one, two)
    two.forget()
    await two.join(protocols=(("b", b"m"),))
    await one.heartbeat()
    await one.join()


@conversation()
async def restarted_alone(talk: Conversation) -> None:
    """A lone static member that comes back with only another protocol: as any member, it is refused."""
    one = Member(talk, "one", instance_id="s1")
    await form(talk, one)
    one.forget()
    await one.join(protocols=(("other", b"m"),))
    await one.join(protocols=(("other", b"m"), ("range", b"m")))
    await one.sync()


@conversation()
async def restarted_before_the_sync(talk: Conversation) -> None:
    """[72] In Completing: the old parked sync is fenced, the leader starts again."""
    one, two = pair(talk)
    await form(talk, one)
    await two.enter()
    await one.join()
    await two.sync()
    again = Member(talk, "again", instance_id="s2")
    await again.join()
    await one.sync()
    await one.join()
    await one.sync()
    await again.sync()


@conversation()
async def restarted_while_joining(talk: Conversation) -> None:
    """[73] In Preparing: the old parked join is fenced, the new one is parked."""
    one, two = pair(talk)
    await form(talk, one)
    await two.join()
    again = Member(talk, "again", instance_id="s2")
    await again.join()
    await one.join()
    await one.sync()
    await again.sync()


@conversation()
async def leader_restarts_while_joining(talk: Conversation) -> None:
    """[LD5] The leader's successor leads."""
    one, two = pair(talk)
    await form(talk, one, two)
    await one.join()
    again = Member(talk, "again", instance_id="s1")
    await again.join()
    await two.join()
    await again.sync()
    await two.sync()


@conversation()
async def restarted_twice(talk: Conversation) -> None:
    """[74, 80] Only the newest id counts."""
    one, two = pair(talk)
    await form(talk, one, two)
    first, second = (Member(talk, name, instance_id="s2") for name in ("first", "second"))
    await first.join()
    await second.join()
    for member in (two, first, second):
        await member.heartbeat()
        await member.sync()
        await member.join()
    await leave(talk, two, first, second)


@conversation()
async def mixed_up_instances(talk: Conversation) -> None:
    """[78] A known id with an unknown instance, and with another's."""
    one, two = pair(talk)
    dynamic = Member(talk, "dynamic")
    await form(talk, one, two, dynamic)
    for instance_id in ("nobody", "s2", None):
        await one.join(group_instance_id=instance_id)
        if instance_id is not None:
            await one.heartbeat(group_instance_id=instance_id)
            await one.commit(group_instance_id=instance_id)
            await one.sync(group_instance_id=instance_id)
            await leave(talk, {"member_id": one.id, "group_instance_id": instance_id, "reason": None})
    await dynamic.heartbeat(group_instance_id="s1")
    await dynamic.commit(group_instance_id="s1")


@conversation()
async def restarted_elsewhere(talk: Conversation) -> None:
    """[Q15] The successor has another client id."""
    one, two = pair(talk)
    await form(talk, one, two)
    again = Member(talk, "again", instance_id="s2", client_id="another client")
    await again.join()
    await describe(talk)


@conversation()
async def known_static_leader_joins(talk: Conversation) -> None:
    """A static member with its id is as any other: the leader causes a rebalance, the follower does not."""
    one, two = pair(talk)
    await form(talk, one, two)
    await two.join()
    await two.sync()
    await one.join()
    await two.heartbeat()
    await two.join()
