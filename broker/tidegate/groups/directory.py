"""Administration of groups: list, describe, delete. These operations renew no session."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Final
from urllib.parse import unquote

from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound
from tidegate.groups.commits import WITHOUT_LEASE, lease_end_ms
from tidegate.groups.expire_and_retry import extend_sessions_after_outage, group_script_args, group_script_keys
from tidegate.groups.expiry import expire_group
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.slices import slices
from tidegate.store.store import Store

DELETE_GROUP = Script("groups/delete_group")

_ATTEMPTS_MAX: Final = 10
_AT_ONCE: Final = 100
"""Listed groups that are parsed, or put in order, without a pause: 0.5 ms."""
DESCRIBED_AT_ONCE: Final = 200
"""Members that are described without a pause: 2 ms."""
_GROUP_ID: Final = attrgetter("group_id")
_HEAD: Final = ("type", "state", "generation", "version", "protocol_type", "protocol")


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group of a list; `protocol_type` is "" for a group that only stores offsets."""

    group_id: str
    type: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """One member; `metadata` is its bytes for the selected protocol, empty while none is selected."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A consistent snapshot of a group; `protocol` is "" unless the group is Stable. Pending members are left out."""

    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


def matches(group: ListedGroup, states: Set[str], types: Set[str]) -> bool:
    """Whether a group matches filters in lower case; an empty one matches all."""
    if states and group.state.lower() not in states:
        return False
    return not types or group.type.lower() in types


async def list_groups(store: Store, org: str, shards: Iterable[int]) -> list[ListedGroup]:
    """List an organisation's groups in some shards, in every state, ordered by id, with pauses between some of them.

    Raises StoreUnavailable.
    """

    def parse(name: bytes, values: Sequence[bytes]) -> ListedGroup | None:
        owner, _, encoded = name.decode().partition("/")
        kind, state, protocol_type = values[0].decode().split(" ", 2)
        return ListedGroup(unquote(encoded), kind, state, protocol_type) if owner == org else None

    indexes = [store.shard_keys(shard).groups for shard in shards]
    replies = await asyncio.gather(*(store.command("HGETALL", index) for index in indexes))
    ordered: list[list[ListedGroup]] = []
    for index, reply in zip(indexes, replies, strict=True):
        async for part in slices(reply.items(), _AT_ONCE):
            entries = ((name, [value]) for name, value in part)
            ordered.append(sorted(store.foreign_entries.leave_out(index, entries, parse), key=_GROUP_ID))
        if reply:
            await asyncio.sleep(0)
    return await _merged(ordered)


async def _merged(ordered: Iterable[list[ListedGroup]]) -> list[ListedGroup]:
    found: list[ListedGroup] = []
    for group in merge(*ordered, key=_GROUP_ID):
        found.append(group)
        if len(found) % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


async def describe(store: Store, keys: GroupKeys, broker: str) -> DescribedGroup:
    """Expire what is overdue, then read a group and its members without a script; retry if the group changed meanwhile.

    `broker` is the broker name in the events that the expiry writes. Raises GroupIdNotFound (also for a group of
    another type), StoreUnavailable, and CoordinatorLoadInProgress if the group changes during every retry.
    """
    await expire_group(store, keys, broker)
    head_command: list[Arg] = ["HMGET", keys.group, *_HEAD]
    for _ in range(_ATTEMPTS_MAX):
        before, members, subscriptions, assignments, after = await read_in_order(
            store, store.command,
            head_command,
            ("HGETALL", keys.members), ("HGETALL", keys.subscriptions), ("HGETALL", keys.assignments),
            head_command,
        )  # fmt: skip
        if before == after:
            return await _snapshot(before, members, subscriptions, assignments)
    raise CoordinatorLoadInProgress("the group changes faster than it can be read")


async def delete_group(store: Store, keys: GroupKeys, broker: str, lease_ends_ms: int = WITHOUT_LEASE) -> None:
    """Delete an empty group and its offsets. `lease_ends_ms` is by Redis's clock.

    Raises GroupIdNotFound, NonEmptyGroup, StoreUnavailable, CoordinatorNotAvailable if the lease has ended.
    """
    extend_sessions_after_outage(store, keys)
    key_names = [*group_script_keys(keys), keys.offsets, keys.staged]
    ends_ms = lease_end_ms(store, keys.group, lambda: lease_ends_ms)
    await store.run(DELETE_GROUP, key_names, *group_script_args(store, keys, broker), ends_ms)


def metadata_of(packed: bytes, protocol: str) -> bytes:
    """A member's metadata for one protocol, from its packed list of names and metadata; b"" if the list lacks it."""
    wanted, position = protocol.encode(), 0
    while position < len(packed):
        (name_size,) = struct.unpack_from(">H", packed, position)
        name = packed[position + 2 : position + 2 + name_size]
        (size,) = struct.unpack_from(">I", packed, position + 2 + name_size)
        start = position + 6 + name_size
        if name == wanted:
            return packed[start : start + size]
        position = start + size
    return b""


async def _snapshot(
    head: Sequence[bytes | None],
    members: Mapping[bytes, bytes],
    subscriptions: Mapping[bytes, bytes],
    assignments: Mapping[bytes, bytes],
) -> DescribedGroup:
    kind, state, _, _, protocol_type, protocol = (b"" if value is None else value for value in head)
    if kind != b"classic":
        raise GroupIdNotFound
    chosen = protocol.decode() if state == b"Stable" else ""
    described: list[DescribedMember] = []
    async for part in slices(sorted(members), DESCRIBED_AT_ONCE):
        for member_id in part:
            record = json.loads(members[member_id])
            metadata = metadata_of(subscriptions.get(member_id, b""), chosen) if chosen else b""
            described.append(
                DescribedMember(
                    member_id.decode(),
                    record.get("instance_id") or None,
                    record["client_id"],
                    record["client_host"],
                    metadata,
                    assignments.get(member_id, b""),
                )
            )
    return DescribedGroup(state.decode(), protocol_type.decode(), chosen, tuple(described))
