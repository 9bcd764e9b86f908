"""What administrators ask: coordinators, descriptions, lists, deletions, versions [61, 90, 95-97, Q8, Q20]."""

from __future__ import annotations

from tests.conformance.differential.actors import (
    Member,
    api_versions,
    delete,
    delete_offsets,
    describe,
    fetch,
    find,
    form,
    group,
    leave,
    list_groups,
    offsets,
)
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.messages import VERSIONS


@conversation()
async def versions_offered(talk: Conversation) -> None:
    """ApiVersions of the group APIs."""
    await api_versions(talk)


@conversation()
async def coordinator_of_groups(talk: Conversation) -> None:
    """[97] Every version; several keys, none, "", and key types nobody serves."""
    for version in VERSIONS["FindCoordinator"]:
        await find(talk, version)
        await find(talk, version, key="", coordinator_keys=("", "a", "a"))
        if version > 0:
            await find(talk, version, key_type=9)
            await find(talk, version, key_type=2, key="g:AAAAAAAAAAAAAAAAAAAAAA:0", coordinator_keys=("x", "y"))
            await find(talk, version, key_type=1)
    await find(talk, 4, coordinator_keys=())


@conversation()
async def absent_group(talk: Conversation) -> None:
    """Everything that can be asked of a group that does not exist [61, 84, 90, 95-97]."""
    member = Member(talk, "nobody")
    for version in VERSIONS["DescribeGroups"]:
        await describe(talk, version, include_authorized_operations=True)
    for version in VERSIONS["ListGroups"]:
        await list_groups(talk, version)
    for version in VERSIONS["OffsetFetch"]:
        await fetch(talk, version, {"orders": (0, 9), "nowhere": (0,)})
        await fetch(talk, version, {})
        if version > 1:
            await fetch(talk, version)
    for version in VERSIONS["DeleteGroups"]:
        await delete(talk, version)
    await delete_offsets(talk, {"orders": (0,), "nowhere": (0,)})
    await delete_offsets(talk, {})
    for version in VERSIONS["LeaveGroup"]:
        await leave(talk, {"member_id": "x", "group_instance_id": None, "reason": None}, version=version, member_id="x")
    for version in VERSIONS["Heartbeat"]:
        await member.heartbeat(version, member_id="x", generation_id=1)
    for version in VERSIONS["SyncGroup"]:
        await member.sync(version, member_id="x", generation_id=1)
    for version in VERSIONS["OffsetCommit"]:
        await member.commit(version, member_id="x", generation_id_or_member_epoch=0)


@conversation()
async def group_without_a_name(talk: Conversation) -> None:
    """The group id "": refused by some, a name like any other to the rest (2.1)."""
    member = Member(talk, "nobody")
    for version in VERSIONS["JoinGroup"]:
        await member.join(version, group_id="")
    await member.join(group_id="", session_timeout=1)
    for version in VERSIONS["SyncGroup"]:
        await member.sync(version, group_id="", member_id="x")
    await member.sync(5, group_id="", protocol_name=None)
    for version in VERSIONS["Heartbeat"]:
        await member.heartbeat(version, group_id="")
    for version in VERSIONS["LeaveGroup"]:
        await member.leave(version, group_id="")
    await delete_offsets(talk, {"orders": (0,)}, group_id="")
    await describe(talk, groups=("",))
    await describe(talk, 5, groups=("",))
    await fetch(talk, 7, {"orders": (0,)}, group_id="")


@conversation()
async def described_in_each_state(talk: Conversation) -> None:
    """DescribeGroups and ListGroups, all versions, in every state [97]."""

    async def observe() -> None:
        for version in VERSIONS["DescribeGroups"]:
            await describe(talk, version, include_authorized_operations=version % 2 == 0)
        for version in VERSIONS["ListGroups"]:
            await list_groups(talk, version)

    one, two = Member(talk, "one"), Member(talk, "two", instance_id="static-2")
    await one.join()
    await observe()
    await one.join()
    await observe()
    await one.sync()
    await observe()
    await two.join()
    await observe()
    await one.join()
    await one.sync()
    await two.sync()
    await observe()
    await leave(talk, one, two)
    await observe()


