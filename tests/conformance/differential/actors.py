"""Who speaks in a conversation: members with a life of their own, and an administrator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.conformance.differential.conversation import Conversation, Exchange
from tests.conformance.differential.sides import Side
from tests.kit.member import subscription

Ref = Callable[[Side], Any]
"""A value that each target has its own of."""

Protocols = Sequence[tuple[str, bytes]]
RANGE: Final[Protocols] = (("range", subscription(["orders"])),)


def group(side: Side) -> str:
    """The conversation's group id."""
    return side.group_id


class Member:
    """One group member. Every method is one step; keywords change the request's values."""

    def __init__(
        self,
        talk: Conversation,
        name: str,
        instance_id: str | None = None,
        protocols: Protocols = RANGE,
        session_timeout_ms: int = 60_000,
        rebalance_timeout_ms: int = 120_000,
        versions: Mapping[str, int] | None = None,
        client_id: str = "client",
    ) -> None:
        self.talk, self.name, self.instance_id, self.client_id = talk, name, instance_id, client_id
        self.protocols = protocols
        self.session_timeout_ms, self.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
        self.versions = dict(versions or {})

    @property
    def id(self) -> Ref:
        """The member id that each target gave."""
        return lambda side: side.of(self.name).member_id

    def generation(self, plus: int = 0) -> Ref:
        """The generation of each target."""
        return lambda side: side.of(self.name).generation + plus

    @property
    def leads(self) -> bool:
        """Whether Kafka made this member the leader."""
        reported = self.talk.sides[0].of(self.name)
        return reported.leader == reported.member_id != ""

    @property
    def is_promised(self) -> bool:
        """Whether all it has is an id to come back with."""
        return self.talk.sides[0].of(self.name).is_promised

    def forget(self) -> None:
        """The process starts again: it knows no id."""
        for side in self.talk.sides:
            side.reported.pop(self.name, None)

    async def _show_message(
        self, api: str, version: int | None, values: Mapping[str, Any], changes: Mapping[str, Any]
    ) -> Exchange:
        version = self.versions.get(api) if version is None else version
        return await self.talk.report(self.name, api, version, client_id=self.client_id, **{**values, **changes})

    async def join(self, version: int | None = None, **changes: Any) -> Exchange:
        """One JoinGroup. `protocols=` changes what is offered from now on."""
        self.protocols = changes.pop("protocols", self.protocols)
        values = {
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "session_timeout": self.session_timeout_ms,
            "rebalance_timeout": self.rebalance_timeout_ms,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in self.protocols],
            "reason": None,
        }
        return await self._show_message("JoinGroup", version, values, changes)

    async def enter(self, version: int | None = None, **changes: Any) -> Exchange:
        """Join; come back with the id where one is required (KIP-394)."""
        exchange = await self.join(version, **changes)
        return await self.join(version, **changes) if exchange.code == "member_id_required" else exchange

    async def sync(self, version: int | None = None, plan: Any = None, **changes: Any) -> Exchange:
        """SyncGroup; a leader hands each member its name and generation."""
        values = {
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "generation_id": self.generation(),
            "protocol_type": "consumer",
            "protocol_name": lambda side: side.of(self.name).protocol or self.protocols[0][0],
            "assignments": plan or self.plan,
        }
        return await self._show_message("SyncGroup", version, values, changes)

    def plan(self, side: Side) -> list[dict[str, Any]]:
        """What the leader hands out: nothing unless it got the members."""
        reported = side.of(self.name)
        return [
            {"member_id": member_id, "assignment": f"{side.names.member(member_id)}@{reported.generation}".encode()}
            for member_id in sorted(reported.listed, key=side.names.member)
        ]

    async def heartbeat(self, version: int | None = None, **changes: Any) -> Exchange:
        """Heartbeat of the generation that it got."""
        values = {"member_id": self.id, "group_instance_id": self.instance_id, "generation_id": self.generation()}
        return await self._show_message("Heartbeat", version, values, changes)

    async def leave(self, version: int | None = None, **changes: Any) -> Exchange:
        """LeaveGroup of this member alone."""
        return await leave(self.talk, self, version=version, **changes)

    async def commit(self, version: int | None = None, offset: int = 5, **changes: Any) -> Exchange:
        """OffsetCommit of partition 0, as a member of the generation that it got."""
        values = {
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "generation_id_or_member_epoch": self.generation(),
            "retention_time": -1,
            "topics": offsets({"orders": {0: offset}}),
        }
        return await self._show_message("OffsetCommit", version, values, changes)


