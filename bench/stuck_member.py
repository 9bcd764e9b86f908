"""A group member whose every step is somebody's choice: it joins, syncs, heartbeats, commits, leaves on command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from bench.kafka_wire import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
    MeasureFailed,
    Wire,
    decode,
    encode,
    request,
)
from tidegate.protocol.consumer_blobs import (
    assigned_partitions,
    subscribed_topics,
    write_assignment,
    write_subscription,
)

PROTOCOL: Final = "range"
_HEARTBEAT_S: Final = 0.2


@dataclass(slots=True)
class Member:
    """One member; its heartbeats have a connection of their own, as a join may take long."""

    group_id: str
    name: str
    address: str
    wire: Wire
    heartbeats: Wire
    topics: tuple[str, ...] = ("orders",)
    instance_id: str | None = None
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 300_000
    protocols: tuple[str, ...] = (PROTOCOL,)
    partitions: int = 4
    end: int = 100
    member_id: str = ""
    generation: int = -1
    synced: int = -1
    leads: bool = False
    owned: tuple[int, ...] = ()
    closed: bool = False

    @classmethod
    async def connect(cls, address: str, group_id: str, name: str, **traits: Any) -> Member:
        """A member to be. `traits` are its fields."""
        return cls(group_id, name, address, await Wire.connect(address), await Wire.connect(address), **traits)

    async def _ask(self, api: int, **values: Any) -> Any:
        """The answer; asked again on a new connection where a broker that stood still closed the one in use."""
        name = "".join(word.title() for word in api_key_map[api].split("_"))
        message = getattr(request(api), f"{name}Request")(group_id=self.group_id, **values)
        frame, lane = encode(api, message, client_id=self.name.encode()), "wire"
        if api == HEARTBEAT:
            lane = "heartbeats"
        while True:
            try:
                return decode(api, await getattr(self, lane).send(frame))
            except ConnectionError:
                if self.closed:
                    raise
            await asyncio.sleep(_HEARTBEAT_S)
            setattr(self, lane, await Wire.connect(self.address))

    async def _join_once(self, reason: str | None) -> Any:
        metadata = write_subscription(self.topics)
        offered = request(JOIN_GROUP).JoinGroupRequestProtocol
        return await self._ask(
            JOIN_GROUP,
            session_timeout=timedelta(milliseconds=self.session_timeout_ms),
            rebalance_timeout=timedelta(milliseconds=self.rebalance_timeout_ms),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=tuple(offered(name=name, metadata=metadata) for name in self.protocols),
            reason=reason,
        )

    async def ask_for_id(self) -> None:
        """Only the first round trip of a new member (KIP-394)."""
        self.member_id = (await self._join_once(None)).member_id

    async def join(self, reason: str | None = None) -> Any:
        """JoinGroup, both round trips of a new member. Raises MeasureFailed unless it succeeds."""
        joined = await self._join_once(reason)
        if joined.error_code is ErrorCode.member_id_required:
            self.member_id = joined.member_id
            joined = await self._join_once(reason)
        if joined.error_code is not ErrorCode.none:
            raise MeasureFailed(f"{self.name}: JoinGroup: {joined.error_code.name}")
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.leads = joined.leader == joined.member_id
        return joined

    async def sync(self, joined: Any) -> bool:
        """SyncGroup; the leader hands out the partitions in turn. False where the group rebalances again."""
        part = request(SYNC_GROUP).SyncGroupRequestAssignment
        plan = self._plan([member.member_id for member in joined.members if subscribed_topics(member.metadata)])
        synced = await self._ask(
            SYNC_GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=tuple(part(member_id=member_id, assignment=owned) for member_id, owned in plan.items()),
        )
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
        answer = await self._ask(
            HEARTBEAT,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
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
        module = request(OFFSET_COMMIT)
        parts = tuple(
            module.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=self.end, committed_leader_epoch=-1, committed_metadata=""
            )
            for partition in self.owned
        )
        await self._ask(
            OFFSET_COMMIT,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=tuple(module.OffsetCommitRequestTopic(name=topic, partitions=parts) for topic in self.topics),
        )

    async def leave(self, reason: str) -> None:
        """LeaveGroup; it may join again as somebody new."""
        identity = request(LEAVE_GROUP).MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance_id, reason=reason
        )
        await self._ask(LEAVE_GROUP, members=(identity,))
        self.member_id = ""

    def close(self) -> None:
        """Be gone without a word."""
        self.closed = True
        self.wire.close()
        self.heartbeats.close()
