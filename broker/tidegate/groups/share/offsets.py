"""Administration of share groups: their share-partitions, start offsets, and deletion (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound
from tidegate.groups.commits import WITHOUT_LEASE, lease_end_ms
from tidegate.groups.expire_and_retry import BrokerName
from tidegate.groups.group_index import group_of, read_group_kinds
from tidegate.groups.identity import candidate
from tidegate.groups.model import GROUP_EVENTS_MAX
from tidegate.groups.share.coordinator import ShareGroups
from tidegate.groups.share.partitions import partitions_of
from tidegate.groups.share.sessions import SharePartition
from tidegate.groups.share.stored import TYPE
from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

DELETE_SHARE_GROUP = Script("share/delete_group")
REMOVE_PARTITIONS = Script("share/remove_partitions")
ALTER_OFFSETS = Script("share/alter_offsets")

_TRIES_MAX: Final = 5
_GROUPS_AT_ONCE: Final = 200
_PARTITIONS_AT_ONCE: Final = 500
_FORGET: Final = "share-partitions-of-deleted-topic"


async def is_share_group(store: Store, keys: GroupKeys) -> bool:
    """Whether there is a share group of that id. Raises StoreUnavailable."""
    kind: bytes | None = await store.command("HGET", keys.group, "type")
    return kind == TYPE.encode()


def _keys_of(keys: GroupKeys, partitions: Sequence[SharePartition]) -> list[str]:
    return [name for one in partitions for name in keys.share(one.topic_id.hex, one.index)]


async def delete_group(store: Store, groups: ShareGroups, keys: GroupKeys, broker: BrokerName) -> None:
    """Delete a share group without members; of many share-partitions they are removed first, in parts.

    A group that gets a member between two parts stays, with those that were not removed yet. Raises GroupIdNotFound,
    NonEmptyGroup, StoreUnavailable.
    """
    await groups.expire(keys)
    shard = keys.shard_keys
    for _ in range(_TRIES_MAX):
        partitions = list(await partitions_of(store, keys))
        if len(partitions) > _PARTITIONS_AT_ONCE:
            await remove_partitions(store, keys, partitions, must_be_empty=True)
            partitions = []  # the script finds those that were added since
        names = [keys.group, keys.targets, keys.shares, shard.groups, shard.deadlines, shard.events]
        names += _keys_of(keys, partitions)
        args: list[Arg] = [keys.ref, GROUP_EVENTS_MAX, broker(), *(one.name for one in partitions)]
        (is_deleted,) = await store.run(DELETE_SHARE_GROUP, names, *args)
        if is_deleted:
            return
    raise CoordinatorLoadInProgress("the group changes faster than it can be deleted")


def _without_lease() -> int:
    return WITHOUT_LEASE


async def remove_partitions(
    store: Store,
    keys: GroupKeys,
    partitions: Sequence[SharePartition],
    *,
    must_be_empty: bool,
    lease_ends_ms: Callable[[], int] = _without_lease,
) -> None:
    """Remove share-partitions. `lease_ends_ms` is called before each script; what it raises ends the work.

    Raises GroupIdNotFound, NonEmptyGroup if it must be empty, StoreUnavailable, CoordinatorNotAvailable if the lease
    has ended.
    """
    for at in range(0, max(len(partitions), 1), _PARTITIONS_AT_ONCE):
        part = partitions[at : at + _PARTITIONS_AT_ONCE]
        names = [keys.group, keys.shares, *_keys_of(keys, part)]
        ends_ms = lease_end_ms(store, keys.group, lease_ends_ms)
        await store.run(REMOVE_PARTITIONS, names, int(must_be_empty), ends_ms, *(one.name for one in part))


async def alter_offsets(
    store: Store,
    keys: GroupKeys,
    offsets: Mapping[SharePartition, tuple[str, int]],
    lease_ends_ms: Callable[[], int] = _without_lease,
) -> None:
    """Set start offsets: share-partition -> topic name, offset; not all at once.

    `lease_ends_ms` as for `remove_partitions`. Raises GroupIdNotFound, NonEmptyGroup, StoreUnavailable,
    CoordinatorNotAvailable if the lease has ended.
    """
    partitions = list(offsets)
    for at in range(0, max(len(partitions), 1), _PARTITIONS_AT_ONCE):
        part = partitions[at : at + _PARTITIONS_AT_ONCE]
        names = [keys.group, keys.shares, keys.shard_keys.groups, *_keys_of(keys, part)]
        args: list[Arg] = [keys.ref, candidate(keys), lease_end_ms(store, keys.group, lease_ends_ms)]
        for partition in part:
            topic, offset = offsets[partition]
            args += (partition.name, topic, str(offset))
        await store.run(ALTER_OFFSETS, names, *args)


async def forget_topic(store: Store, org: str, topic_id: UUID, partition_count: int) -> None:
    """Remove the share-partitions of a deleted topic from every group. Raises StoreUnavailable; safe to repeat.

    A group with a key that cannot be read keeps them: they are named by the topic's id.
    """
    partitions = [SharePartition(topic_id, index) for index in range(partition_count)]
    for shard in range(store.settings.coordinator_shards):
        listed = await read_group_kinds(store, shard, _FORGET)
        groups = [group_of(store, name) for name, kind in listed.items() if kind.startswith(b"share ")]
        ours = [keys for keys in groups if keys.org == org]
        for at in range(0, len(ours), _GROUPS_AT_ONCE):
            part = ours[at : at + _GROUPS_AT_ONCE]
            _, faulty = await gather_readable({keys.ref: _forget(store, keys, partitions) for keys in part})
            log_faulty(_FORGET, faulty)


async def _forget(store: Store, keys: GroupKeys, partitions: Sequence[SharePartition]) -> None:
    try:
        await remove_partitions(store, keys, partitions, must_be_empty=False)
    except GroupIdNotFound:
        return
