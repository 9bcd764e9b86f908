"""Classic consumer groups (KIP-62 and later): JoinGroup, SyncGroup, LeaveGroup.

The rules are in the Lua scripts, the waiting is in `waiting`. One script enters a join or a sync. A parked request
waits in `GroupWaits`; when its wait ends, the broker that holds the connection reads the answer from the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, Final

import structlog

from tidegate.errors import InvalidRequest, InvalidSessionTimeout, KafkaError, from_code
from tidegate.groups.commits import UNKNOWN_TIME, WITHOUT_LEASE, lease_end_ms
from tidegate.groups.consumer.errors import OTHER_TYPE, OtherGroupType
from tidegate.groups.directory import metadata_of
from tidegate.groups.expire_and_retry import extend_sessions_after_outage, group_script_args, group_script_keys
from tidegate.groups.identity import candidate
from tidegate.groups.model import (
    GroupState,
    Joined,
    JoinedMember,
    JoinRefused,
    JoinRequest,
    Leaving,
    Synced,
    SyncRequest,
    pack_protocols,
)
from tidegate.groups.waiters import AGAIN, Again, Opened
from tidegate.groups.waiting import GroupWaits, Watch
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import Store

LEAVE_GROUP = Script("groups/leave_group")
NOTE_SUBSCRIBED = Script("groups/note_subscribed")

logger = structlog.get_logger()

REASON_LENGTH_MAX: Final = 255
SOFTWARE_LENGTH_MAX: Final = 100
_ASSIGNED: Final = itemgetter(1)
ASSIGNMENTS_BYTES_MAX: Final = 8 << 20
"""Largest sum of a leader's assignments: as much as the metadata of a group's members."""
ASSIGNED_MAX: Final = 100_000
"""Most members that a leader may assign to; far above the size of a group that can rebalance."""
SESSION_TIMEOUT_MAX_MS: Final = 1_800_000
"""Longest session timeout that a member may request: Kafka's default of `group.max.session.timeout.ms`."""
LEAVING_AT_ONCE: Final = 200
"""Members that one script removes: 50 to 100 us of Redis for each."""
PROTOCOLS_MAX: Final = 100
"""Protocols that a join may offer: each is counted in the group. Clients offer up to 5."""
MEMBER_METADATA_BYTES_MAX: Final = 1 << 20
"""Names and metadata of all protocols of one member. Kafka limits a whole group to this size (one record)."""
_READS_MAX: Final = 10
_INSTANCE: Final = re.compile(rb'"instance_id":("(?:[^"\\]|\\.)*")')


async def join(store: Store, waits: GroupWaits, keys: GroupKeys, request: JoinRequest) -> Joined:
    """Join or rejoin a group and wait for the end of the join phase.

    Raises JoinRefused, OtherGroupType (a KIP-848 group), StoreUnavailable.
    """
    shortest_ms = store.settings.group_min_session_timeout_ms
    if not shortest_ms <= request.session_timeout_ms <= SESSION_TIMEOUT_MAX_MS:
        raise JoinRefused(InvalidSessionTimeout(), request.member_id)
    while True:
        with waits.watch(keys) as watch:
            joined = await _join_once(store, waits, watch, keys, request)
        if isinstance(joined, Joined):
            return joined
        request = request.again(joined)


async def _join_once(
    store: Store, waits: GroupWaits, watch: Watch, keys: GroupKeys, request: JoinRequest
) -> Joined | str:
    """Enter the group once; returns the answer, or the member id with which to enter again."""
    entered = await waits.joins.submit(keys, _join_args(store, keys, request))
    code, raw_id, *reply = entered.answer
    member_id: str = raw_id.decode()
    if code == OTHER_TYPE:
        raise OtherGroupType("the group has members of KIP-848")
    if code != 0:
        raise JoinRefused(from_code(code), member_id)
    if reply[0] == b"now":
        generation, leader, protocol_type, protocol, listed, skip = reply[1:]
        opened = Opened(generation, protocol_type.decode(), protocol.decode(), leader.decode())
        return await _answer(store, keys, member_id, opened, bool(listed), bool(skip))
    generation, phase = reply[1:]
    status = entered.status
    outcome: Opened | Again
    if status is not None and status.generation > generation:  # this join completed the join phase
        outcome = Opened(status.generation, status.protocol_type, status.protocol, status.leader)
    else:
        outcome = await watch.joined(member_id, request.instance_id, generation, phase, entered.due_ms)
    if isinstance(outcome, Again):
        return member_id
    return await _answer(store, keys, member_id, outcome, outcome.leader == member_id, False)


async def _answer(
    store: Store, keys: GroupKeys, member_id: str, opened: Opened, listed: bool, skip: bool
) -> Joined | str:
    members: tuple[JoinedMember, ...] = ()
    if listed:
        found = await read_members(store, keys, opened.generation, opened.protocol)
        if found is None:
            return member_id
        members = found
    return Joined(member_id, opened.generation, opened.protocol_type, opened.protocol, opened.leader, members, skip)