@conversation()
async def listed_by_filters(talk: Conversation) -> None:
    """[97] Filters of states and types: case, blanks, unknown names."""
    one = Member(talk, "one")
    await form(talk, one)
    for states in ((" sTable ",), ("nope",), ("Empty", "Stable"), ("",), ("PreparingRebalance",)):
        await list_groups(talk, 4, states_filter=states)
    for types in (("Classic",), ("classic",), (" classic ",), ("consumer",), ("nope",), ("",), ("consumer", "classic")):
        await list_groups(talk, 5, types_filter=types)
    await list_groups(talk, 5, states_filter=("stable",), types_filter=("share",))


@conversation()
async def described_several_at_once(talk: Conversation) -> None:
    """One DescribeGroups and one DeleteGroups for several groups, twice the same among them."""
    one = Member(talk, "one")
    await form(talk, one)
    several = (group, lambda side: side.group_id + "-absent", group)
    await describe(talk, 6, groups=several)
    await describe(talk, 5, groups=several)
    await describe(talk, 6, groups=())
    await delete(talk, groups_names=several)
    await one.leave()
    await delete(talk, groups_names=several)
    await delete(talk, groups_names=())


@conversation()
async def deleted_groups(talk: Conversation) -> None:
    """[96] Refused while anybody is there; then gone with its offsets, and the next life starts at 1."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await one.enter()
    await delete(talk)
    await one.sync()
    await one.commit()
    await delete(talk)
    await two.enter()
    await delete(talk)
    await leave(talk, one, two)
    await fetch(talk, topics={"orders": (0,)})
    await delete(talk)
    await fetch(talk, topics={"orders": (0,)})
    await delete(talk)
    await list_groups(talk)
    await one.heartbeat()
    await one.join()
    one.forget()
    await form(talk, one)


@conversation()
async def promised_ids_do_not_protect(talk: Conversation) -> None:
    """[1, Q20] A group in which an id was only handed out: listed, deletable, and the id is void afterwards."""
    one = Member(talk, "one")
    await one.join()
    await list_groups(talk)
    await describe(talk)
    await describe(talk, 5)
    await fetch(talk)
    await delete(talk)
    await list_groups(talk)
    await one.join()


@conversation()
async def refused_first_joins(talk: Conversation) -> None:
    """[9, Q8] First joins that are refused, and what is left of the group."""
    one = Member(talk, "one")
    await one.join(protocol_type="")
    await one.join(protocols=())
    await list_groups(talk)
    await describe(talk)
    await delete(talk)


@conversation()
async def refused_first_join_leaves_what(talk: Conversation) -> None:
    """[Q8] Offsets APIs after a refused first join."""
    one = Member(talk, "one")
    await one.join(protocol_type="")
    await one.commit(member_id="x", generation_id_or_member_epoch=0)
    await delete_offsets(talk, {"orders": (0,)})
    await one.commit(member_id="", generation_id_or_member_epoch=-1)
    await list_groups(talk)


@conversation()
async def offsets_deleted(talk: Conversation) -> None:
    """[95] Subscribed topics are protected, in every state; of an empty group nothing is."""
    one = Member(talk, "one")
    await one.join()
    await delete_offsets(talk, {"orders": (0,), "payments": (0, 1), "nowhere": (0,)})
    await one.join()
    await delete_offsets(talk, {"orders": (0,), "payments": (0, 1)})
    await one.sync()
    await one.commit(topics=offsets({"orders": {0: 5}, "payments": {0: 6, 1: 7}}))
    await delete_offsets(talk, {"orders": (0, 8), "payments": (0, 9), "nowhere": (0,)})
    await fetch(talk)
    two = Member(talk, "two")
    await two.enter()
    await delete_offsets(talk, {"orders": (0,), "payments": (0,)})
    await leave(talk, one, two)
    await delete_offsets(talk, {"orders": (0,), "payments": (1,)})
    await fetch(talk)
    await one.enter(member_id="")
    await delete_offsets(talk, {"orders": (0,)})


@conversation()
async def offsets_deleted_of_other_types(talk: Conversation) -> None:
    """[95] A group that is not of consumers protects all while it has members; unreadable metadata too."""
    worker = Member(talk, "worker")
    await worker.enter(protocol_type="connect")
    await worker.sync(protocol_type="connect")
    await delete_offsets(talk, {"orders": (0,)})
    await delete_offsets(talk, {"nowhere": (0,)})
    await worker.leave()
    await delete_offsets(talk, {"orders": (0,)})
    strange = Member(talk, "strange", protocols=(("range", b"\x00"),))
    await form(talk, strange)
    await delete_offsets(talk, {"orders": (0,), "payments": (0,)})
    await strange.leave()
    await delete_offsets(talk, {"orders": (0,)})