def offsets(wanted: Mapping[str, Mapping[int, int]], metadata: str | None = "") -> list[dict[str, Any]]:
    """OffsetCommit's topics."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": 0,
                    "committed_metadata": metadata,
                }
                for index, offset in partitions.items()
            ],
        }
        for topic, partitions in wanted.items()
    ]


async def leave(
    talk: Conversation, *members: Member | dict[str, Any], version: int | None = None, **changes: Any
) -> Exchange:
    """One LeaveGroup of several, in order; a dict is sent as it is."""
    identities = [
        {"member_id": one.id, "group_instance_id": one.instance_id, "reason": "done"}
        if isinstance(one, Member)
        else one
        for one in members
    ]
    first = members[0] if members and isinstance(members[0], Member) else None
    values = {"members": identities, "member_id": first.id if first else ""}
    talk.notes.add("leaving")
    if any(isinstance(one, Member) and one.is_promised for one in members):
        talk.notes.add("promised id leaves")
    try:
        if first:
            return await talk.report(
                first.name, "LeaveGroup", version, client_id=first.client_id, **{**values, **changes}
            )
        return await talk.report("@admin", "LeaveGroup", version, **{**values, **changes})
    finally:
        talk.notes -= {"leaving", "promised id leaves"}


async def form(talk: Conversation, *members: Member) -> None:
    """A Stable group of these, the first leads; one after the other, as without an initial delay."""
    for index, member in enumerate(members):
        await member.enter()
        for earlier in members[:index]:
            await earlier.join()
        for joined in members[: index + 1]:
            await joined.sync()


async def fetch(talk: Conversation, version: int | None = None, topics: Any = None, **changes: Any) -> Exchange:
    """OffsetFetch of one group; all its offsets unless topics (name -> partitions) are given."""
    wanted = None
    if topics is not None:
        wanted = [{"name": name, "partition_indexes": tuple(indexes)} for name, indexes in topics.items()]
    values = {
        "topics": wanted,
        "groups": [{"group_id": group, "topics": wanted, "member_id": None, "member_epoch": -1}],
        "require_stable": False,
    }
    return await talk.report("@admin", "OffsetFetch", version, probe=False, **{**values, **changes})


async def describe(talk: Conversation, version: int | None = None, **changes: Any) -> Exchange:
    """DescribeGroups of the group."""
    values = {"groups": (group,), "include_authorized_operations": False}
    return await talk.report("@admin", "DescribeGroups", version, probe=False, **{**values, **changes})


async def list_groups(talk: Conversation, version: int | None = None, **changes: Any) -> Exchange:
    """ListGroups; only this conversation's groups are compared."""
    values: dict[str, Any] = {"states_filter": (), "types_filter": ()}
    return await talk.report("@admin", "ListGroups", version, probe=False, **{**values, **changes})


async def delete(talk: Conversation, version: int | None = None, **changes: Any) -> Exchange:
    """DeleteGroups of the group."""
    return await talk.report("@admin", "DeleteGroups", version, **{"groups_names": (group,), **changes})


async def delete_offsets(talk: Conversation, wanted: Mapping[str, Sequence[int]], **changes: Any) -> Exchange:
    """OffsetDelete of topic -> partitions."""
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in wanted.items()
    ]
    return await talk.report("@admin", "OffsetDelete", **{"topics": topics, **changes})


async def find(talk: Conversation, version: int | None = None, key_type: int = 0, **changes: Any) -> Exchange:
    """FindCoordinator of the group."""
    values = {"key": group, "coordinator_keys": (group,), "key_type": key_type}
    return await talk.report("@admin", "FindCoordinator", version, probe=False, **{**values, **changes})


async def api_versions(talk: Conversation) -> Exchange:
    """ApiVersions v0; only the group APIs are compared."""
    return await talk.report("@admin", "ApiVersions", 0, probe=False)
