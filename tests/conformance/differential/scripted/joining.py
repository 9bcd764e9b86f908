"""First joins, protocols, versions [1-13, 19, 21, 24-27, 29-31, 40-42]."""

from __future__ import annotations

from tests.conformance.differential.actors import Member, Protocols, delete, describe, form, leave, list_groups
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.messages import VERSIONS
from tests.kit.member import subscription


def named(*names: str, metadata: bytes = b"m") -> Protocols:
    """Protocols in that order."""
    return tuple((name, metadata) for name in names)


@conversation()
async def joined_in_every_version(talk: Conversation) -> None:
    """[1-4, 13] A member's whole life in each version, errors included, one after the other in one group."""
    for version in VERSIONS["JoinGroup"]:
        one = Member(talk, f"one-v{version}")
        await one.join(version, session_timeout=1)
        await one.join(version, member_id="stranger")
        await one.join(version, protocol_type="")
        await one.enter(version)
        await one.join(version, protocol_type="connect")
        await one.sync(min(version, 5))
        await one.heartbeat(min(version, 4))
        await one.join(version, protocols=())
        await one.leave(min(version, 5))


@conversation()
async def static_in_every_version(talk: Conversation) -> None:
    """[4, 67, 68] A static leader and its follower, each started again in each version."""
    for version in range(5, 10):
        one, two = (Member(talk, f"{name}-v{version}", instance_id=name) for name in ("lead", "follow"))
        await form(talk, one, two)
        again = Member(talk, f"again-v{version}", instance_id="follow")
        await again.join(version)
        await again.sync(min(version, 5))
        lead = Member(talk, f"lead-again-v{version}", instance_id="lead")
        await lead.join(version)
        await lead.sync(min(version, 5))
        await describe(talk)
        await leave(talk, lead, again)
        await delete(talk)


@conversation()
async def refused_joins(talk: Conversation) -> None:
    """[5, 7-9] Before there is a group."""
    one = Member(talk, "one")
    await one.join(member_id="x")
    await list_groups(talk)
    for session_timeout in (199, 1_800_001, 0, -1):
        await one.join(session_timeout=session_timeout)
    await one.join(session_timeout=200)
    await one.heartbeat(generation_id=0)
    await one.sync(generation_id=0)
    await one.commit(generation_id_or_member_epoch=0)
    await one.commit(generation_id_or_member_epoch=-1)


@conversation()
async def longest_session(talk: Conversation) -> None:
    """[8] The greatest session timeout is accepted, at v0 too."""
    one = Member(talk, "one", session_timeout_ms=1_800_000)
    await one.join(0)
    await one.sync(0)
    await one.heartbeat(0)


@conversation()
async def instance_of_a_promised_id(talk: Conversation) -> None:
    """[Q11] An id that was handed out comes back with an instance id."""
    one = Member(talk, "one")
    await one.join()
    await one.join(group_instance_id="static-1")
    await one.join()


@conversation()
async def other_types(talk: Conversation) -> None:
    """[10] Another protocol type is refused while there are members, and taken when the group is empty."""
    one, worker = Member(talk, "one"), Member(talk, "worker")
    await form(talk, one)
    await worker.join(protocol_type="connect")
    await one.heartbeat()
    await one.leave()
    await worker.enter(protocol_type="connect")
    await worker.sync(protocol_type="connect")
    await describe(talk)
    await list_groups(talk)


@conversation()
async def unsupported_protocols(talk: Conversation) -> None:
    """[11] A lone member cannot change to a protocol that nobody, not even itself, supports yet."""
    one, two = Member(talk, "one"), Member(talk, "two", protocols=named("roundrobin"))
    await form(talk, one)
    await one.join(protocols=named("roundrobin"))
    await one.heartbeat()
    await two.join()
    await two.join(member_id="stranger")
    await two.join(group_instance_id="static-2")


@conversation()
async def rolling_change_of_protocol(talk: Conversation) -> None:
    """[41] Through a protocol that both have."""
    one, two = (Member(talk, name, protocols=named("range")) for name in ("one", "two"))
    await form(talk, one, two)
    await one.join(protocols=named("coop", "range"))
    await two.join()
    await one.sync()
    await two.sync()
    await two.join(protocols=named("coop", "range"))
    await one.join()
    await one.sync()
    await two.sync()
    await one.join(protocols=named("coop"))
    await two.join()
    await describe(talk)


@conversation()
async def votes(talk: Conversation) -> None:
    """[40] The first choice of most among what all support."""
    one, two, three = (
        Member(talk, "one", protocols=named("a", "b", "c")),
        Member(talk, "two", protocols=named("b", "c", "a")),
        Member(talk, "three", protocols=named("c", "b")),
    )
    await one.enter()
    await two.enter()
    await one.join()
    await three.enter()
    await one.join()
    await two.join()
    await describe(talk)