def _join_args(store: Store, keys: GroupKeys, request: JoinRequest) -> list[Arg]:
    if len(request.protocols) > PROTOCOLS_MAX:
        raise JoinRefused(InvalidRequest(f"the member offers more than {PROTOCOLS_MAX} protocols"), request.member_id)
    protocols = pack_protocols(request.protocols)
    if len(protocols) > MEMBER_METADATA_BYTES_MAX:
        raise JoinRefused(InvalidRequest("the metadata of the member is too large"), request.member_id)
    clock = store.clock if store.cluster is None else store.node(keys.group).clock
    arrived_ms = int((request.arrived_s + clock.offset_s) * 1000) if clock.is_known else UNKNOWN_TIME
    timeouts = f"{request.session_timeout_ms} {max(request.rebalance_timeout_ms, 0)}"
    return [
        "" if request.member_id else request.candidate_id,
        request.member_id,
        request.instance_id or "",
        request.token,
        request.client_id,
        request.client_host,
        request.protocol_type,
        protocols,
        "" if request.member_id else candidate(keys),  # only a new member can create a group
        request.reason[:REASON_LENGTH_MAX],
        request.client_software[:SOFTWARE_LENGTH_MAX],
        f"{timeouts} {request.id_required:d} {request.static_leader_list:d} {arrived_ms}",
    ]


async def read_members(
    store: Store, keys: GroupKeys, generation: int, protocol: str
) -> tuple[JoinedMember, ...] | None:
    """Read the members of a generation with their metadata for one protocol; None if the generation ended."""
    head = ("HMGET", keys.group, "generation", "state", "version")
    for _ in range(_READS_MAX):
        before, records, subscriptions, after = await read_in_order(
            store, store.read, head, ("HGETALL", keys.members), ("HGETALL", keys.subscriptions), head
        )
        if int(after[0] or 0) != generation or after[1].decode() == GroupState.PREPARING:
            return None
        if before == after:
            return tuple(
                JoinedMember(
                    member_id.decode(), _instance_of(record), metadata_of(subscriptions.get(member_id, b""), protocol)
                )
                for member_id, record in records.items()
            )
    return None


def _instance_of(record: bytes) -> str | None:
    found = _INSTANCE.search(record)
    return (json.loads(found.group(1)) or None) if found else None


async def sync(waits: GroupWaits, keys: GroupKeys, request: SyncRequest) -> Synced:
    """Store the leader's assignments, or wait for the member's own assignment.

    Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol, RebalanceInProgress,
    OtherGroupType (a KIP-848 group), StoreUnavailable.
    """
    member_ref = request.member_ref
    if request.assignments:
        check_assignments(request.assignments)
    while True:
        with waits.watch(keys) as watch:
            entered = await waits.syncs.submit(keys, _sync_args(request), _assignments(request))
            code, *reply = entered.answer
            if code == OTHER_TYPE:
                raise OtherGroupType("the group has members of KIP-848")
            if code != 0:
                raise from_code(code)
            if reply[0] == b"now":
                return Synced(reply[1], reply[2].decode(), reply[3].decode())
            synced = await watch.synced(
                member_ref.member_id, member_ref.instance_id, member_ref.generation, entered.due_ms
            )
        if synced is not AGAIN:
            assert isinstance(synced, Synced)
            return synced


def check_assignments(assignments: Sequence[tuple[str, bytes]]) -> None:
    """Raises KafkaError with UNKNOWN_SERVER_ERROR, as Kafka where a group exceeds the largest record."""
    if len(assignments) > ASSIGNED_MAX:
        raise KafkaError(f"the leader assigns to more than {ASSIGNED_MAX} members")
    if sum(map(len, map(_ASSIGNED, assignments))) > ASSIGNMENTS_BYTES_MAX:
        raise KafkaError(f"the leader's assignments have more than {ASSIGNMENTS_BYTES_MAX} bytes")


def _sync_args(request: SyncRequest) -> list[Arg]:
    member_ref = request.member_ref
    return [
        member_ref.member_id,
        member_ref.instance_id or "",
        member_ref.generation,
        "" if request.protocol_type is None else f"={request.protocol_type}",
        "" if request.protocol is None else f"={request.protocol}",
    ]


def _assignments(request: SyncRequest) -> list[Arg]:
    if not request.assignments:
        return []
    return [request.owners, *(value for assigned in request.assignments for value in assigned)]


async def leave(
    store: Store,
    keys: GroupKeys,
    leaving: Sequence[Leaving],
    broker: str = "",
    *,
    client_id: str = "",
    client_host: str = "",
    lease_ends_ms: int = WITHOUT_LEASE,
) -> list[int]:
    """Remove members, many in parts; each gets its own code: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.

    The first part starts the rebalance, which waits for the members that the next parts remove.
    The events distinguish a member that leaves from one that an administrator removes. `lease_ends_ms` is by Redis's
    clock. Raises StoreUnavailable, CoordinatorNotAvailable if the lease has ended.
    """
    codes: list[int] = []
    for at in range(0, max(len(leaving), 1), LEAVING_AT_ONCE):
        args: list[Arg] = [client_id, client_host, lease_end_ms(store, keys.group, lambda: lease_ends_ms)]
        for member in leaving[at : at + LEAVING_AT_ONCE]:
            args += (member.member_id, member.instance_id or "", member.reason[:REASON_LENGTH_MAX])
        extend_sessions_after_outage(store, keys)
        codes += await store.run(LEAVE_GROUP, group_script_keys(keys), *group_script_args(store, keys, broker), *args)
    return codes


def note_subscribed(store: Store, keys: GroupKeys, generation: int, topics: Collection[str] | None) -> None:
    """Record the topics that a generation's members subscribe to; None if a subscription cannot be decoded.

    The write is not awaited. Until it is done, every topic counts as subscribed; a later generation writes its own
    list.
    """
    noted = "" if topics is None else json.dumps(sorted(topics), separators=(",", ":"))

    def answered(reply: Any) -> None:
        if isinstance(reply, Failure):
            logger.warning("subscription_not_noted", group=keys.ref, reason=reply.text)

    store.send_script(NOTE_SUBSCRIBED, [keys.group], [generation, noted], answered)
