"""The records of `__consumer_offsets`: what groups have committed, and the groups; a classic one once it is at rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.groups.directory import metadata_of
from tidegate.groups.group_index import decode_name, group_of
from tidegate.groups.model import GroupState
from tidegate.groups.offsets import UNSTABLE_FIELD, split_field
from tidegate.monitoring.internal_topics.members import consumer_values, share_values
from tidegate.monitoring.internal_topics.publisher import Values
from tidegate.records import group_records
from tidegate.store.calls import gather_readable
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.outcome import FaultyKeys
from tidegate.store.slices import in_order
from tidegate.store.store import Store
from tidegate.topics.names import CONSUMER_OFFSETS

_HEAD: Final = ("state", "version", "protocol_type", "protocol", "generation", "leader", "state_since")
_OFFSETS_AT_ONCE: Final = 500
"""Committed offsets whose records are made without a pause: some ms."""


class GroupRecords:
    """Reads groups and their commits from the keys of their shards."""

    topic = CONSUMER_OFFSETS
    configs: Final = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}

    def __init__(self, store: Store) -> None:
        self._store = store

    async def owners(self) -> tuple[Sequence[str], Mapping[str, FaultyKeys]]:
        """All groups, and the indices of shards that cannot be read. Raises StoreUnavailable."""
        indices = [self._store.shard_keys(shard).groups for shard in range(self._store.settings.coordinator_shards)]
        found, faulty = await gather_readable({key: self._store.command("HKEYS", key) for key in indices})
        return [decode_name(name) for names in found.values() for name in names], faulty

    async def values_of(self, owner: str) -> Values:
        """The records of a group and its committed offsets, as they are now. Raises StoreUnavailable."""
        keys = group_of(self._store, owner)
        kind, offsets = await read_in_order(
            self._store, self._store.command, ("HGET", keys.group, "type"), ("HGETALL", keys.offsets)
        )
        values: Values = {}
        async for name in in_order(offsets, _OFFSETS_AT_ONCE):  # Redis gives large hashes in any order
            text = name.decode()
            if text != UNSTABLE_FIELD:
                values[group_records.offset_key(keys.group_id, *split_field(text))] = _offset_value(offsets[name])
        of_kind = {b"classic": _classic_values, b"consumer": consumer_values, b"share": share_values}.get(kind)
        return values if of_kind is None else values | await of_kind(self._store, keys)


async def _classic_values(store: Store, keys: GroupKeys) -> Values:
    """A classic group; as it was while it rebalances. Groups that only commit have no record."""
    head: list[Any] = ["HMGET", keys.group, *_HEAD]
    before, members, subscriptions, assignments, after = await read_in_order(
        store, store.command,
        head, ("HGETALL", keys.members), ("HGETALL", keys.subscriptions), ("HGETALL", keys.assignments), head,
    )  # fmt: skip
    about = dict(zip(_HEAD, ((value or b"").decode() for value in before), strict=True))
    if not about["protocol_type"]:
        return {}
    whole = before == after and about["state"] in (GroupState.EMPTY, GroupState.STABLE)
    value = _group_value(about, members, subscriptions, assignments) if whole else None
    return {group_records.group_key(keys.group_id): value}


def _offset_value(stored: bytes) -> bytes:
    entry = json.loads(stored)
    return group_records.offset_value(entry["offset"], entry["leader_epoch"], entry["metadata"], entry["commit_time"])


def _group_value(
    about: dict[str, str],
    members: dict[bytes, bytes],
    subscriptions: dict[bytes, bytes],
    assignments: dict[bytes, bytes],
) -> bytes:
    protocol, listed = about["protocol"], []
    for member_id, stored in sorted(members.items()):
        record = json.loads(stored)
        listed.append(
            group_records.MemberValue(
                member_id.decode(), record.get("instance_id") or None, record["client_id"], record["client_host"],
                int(record["rebalance_timeout_ms"]), int(record["session_timeout_ms"]),
                metadata_of(subscriptions.get(member_id, b""), protocol), assignments.get(member_id, b""),
            )
        )  # fmt: skip
    return group_records.group_value(
        about["protocol_type"],
        int(about["generation"] or 0),
        protocol if listed else None,
        (about["leader"] or None) if listed else None,
        int(about["state_since"] or 0),
        listed,
    )
