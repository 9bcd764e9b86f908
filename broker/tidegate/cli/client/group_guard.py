"""A temporary group member without topics: keeps a group non-empty until its fenced members have rejoined."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client import group_operations, group_requests
from tidegate.cli.client.group_requests import Commit, Identities, Place
from tidegate.cli.client.kafka_client import KafkaClient, raise_for
from tidegate.cli.client.kafka_wire import Connection
from tidegate.cli.failures import CommandFailed
from tidegate.protocol.api_keys import ApiKey

_TRIES: Final = 20
_CHECKS_MAX: Final = 100
_CHECK_INTERVAL_S: Final = 0.1
"""100 checks take ten seconds: clients detect a fence at their next heartbeat, 3 s by default."""
_FENCE_REASON: Final = "fenced: its group's offsets are reset"
_GUARD_REASON: Final = "the offsets are reset"

Codes = dict[Place, ErrorCode]


@dataclass(slots=True)
class Guard:
    """Guards one described group; as a context manager it leaves the group on exit. Methods raise CommandFailed."""

    kafka: KafkaClient
    group: Any
    removed: list[Any] = field(default_factory=list)
    """Members that the guard has fenced."""
    _own: Sequence[Any] = ()
    _connection: Connection | None = None

    async def fence_and_move(self, offsets: Mapping[Place, Commit], forgotten: Iterable[Place]) -> Codes:
        """Pipeline the requests that remove all members, move the offsets and join; returns codes by partition.

        The group is empty in between: with Apache Kafka, which waits for its log after each request, for tens of
        milliseconds, on a busy machine for seconds. If another member joins meanwhile, the commit is refused.
        """
        group_id = self.group.group_id
        connection = await self._open()
        left, committed, deleted = await connection.ask_all(
            (ApiKey.LEAVE_GROUP, group_requests.leave(group_id, identities(self.group.members), _FENCE_REASON)),
            (ApiKey.OFFSET_COMMIT, group_requests.commit(group_id, offsets)),
            (ApiKey.OFFSET_DELETE, group_requests.delete_offsets(group_id, forgotten)),
            (ApiKey.JOIN_GROUP, group_requests.join(self.group)),
            answers=3,
        )
        self.removed += self.group.members
        raise_for(left.error_code, f"group {group_id}")
        raise_for(deleted.error_code, f"group {group_id}")
        return {**group_requests.codes_of_partitions(committed), **group_requests.codes_of_partitions(deleted)}

    async def move_as_member(self, offsets: Mapping[Place, Commit], forgotten: Iterable[Place]) -> Codes:
        """Join, remove all other members, and move the offsets as the only member; returns codes by partition.

        The group is never empty, so no commit without a generation is accepted at any time; and no other member gets
        partitions before the guard leaves. The group's events do not record a member's commits.
        """
        connection, group_id = await self._open(), self.group.group_id
        joined = await self._lead(connection)
        member = {"group_id": group_id, "generation_id": joined.generation_id, "member_id": joined.member_id}
        _, committed, deleted = await connection.ask_all(
            (ApiKey.SYNC_GROUP, {**member, "group_instance_id": None, "assignments": ()}),
            (ApiKey.OFFSET_COMMIT, group_requests.commit(group_id, offsets, joined.generation_id, joined.member_id)),
            (ApiKey.OFFSET_DELETE, group_requests.delete_offsets(group_id, forgotten)),
        )
        raise_for(deleted.error_code, f"group {group_id}")
        return {**group_requests.codes_of_partitions(committed), **group_requests.codes_of_partitions(deleted)}

    async def wait(self) -> None:
        """Wait until another member has joined, or until the time-out.

        Others may join before the guard does. If the guard then left without having joined, their rebalance would wait
        for it.
        """
        for _ in range(_CHECKS_MAX):
            self._own, others = await self._members()
            if self._own and others:
                return
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def __aenter__(self) -> Guard:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._own:
                await group_operations.leave(self.kafka, self.group.group_id, identities(self._own), _GUARD_REASON)
        finally:
            if self._connection is not None:
                await self._connection.close()

    async def _lead(self, connection: Connection) -> Any:
        """The JoinGroup response that makes the guard the only member of a generation.

        With other members in the generation the guard, as leader, would need their assignor to assign partitions.
        """
        joining = asyncio.ensure_future(self._join(connection, ""))
        try:
            own: list[Any] = []
            while not own and not joining.done():  # the JoinGroup is answered once the others were removed
                own, _ = await self._members()
                await asyncio.sleep(_CHECK_INTERVAL_S / 10)
            for _ in range(_TRIES):
                await self._remove_others()
                joined = await joining
                accepted = joined.error_code is ErrorCode.none
                if accepted and [member.member_id for member in joined.members] == [joined.member_id]:
                    return joined
                joining = asyncio.ensure_future(self._join(connection, joined.member_id if accepted else ""))
        finally:
            joining.cancel()
        raise CommandFailed(f"group {self.group.group_id}: new members join as fast as they are removed")

    async def _join(self, connection: Connection, member_id: str) -> Any:
        return await connection.ask(ApiKey.JOIN_GROUP, **group_requests.join(self.group, member_id))

    async def _remove_others(self) -> None:
        _, others = await self._members()
        if others:
            await group_operations.leave(self.kafka, self.group.group_id, identities(others), _FENCE_REASON)
            self.removed += others

    async def _members(self) -> tuple[list[Any], list[Any]]:
        """The guard's own members, and all others."""
        members = (await group_operations.describe(self.kafka, self.group.group_id)).members
        own = [member for member in members if member.client_id == self.kafka.client_id]
        return own, [member for member in members if member not in own]

    async def _open(self) -> Connection:
        self._connection = await self.kafka.connection_for(self.group.group_id)
        return self._connection


def identities(members: Sequence[Any]) -> Identities:
    """Members as LeaveGroup identifies them."""
    return [(member.member_id, member.group_instance_id) for member in members]
