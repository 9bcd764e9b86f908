"""Raw group members: the client's side of the classic protocol, with every step in the test's hand."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tests.kit.wire import RawClient

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14


def subscription(topics: list[str], user_data: bytes = b"") -> bytes:
    """ConsumerProtocolSubscription v0."""
    parts = [struct.pack(">hi", 0, len(topics))]
    parts += [struct.pack(">h", len(topic)) + topic.encode() for topic in topics]
    return b"".join(parts) + struct.pack(">i", len(user_data)) + user_data


def module(api_key: int, version: int) -> Any:
    """kio's module of a request."""
    return load_payload_module(api_key, version, EntityType.request)


@dataclass(slots=True)
class Member:
    """One member on its own connection; remembers its id and generation."""

    client: RawClient
    group_id: str
    instance_id: str | None = None
    metadata: bytes = field(default_factory=lambda: subscription(["t"]))
    protocols: tuple[str, ...] = ("range",)
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False
    assignment: bytes = b""
    synced: int = -1
    """The generation that it was last given an assignment in."""

    def join_request(self, version: int = 9) -> Any:
        """JoinGroup as this member sends it now."""
        kio = module(JOIN, version)
        return kio.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout=timedelta(milliseconds=self.session_timeout_ms),
            rebalance_timeout=timedelta(milliseconds=self.rebalance_timeout_ms),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=tuple(kio.JoinGroupRequestProtocol(name=name, metadata=self.metadata) for name in self.protocols),
            reason=None,
        )

    async def join(self, timeout_s: float = 60.0) -> Any:
        """JoinGroup, with the second round trip of a new member (KIP-394). The last response."""
        response = await self.client.ask(self.join_request(), timeout_s)
        if response.error_code is ErrorCode.member_id_required:
            self.member_id = response.member_id
            response = await self.client.ask(self.join_request(), timeout_s)
        if response.error_code is ErrorCode.none:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.is_leader = response.leader == response.member_id
        return response

    async def sync(self, assignments: dict[str, bytes] | None = None, timeout_s: float = 60.0) -> Any:
        """SyncGroup of the generation joined."""
        kio = module(SYNC, 5)
        response = await self.client.ask(
            kio.SyncGroupRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name=self.protocols[0],
                assignments=tuple(
                    kio.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in (assignments or {}).items()
                ),
            ),
            timeout_s,
        )
        if response.error_code is ErrorCode.none:
            self.assignment, self.synced = response.assignment, self.generation
        return response

    async def round(self) -> None:
        """Join and sync until the group is stable with this member in it; the leader hands each its own id."""
        while True:
            joined = await self.join()
            assert joined.error_code is ErrorCode.none, joined
            plan = {member.member_id: member.member_id.encode() for member in joined.members}
            synced = await self.sync(plan)
            if synced.error_code is ErrorCode.none:
                return
            assert synced.error_code is ErrorCode.rebalance_in_progress, synced

    async def heartbeat(self) -> ErrorCode:
        """Heartbeat of the present generation; its error code."""
        kio = module(HEARTBEAT, 4)
        response = await self.client.ask(
            kio.HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
        )
        code: ErrorCode = response.error_code
        return code

    async def leave(self) -> Any:
        """LeaveGroup of this member."""
        kio = module(LEAVE, 5)
        return await self.client.ask(
            kio.LeaveGroupRequest(
                group_id=self.group_id,
                members=(
                    kio.MemberIdentity(
                        member_id=self.member_id, group_instance_id=self.instance_id, reason="the test is over"
                    ),
                ),
            )
        )

    async def commit(self, topic: str, offsets: dict[int, int], timeout_s: float = 20.0) -> dict[int, ErrorCode]:
        """OffsetCommit as a member of the present generation; an error code for each partition."""
        kio = module(OFFSET_COMMIT, 8)
        partitions = tuple(
            kio.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=None
            )
            for index, offset in offsets.items()
        )
        response = await self.client.ask(
            kio.OffsetCommitRequest(
                group_id=self.group_id,
                generation_id_or_member_epoch=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                topics=(kio.OffsetCommitRequestTopic(name=topic, partitions=partitions),),
            ),
            timeout_s,
        )
        return {int(one.partition_index): one.error_code for one in response.topics[0].partitions}

    async def committed(self, topic: str, partitions: list[int], timeout_s: float = 20.0) -> dict[int, int]:
        """OffsetFetch: the group's committed offset of each partition, -1 for none."""
        kio = module(OFFSET_FETCH, 8)
        wanted = kio.OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(partitions))
        group = kio.OffsetFetchRequestGroup(group_id=self.group_id, topics=(wanted,))
        response = await self.client.ask(kio.OffsetFetchRequest(groups=(group,), require_stable=False), timeout_s)
        assert response.groups[0].error_code is ErrorCode.none, response
        return {int(one.partition_index): int(one.committed_offset) for one in response.groups[0].topics[0].partitions}


async def coordinator(client: RawClient, group_id: str, timeout_s: float = 20.0) -> int:
    """FindCoordinator: the port of the broker to ask about a group; -1 where none is named."""
    kio = module(FIND_COORDINATOR, 4)
    response = await client.ask(kio.FindCoordinatorRequest(key_type=0, coordinator_keys=(group_id,)), timeout_s)
    return int(response.coordinators[0].port)
