"""Administrative offset reset: one script removes the members if requested, and writes the offsets.

Later requests under the removed members' ids are refused. Some clients (aiokafka with auto-commit) drop their id when
they are removed, and commit their old position without an id before they rejoin. An empty group accepts such commits,
so they are refused for a while, or until a member joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.groups.commits import WITHOUT_LEASE, lease_end_ms
from tidegate.groups.expire_and_retry import extend_sessions_after_outage, group_script_args, group_script_keys
from tidegate.groups.identity import candidate
from tidegate.groups.offsets import entry_json, offset_field
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

RESET_OFFSETS = Script("groups/reset_offsets")

COMMITS_FENCED_MS: Final = 10_000
"""Clients learn of their removal at their next heartbeat, after 3 s by default."""
_FENCE_REASON: Final = "fenced: its group's offsets are reset"
_UNKNOWN_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """The new committed offset of a partition; `offset` None deletes it."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    metadata: str = ""

    @property
    def entry(self) -> str:
        """Its JSON without the commit time and the closing brace; "" to delete."""
        if self.offset is None:
            return ""
        return entry_json(self.offset, _UNKNOWN_EPOCH, self.topic_id, self.metadata)


async def reset_offsets(
    store: Store,
    keys: GroupKeys,
    moves: Sequence[OffsetMove],
    *,
    fence: bool,
    broker: str = "",
    client_id: str = "",
    client_host: str = "",
    lease_ends_ms: int = WITHOUT_LEASE,
) -> int:
    """Move offsets, all or none; returns the number of members removed, which `fence` permits.

    `lease_ends_ms` is by Redis's clock. Creates a group that does not exist. Raises NonEmptyGroup, StoreUnavailable,
    CoordinatorNotAvailable if the lease has ended.
    """
    args: list[Arg] = [client_id, client_host, _FENCE_REASON if fence else "", COMMITS_FENCED_MS, candidate(keys)]
    args.append(lease_end_ms(store, keys.group, lambda: lease_ends_ms))
    for move in moves:
        args += (offset_field(move.topic, move.partition), move.entry)
    extend_sessions_after_outage(store, keys)
    key_names = [*group_script_keys(keys), keys.offsets]
    (removed,) = await store.run(RESET_OFFSETS, key_names, *group_script_args(store, keys, broker), *args)
    store.changed_groups.add(keys.ref)
    return int(removed)
