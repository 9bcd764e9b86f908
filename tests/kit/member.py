"""Raw group members: the client's side of the classic protocol, with every step in the test's hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from bench.classic_member import ClassicMember, subscription
from tests.kit.wire import RawClient, request

__all__ = ["ClassicMember", "Member", "coordinator", "subscription"]

FIND_COORDINATOR = 10


@dataclass(slots=True)
class Member(ClassicMember):
    """One member on its own connection; remembers its id and generation."""

    client: RawClient
    group_id: str
    instance_id: str | None = None
    metadata: bytes = field(default_factory=lambda: subscription(["t"]))
    protocols: tuple[str, ...] = ("range",)
    session_timeout_ms: float = 10_000
    rebalance_timeout_ms: float = 60_000
    member_id: str = ""
    generation: int = -1
    assignment: bytes = b""
    synced: int = -1
    """The generation that it was last given an assignment in."""

    async def join(self, timeout_s: float = 60.0) -> Any:
        """JoinGroup, with the second round trip of a new member (KIP-394). The last response."""
        response = await self.client.ask(self.join_request(), timeout_s)
        if response.error_code is ErrorCode.member_id_required:
            self.member_id = response.member_id
            response = await self.client.ask(self.join_request(), timeout_s)
        if response.error_code is ErrorCode.none:
            self.follow_join(response)
        return response

    async def sync(self, assignments: dict[str, bytes] | None = None, timeout_s: float = 60.0) -> Any:
        """SyncGroup of the generation joined."""
        response = await self.client.ask(self.sync_request(assignments), timeout_s)
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
        code: ErrorCode = (await self.client.ask(self.heartbeat_request())).error_code
        return code

    async def leave(self) -> Any:
        """LeaveGroup of this member."""
        return await self.client.ask(self.leave_request("the test is over"))

    async def commit(self, topic: str, offsets: dict[int, int], timeout_s: float = 20.0) -> dict[int, ErrorCode]:
        """OffsetCommit as a member of the present generation; an error code for each partition."""
        response = await self.client.ask(self.commit_request({topic: offsets}, metadata=None), timeout_s)
        return {int(one.partition_index): one.error_code for one in response.topics[0].partitions}

    async def committed(self, topic: str, partitions: list[int], timeout_s: float = 20.0) -> dict[int, int]:
        """OffsetFetch: the group's committed offset of each partition, -1 for none."""
        response = await self.client.ask(self.offsets_request(topic, partitions), timeout_s)
        assert response.groups[0].error_code is ErrorCode.none, response
        return {int(one.partition_index): int(one.committed_offset) for one in response.groups[0].topics[0].partitions}


async def coordinator(client: RawClient, group_id: str, timeout_s: float = 20.0) -> int:
    """FindCoordinator: the port of the broker to ask about a group; -1 where none is named."""
    asked = request(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group_id,))
    return int((await client.ask(asked, timeout_s)).coordinators[0].port)
