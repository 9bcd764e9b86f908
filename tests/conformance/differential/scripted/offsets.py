"""Commits and fetches in every version and state [84-91]."""

from __future__ import annotations

from typing import Any, Final

from tests.conformance.differential.actors import Member, delete_offsets, fetch, form, group, leave, offsets
from tests.conformance.differential.catalogue import conversation
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.messages import VERSIONS

SIMPLE: Final[dict[str, Any]] = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}


@conversation()
async def committed_without_members(talk: Conversation) -> None:
    """[84] An absent group is made by a simple commit; another generation is refused, by version."""
    one = Member(talk, "one")
    for version in VERSIONS["OffsetCommit"]:
        await one.commit(version, member_id="", generation_id_or_member_epoch=0)
    for version in VERSIONS["OffsetCommit"]:
        await one.commit(version, offset=version, **SIMPLE)
        for reading in VERSIONS["OffsetFetch"]:
            await fetch(talk, reading, {"orders": (2, 0)} if reading < 2 or version % 2 else None)


@conversation()
async def committed_in_an_empty_group(talk: Conversation) -> None:
    """[86] Generation -1 with anybody's name; any other generation is refused."""
    one = Member(talk, "one")
    await form(talk, one)
    await one.leave()
    await one.commit()
    await one.commit(generation_id_or_member_epoch=3)
    await one.commit(member_id="", generation_id_or_member_epoch=3)
    await one.commit(generation_id_or_member_epoch=-1, offset=7)
    await one.commit(generation_id_or_member_epoch=-1, offset=8, group_instance_id="nobody")
    await one.commit(offset=9, **SIMPLE)
    await fetch(talk)


@conversation()
async def committed_in_each_state(talk: Conversation) -> None:
    """[85, 87] As a member, simply, of other generations; all versions."""
    one, two = Member(talk, "one"), Member(talk, "two")

    async def commits(member: Member, first: int) -> None:
        for version in VERSIONS["OffsetCommit"]:
            await member.commit(version, offset=first + version)
        await member.commit(offset=999, **SIMPLE)
        await member.commit(offset=999, **(SIMPLE | {"group_instance_id": "nobody"}))
        await member.commit(offset=999, generation_id_or_member_epoch=-1)
        await member.commit(offset=999, generation_id_or_member_epoch=member.generation(1))
        await member.commit(offset=999, generation_id_or_member_epoch=member.generation(-1))
        await member.commit(offset=999, member_id="stranger")
        await fetch(talk)

    await one.join()
    await commits(one, 100)
    await one.join()
    await commits(one, 200)
    await one.sync()
    await commits(one, 300)
    await two.enter()
    await commits(one, 400)
    await commits(two, 500)
    await one.join()
    await commits(two, 600)
    await leave(talk, one, two)
    await commits(one, 700)


@conversation()
async def metadata_limits(talk: Conversation) -> None:
    """[88, Q13] UTF-16 units count; a partition that is refused does not hold up the others."""
    one = Member(talk, "one")
    await form(talk, one)
    for metadata in (
        "x" * 4_096,
        "x" * 4_097,
        "ü" * 4_096,
        "ü" * 4_097,
        "\N{ROCKET}" * 2_048,
        "\N{ROCKET}" * 2_049,
        None,
    ):
        topics = offsets({"orders": {0: 1, 1: 2}}, metadata) + offsets({"payments": {0: 3}}, "fine")
        await one.commit(topics=topics)
        await fetch(talk)


@conversation()
async def unknown_partitions(talk: Conversation) -> None:
    """[89] Topics and partitions that do not exist; when nothing else is left the member is not judged."""
    one = Member(talk, "one")
    await form(talk, one)
    await one.commit(topics=offsets({"nowhere": {0: 1}, "orders": {0: 1, 3: 1, -1: 1}}))
    await one.commit(member_id="stranger", topics=offsets({"nowhere": {0: 1}, "orders": {9: 1}}))
    await one.commit(member_id="stranger", topics=offsets({"nowhere": {0: 1}, "orders": {0: 1, 9: 1}}))
    await one.commit(member_id="stranger", topics=[])
    await one.commit(topics=offsets({"orders": {}}))
    await one.commit(topics=offsets({"orders": {}, "nowhere": {}, "payments": {0: 1}}))
    await fetch(talk)
    for version in VERSIONS["OffsetFetch"]:
        await fetch(talk, version, {"orders": (), "nowhere": ()})
    await delete_offsets(talk, {"orders": (), "nowhere": ()})
    await one.leave()
    await delete_offsets(talk, {"orders": (), "nowhere": (), "payments": (0,)})


@conversation()
async def odd_values(talk: Conversation) -> None:
    """Offsets are not judged; epochs come back from v5 on; the same partition twice."""
    one = Member(talk, "one")
    await form(talk, one)
    for offset in (-1, 0, 2**63 - 1, -(2**63), 1):
        await one.commit(offset=offset)
        await fetch(talk)
    twice = offsets({"orders": {0: 3}}) + offsets({"orders": {0: 4}})
    await one.commit(topics=twice)
    await fetch(talk)
    epochs = offsets({"orders": {1: 3}, "payments": {0: 3}})
    epochs[0]["partitions"][0]["committed_leader_epoch"] = 17
    epochs[1]["partitions"][0]["committed_leader_epoch"] = -1
    for version in VERSIONS["OffsetCommit"]:
        await one.commit(version, topics=epochs)
        for reading in (1, 4, 5, 9):
            await fetch(talk, reading, {"orders": (1,), "payments": (0,)})


@conversation()
async def fetched_in_batches(talk: Conversation) -> None:
    """[90, 91] Several groups in one request: there, absent, the same twice; none; and who asks is not judged."""
    one = Member(talk, "one")
    await form(talk, one)
    await one.commit(topics=offsets({"orders": {0: 1, 2: 3}, "payments": {1: 4}}, "note"))

    def wanted(topics: object) -> list[dict[str, object]]:
        names = (group, lambda side: side.group_id + "-absent", group)
        return [{"group_id": name, "topics": topics, "member_id": "x", "member_epoch": 9} for name in names]

    some = [{"name": "orders", "partition_indexes": (2, 1, 0, 0)}, {"name": "nowhere", "partition_indexes": (0,)}]
    for version in (8, 9):
        for topics in (None, [], some):
            await fetch(talk, version, groups=wanted(topics))
            await fetch(talk, version, groups=wanted(topics), require_stable=True)
        await fetch(talk, version, groups=[])
    for version in (7, 5, 2):
        await fetch(talk, version, topics={"orders": (0, 1), "nowhere": (0,)}, require_stable=True)


@conversation()
async def fetched_in_each_state(talk: Conversation) -> None:
    """[90] Fetching never depends on the state, and changes nothing."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await one.commit(offset=1, **SIMPLE)
    await one.join()
    await fetch(talk)
    await one.join()
    await fetch(talk)
    await one.sync()
    await fetch(talk)
    await two.enter()
    await fetch(talk)
    await leave(talk, one, two)
    await fetch(talk)


@conversation()
async def zombie_commits(talk: Conversation) -> None:
    """[87] Who was removed, or is of an older generation, changes nothing."""
    one, two = Member(talk, "one"), Member(talk, "two")
    await form(talk, one, two)
    await one.commit(offset=10)
    await two.leave()
    await two.commit(offset=1)
    await one.join()
    await one.commit(offset=11)
    await one.sync()
    await one.commit(offset=1, generation_id_or_member_epoch=one.generation(-1))
    await one.commit(offset=12)
    await fetch(talk)
