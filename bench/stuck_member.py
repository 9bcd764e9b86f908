"""A group member whose every step is somebody's choice: it joins, syncs, heartbeats, commits, leaves on command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from bench.classic_member import HEARTBEAT, ClassicMember
from bench.frames import decode_response
from bench.kafka_wire import MeasureFailed, Wire, encode
from tidegate.protocol.consumer_blobs import (
    assigned_partitions,
    subscribed_topics,
    write_assignment,
    write_subscription,
)

_HEARTBEAT_S: Final = 0.2


@dataclass(slots=True)
class Member(ClassicMember):
    """One member; its heartbeats have a connection of their own, as a join may take long."""

    group_id: str
    name: str
    address: str
    wire: Wire
    heartbeats: Wire
    topics: tuple[str, ...] = ("orders",)
    instance_id: str | None = None
    session_timeout_ms: float = 10_000
    rebalance_timeout_ms: float = 300_000
    protocols: tuple[str, ...] = ("range",)
    partitions: int = 4
    end: int = 100
    synced: int = -1
    owned: tuple[int, ...] = ()
    closed: bool = False

    def __post_init__(self) -> None:
        self.metadata = write_subscription(self.topics)

    @classmethod
    async def connect(cls, address: str, group_id: str, name: str, **traits: Any) -> Member:
        """A member to be. `traits` are its fields."""
        return cls(group_id, name, address, await Wire.connect(address), await Wire.connect(address), **traits)

    async def _ask(self, message: Any) -> Any:
        """The answer; asked again on a new connection where a broker that stood still closed the one in use."""
        api_key, version, frame = int(message.__api_key__), int(message.__version__), encode(message, 1, self.name)
        lane = "heartbeats" if api_key == HEARTBEAT else "wire"
        while True:
            try:
                return decode_response(api_key, version, await getattr(self, lane).send(frame))[1]
            except ConnectionError:
                if self.closed:
                    raise
            await asyncio.sleep(_HEARTBEAT_S)
            setattr(self, lane, await Wire.connect(self.address))

    async def ask_for_id(self) -> None:
        """Only the first round trip of a new member (KIP-394)."""
        self.member_id = (await self._ask(self.join_request())).member_id

    async def join(self, reason: str | None = None) -> Any:
        """JoinGroup, both round trips of a new member. Raises MeasureFailed unless it succeeds."""
        joined = await self._ask(self.join_request(reason=reason))
        if joined.error_code is ErrorCode.member_id_required:
            self.member_id = joined.member_id
            joined = await self._ask(self.join_request(reason=reason))
        if joined.error_code is not ErrorCode.none:
            raise MeasureFailed(f"{self.name}: JoinGroup: {joined.error_code.name}")
        self.follow_join(joined)
        return joined

    async def sync(self, joined: Any) -> bool:
        """SyncGroup; the leader hands out the partitions in turn. False where the group rebalances again."""
        plan = self._plan([member.member_id for member in joined.members if subscribed_topics(member.metadata)])
        synced = await self._ask(self.sync_request(plan, joined.protocol_name))
        if synced.error_code not in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            raise MeasureFailed(f"{self.name}: SyncGroup: {synced.error_code.name}")
        if synced.error_code is not ErrorCode.none:
            return False
        owned = assigned_partitions(synced.assignment) or {}
        self.synced = self.generation
        self.owned = tuple(partition for partitions in owned.values() for partition in partitions)
        return True

    async def wait_for_assignment(self, joined: Any) -> None:
        """SyncGroup of a follower."""
        await self.sync(joined)

    def _plan(self, member_ids: list[str]) -> dict[str, bytes]:
        return {
            member_id: write_assignment(
                {topic: owned for topic in self.topics if (owned := range(self.partitions)[place :: len(member_ids)])}
            )
            for place, member_id in enumerate(sorted(member_ids))
        }

    async def round(self, reason: str | None = None) -> None:
        """Join and sync, until the group is stable with this member in it."""
        while not await self.sync(await self.join(reason)):
            pass

    async def heartbeat(self) -> ErrorCode:
        """One heartbeat, on its own connection."""
        answer = await self._ask(self.heartbeat_request())
        code: ErrorCode = answer.error_code
        return code

    async def keep_heartbeating(self) -> None:
        """Heartbeats without end, whatever they are answered."""
        while True:
            await self.heartbeat()
            await asyncio.sleep(_HEARTBEAT_S)

    async def follow(self) -> None:
        """What a healthy client does: heartbeats, commits, and a new round whenever one is on."""
        while True:
            code = await self.heartbeat() if self.member_id else ErrorCode.unknown_member_id
            if code is ErrorCode.none:
                await self.commit()
            else:
                if code is ErrorCode.unknown_member_id:
                    self.member_id = ""
                await self.round()
            await asyncio.sleep(_HEARTBEAT_S)

    async def commit(self) -> None:
        """OffsetCommit of all that there is to read."""
        offsets = dict.fromkeys(self.owned, self.end)
        await self._ask(self.commit_request(dict.fromkeys(self.topics, offsets)))

    async def leave(self, reason: str) -> None:
        """LeaveGroup; it may join again as somebody new."""
        await self._ask(self.leave_request(reason))
        self.member_id = ""

    def close(self) -> None:
        """Be gone without a word."""
        self.closed = True
        self.wire.close()
        self.heartbeats.close()
