"""Raw group members as a client library has them: join, sync, heartbeat, and again after a rebalance."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any, Final

from kio.schema.errors import ErrorCode

from bench.classic_member import ClassicMember
from bench.kafka_wire import MeasureFailed, Wire, encode

ASSIGNMENT: Final = struct.pack(">hi", 0, 0) + bytes(94)
_AGAIN: Final = frozenset(
    {
        ErrorCode.rebalance_in_progress,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,  # of a server that has just made its offsets topic
    }
)
_ERROR_AT: Final = 9  # of a HeartbeatResponse v4: correlation id, tags, throttle time, then the code


class Group:
    """Who of a group is synced in which generation; `wait_settled` ends when all share one."""

    def __init__(self, group_id: str, size: int) -> None:
        self.group_id = group_id
        self.size = size
        self._synced: dict[Member, int] = {}
        self._is_resolved = asyncio.Event()

    def resize(self, size: int) -> None:
        """As many members are expected from now on."""
        self.size = size
        self._observe()

    def synced(self, member: Member, generation: int) -> None:
        """A member has its assignment."""
        self._synced[member] = generation
        self._observe()

    def unsynced(self, member: Member) -> None:
        """A member must rejoin, or has left."""
        self._synced.pop(member, None)
        self._observe()

    def _observe(self) -> None:
        if len(self._synced) == self.size and len(set(self._synced.values())) == 1:
            self._is_resolved.set()
        else:
            self._is_resolved.clear()

    async def wait_stable(self, timeout_s: float = 120.0) -> None:
        """Until every member is synced in one generation. Raises MeasureFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_resolved.wait()
        except TimeoutError:
            raise MeasureFailed(f"{len(self._synced)} of {self.size} members synced in {timeout_s:g} s") from None


class Member(ClassicMember):
    """One member on its own connection to the coordinator."""

    session_timeout_ms = 45_000

    def __init__(self, group: Group, wire: Wire, heartbeat_interval_s: float) -> None:
        self.group, self.group_id = group, group.group_id
        self.wire = wire
        self._interval_s = heartbeat_interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Live in a task of its own."""
        self._task = asyncio.create_task(self._live())
        return self._task

    async def _live(self) -> None:
        while True:
            joined = await self._join()
            if joined is None or not await self._sync(joined):
                continue
            self.group.synced(self, self.generation)
            await self._heartbeat()
            self.group.unsynced(self)

    async def _join(self) -> Any | None:
        joined = await self.wire.ask(self.join_request(), 120.0)
        if joined.error_code is ErrorCode.member_id_required:
            self.member_id = joined.member_id
            return None
        if joined.error_code in _AGAIN:
            await asyncio.sleep(0.02)
            return None
        if joined.error_code is not ErrorCode.none:
            raise MeasureFailed(f"JoinGroup: {joined.error_code.name}")
        self.follow_join(joined)
        return joined

    async def _sync(self, joined: Any) -> bool:
        plan = {member.member_id: ASSIGNMENT for member in joined.members}
        synced = await self.wire.ask(self.sync_request(plan), 120.0)
        if synced.error_code in _AGAIN:
            return False
        if synced.error_code is not ErrorCode.none:
            raise MeasureFailed(f"SyncGroup: {synced.error_code.name}")
        if synced.assignment != ASSIGNMENT:
            raise MeasureFailed("SyncGroup gave another assignment than the leader's")
        return True

    def heartbeat_frame(self) -> bytes:
        """A heartbeat of the present generation, ready to be sent."""
        return encode(self.heartbeat_request())

    async def _heartbeat(self) -> None:
        """Until a heartbeat says that the group rebalances. Not in step; the timer runs from the send."""
        frame, loop = self.heartbeat_frame(), asyncio.get_running_loop()
        await asyncio.sleep(self._interval_s * random.random())
        while True:
            sent_s = loop.time()
            payload = await self.wire.send(frame)
            (code,) = struct.unpack_from(">h", payload, _ERROR_AT)
            if code == ErrorCode.rebalance_in_progress.value:
                return
            if code:
                raise MeasureFailed(f"Heartbeat: {ErrorCode(code).name}")
            await asyncio.sleep(max(sent_s + self._interval_s - loop.time(), 0))

    async def stop(self, leave: bool = False) -> None:
        """End its task and, where asked, leave the group; the connection is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.group.unsynced(self)
        if leave:
            await self.wire.ask(self.leave_request("measured"))
        self.wire.close()

    async def stabilize_alone(self) -> None:
        """Join and sync once, without heartbeats."""
        while True:
            joined = await self._join()
            if joined is not None and await self._sync(joined):
                return