@conversation()
async def votes_of_three(talk: Conversation) -> None:
    """[40] One supports only the other's second choice."""
    one, two, three = (
        Member(talk, "one", protocols=named("range", "rr")),
        Member(talk, "two", protocols=named("rr", "range")),
        Member(talk, "three", protocols=named("rr")),
    )
    await one.enter()
    await three.enter()
    await one.join()
    await two.enter()
    await one.join()
    await three.join()


@conversation()
async def tied_votes(talk: Conversation) -> None:
    """[40] As many for one as for the other: Kafka's choice follows its hash table."""
    talk.notes.add("tied votes")
    for first, second in (("x", "y"), ("y", "x"), ("range", "rr"), ("sticky", "range"), ("a", "b")):
        one = Member(talk, f"one-{first}{second}", protocols=named(first, second))
        two = Member(talk, f"two-{first}{second}", protocols=named(second, first))
        await form(talk, one)
        await two.enter()
        await one.join()
        await leave(talk, one, two)


@conversation()
async def nothing_left_in_common(talk: Conversation) -> None:
    """[42] Within one phase, the last member that could agree drops the common protocol."""
    one, two = (Member(talk, name, protocols=named("x", "y")) for name in ("one", "two"))
    await form(talk, one, two)
    await one.join(protocols=named("x"))
    await two.join(protocols=named("y"))
    await two.join(protocols=named("x", "y"))


@conversation()
async def third_joins(talk: Conversation) -> None:
    """[21] Heartbeats report the phase; it ends when all are back; only the leader has the list."""
    one, two, three = (Member(talk, name) for name in ("one", "two", "three"))
    await form(talk, one, two)
    await three.join()
    await one.heartbeat()
    await three.join()
    await one.heartbeat()
    await two.heartbeat()
    await three.heartbeat()
    await two.join()
    await two.heartbeat()
    await two.commit()
    await one.join()
    for member in (three, two, one):
        await member.sync()
    for member in (three, two, one):
        await member.heartbeat()


@conversation()
async def promised_id_holds_the_phase(talk: Conversation) -> None:
    """[25] An id handed out while a phase runs holds it up until it joins or leaves."""
    one, two, three, four = (Member(talk, name) for name in ("one", "two", "three", "four"))
    await form(talk, one)
    await two.enter()
    await three.join()
    await four.join()
    await one.join()
    await three.leave()
    await four.join()
    await one.heartbeat()


@conversation()
async def joined_again_elsewhere(talk: Conversation) -> None:
    """[27, Q1] A parked member comes back on another connection: it is counted once."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one)
    await two.enter()
    await two.join()
    await two.join()
    await one.join()
    await one.sync()
    await two.sync()
    await describe(talk)


@conversation()
async def last_one_out(talk: Conversation) -> None:
    """[18, 30, 31] Leaving empties the group and takes a generation; the type stays."""
    one = Member(talk, "one")
    await form(talk, one)
    await one.leave()
    await list_groups(talk)
    one.forget()
    await form(talk, one)
    await describe(talk)


@conversation()
async def reasons_and_names(talk: Conversation) -> None:
    """Reasons do not show; long and unusual names are kept (KIP-800)."""
    odd = 'ü"{}\\ 日本'
    one = Member(talk, "one", client_id="client id with ü", protocols=named(odd))
    await one.enter(reason="x" * 300)
    await one.sync()
    await describe(talk)
    two = Member(talk, "two", instance_id="static.ü 1", protocols=named(odd), client_id="")
    await two.enter(reason="")
    await one.join(reason="because")
    await describe(talk)


@conversation()
async def large_metadata(talk: Conversation) -> None:
    """A hundred topics and user data of 60 kB come back as they were sent."""
    metadata = subscription([f"topic-{n}" for n in range(100)], bytes(range(256)) * 240)
    one, two = (Member(talk, name, protocols=(("range", metadata),)) for name in ("one", "two"))
    await form(talk, one, two)
    await describe(talk)


@conversation()
async def no_rebalance_timeout(talk: Conversation) -> None:
    """Nobody is waited for, so nobody gets as far as its SyncGroup."""
    for timeout_ms in (0, -1):
        one, two = (Member(talk, f"{name}{timeout_ms}", rebalance_timeout_ms=timeout_ms) for name in ("one", "two"))
        await one.enter()
        await talk.rest(0.3)
        await two.enter()
        await talk.rest(0.3)
        await describe(talk)
        await list_groups(talk)
        await delete(talk)
