"""Classic consumer groups as values: states, requests and answers. docs/redis-layout.md describes what is stored."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from time import perf_counter
from typing import Final, NamedTuple
from uuid import uuid4

from tidegate.errors import KafkaError

GROUP_EVENTS_MAX: Final = 10_000
"""Events that are kept for each shard of groups, about."""
_NAME_LENGTH_MAX: Final = 255


class GroupState(enum.StrEnum):
    """A group's state. A group that does not exist answers like an empty one."""

    EMPTY = "Empty"
    """No members; offsets and the generation remain.

    Join: a new member is parked, and the first phase waits for further members (KIP-134).
    Sync, Heartbeat: UNKNOWN_MEMBER_ID. Commit: only without a generation.
    Ends by: a member added -> PreparingRebalance; deletion.
    """
    PREPARING = "PreparingRebalance"
    """The join phase: the group waits until all members have rejoined or the join deadline passes.

    Join: parked. Sync, Heartbeat: REBALANCE_IN_PROGRESS (the heartbeat renews the session). Commit: accepted.
    Ends by: all joined or the join deadline -> CompletingRebalance, or Empty if no member is left; generation + 1.
    """
    COMPLETING = "CompletingRebalance"
    """A generation is open and its leader computes the assignment.

    Join: answered at once if nothing changed, else a new phase. Sync: parked; the leader's sync ends the state.
    Heartbeat: NONE. Commit: REBALANCE_IN_PROGRESS.
    Ends by: the leader's sync -> Stable; any change of members, the sync deadline -> PreparingRebalance.
    """
    STABLE = "Stable"
    """Every member can read its assignment.

    Join: answered at once for a follower that changed nothing, else a new phase. Sync: the stored assignment.
    Heartbeat: NONE. Commit: accepted.
    Ends by: any change of members, the leader joining again, the sync deadline of members that never synced
    -> PreparingRebalance.
    """


class MemberRef(NamedTuple):
    """The identity that a member claims: its id, its generation, and its instance id if it is static."""

    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(slots=True)
class JoinRequest:
    """One JoinGroup. The candidate id and the token make a repeat idempotent. Not frozen: that costs 4 us a join."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    """Name and metadata, in order of preference."""
    id_required: bool = True
    """A new dynamic member must rejoin with the id that it is given (KIP-394, v4)."""
    static_leader_list: bool = True
    """A restarted static leader is answered as leader, with skip_assignment (KIP-814, v9)."""
    reason: str = ""
    client_software: str = ""
    """Name and version (KIP-511), as far as the client sent them."""
    token: str = field(default_factory=lambda: token_hex(8))
    suffix: str = ""
    arrived_s: float = field(default_factory=perf_counter)
    """When the request came, by `perf_counter`."""

    def __post_init__(self) -> None:
        if not self.member_id and not self.suffix:  # only a new member needs a new member id
            self.suffix = str(uuid4())

    @property
    def candidate_id(self) -> str:
        """The id for a member that this join creates: `<instance or client id>-<uuid>`.

        Longer names are truncated: a name may have 32 kB, and the id is repeated in every reference to the member.
        """
        return f"{(self.instance_id or self.client_id)[:_NAME_LENGTH_MAX]}-{self.suffix}"

    def again(self, member_id: str) -> JoinRequest:
        """The same join, repeated under the member id that it has by now: it waited in the group, and is not late."""
        return replace(self, member_id=member_id, token=token_hex(8), arrived_s=perf_counter())


class JoinedMember(NamedTuple):
    """One member of the list that the leader gets; `metadata` is for the selected protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """A successful join. `members` is empty for all but the leader."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class JoinRefused(Exception):
    """A failed join: the error, and the member id that its answer carries."""

    def __init__(self, error: KafkaError, member_id: str) -> None:
        super().__init__(error.code.name)
        self.error = error
        self.member_id = member_id


class SyncRequest(NamedTuple):
    """One SyncGroup. Protocol type and protocol are None where the version has none (before v5)."""

    member_ref: MemberRef
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()
    owners: str = ""
    """Partition owners as text for the event (docs/explain.md); "" if they are unknown."""


class Synced(NamedTuple):
    """A successful sync: the member's assignment as the leader wrote it, b"" if the leader left it out."""

    assignment: bytes
    protocol_type: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """One member that leaves. Without a member id, the current member of the instance is removed."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


def pack_protocols(protocols: Sequence[tuple[str, bytes]]) -> bytes:
    """The stored form: uint16 length, name, uint32 length, metadata, one protocol after the other."""
    parts = []
    for name, metadata in protocols:
        encoded = name.encode()
        parts += [struct.pack(">H", len(encoded)), encoded, struct.pack(">I", len(metadata)), metadata]
    return b"".join(parts)


def unpack_protocols(packed: bytes) -> tuple[tuple[str, bytes], ...]:
    """Names and metadata from the stored form."""
    protocols, position = [], 0
    while position < len(packed):
        (name_size,) = struct.unpack_from(">H", packed, position)
        start = position + 6 + name_size
        (size,) = struct.unpack_from(">I", packed, start - 4)
        protocols.append((packed[position + 2 : start - 4].decode(), packed[start : start + size]))
        position = start + size
    return tuple(protocols)
