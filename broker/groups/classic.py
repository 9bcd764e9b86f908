"""Classic consumer groups (KIP-62 and after): join, sync, leave. The rules are in the scripts, the waits in `waiting`.

A join or sync enters once, by one script; where it is parked, `GroupWaits` tells when its wait is over, and the
answer is read from the store by whichever broker holds the connection then.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import structlog

from broker.errors import InvalidSessionTimeout, StoreUnavailable, from_code
from broker.groups.directory import metadata_of
from broker.groups.identity import candidate
from broker.groups.model import (
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
from broker.groups.settled import forgive, group_script_args, group_script_keys
from broker.groups.waiters import AGAIN, Again, Look, Opened
from broker.groups.waiting import GroupWaits, Watch
from broker.store.keys import GroupKeys
from broker.store.link import Arg
from broker.store.scripts import Script
from broker.store.store import Store

JOIN_GROUP = Script("groups/join_group")
SYNC_GROUP = Script("groups/sync_group")
LEAVE_GROUP = Script("groups/leave_group")
NOTE_SUBSCRIBED = Script("groups/note_subscribed")

logger = structlog.get_logger()

REASON_LENGTH_MAX: Final = 255
_READS_MAX: Final = 10
_INSTANCE: Final = re.compile(rb'"instance_id":("(?:[^"\\]|\\.)*")')


async def join(store: Store, waits: GroupWaits, keys: GroupKeys, request: JoinRequest) -> Joined:
    """Join a group, or join it again, and wait for the others. Raises JoinRefused, StoreUnavailable."""
    settings = store.settings
    if not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms:
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
    """Enter, wait, read the answer; or the member id with which to enter once more."""
    reply = await _enter(store, waits, JOIN_GROUP, keys, _join_args(store, keys, request))
    member_id: str = reply[1].decode()
    if reply[0] != 0:
        raise JoinRefused(from_code(reply[0]), member_id)
    if reply[2] == b"now":
        generation, leader, protocol_type, protocol, listed, skip = reply[3:9]
        opened = Opened(generation, protocol_type.decode(), protocol.decode(), leader.decode())
        return await _answer(store, keys, member_id, opened, bool(listed), bool(skip))
    generation, phase, due_ms = reply[3:6]
    look = Look.behind(reply)
    outcome: Opened | Again
    if look is not None and look.generation > generation:  # this join was the last that the phase waited for
        outcome = Opened(look.generation, look.protocol_type, look.protocol, look.leader)
    else:
        outcome = await watch.joined(member_id, request.instance_id, generation, phase, due_ms)
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
    settings = store.settings
    return [
        request.candidate_id,
        request.member_id,
        request.instance_id or "",
        request.token,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        max(request.rebalance_timeout_ms, 0),
        request.protocol_type,
        pack_protocols(request.protocols),
        int(request.id_required),
        int(request.static_leader_list),
        settings.group_initial_rebalance_delay_ms,
        settings.group_new_member_join_timeout_ms,
        settings.group_park_lease_ms,
        settings.group_max_size,
        "" if request.member_id else candidate(keys),  # only a new member makes a group
        request.reason[:REASON_LENGTH_MAX],
    ]


async def read_members(
    store: Store, keys: GroupKeys, generation: int, protocol: str
) -> tuple[JoinedMember, ...] | None:
    """The members of a generation with their metadata of a protocol, read plain; None once the group has moved on."""
    head = ("HMGET", keys.group, "generation", "state", "version")
    for _ in range(_READS_MAX):
        before, records, subscriptions, after = await asyncio.gather(
            store.read(*head),
            store.read("HGETALL", keys.members),
            store.read("HGETALL", keys.subscriptions),
            store.read(*head),
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


async def sync(store: Store, waits: GroupWaits, keys: GroupKeys, request: SyncRequest) -> Synced:
    """Hand in the leader's assignments, or wait for one's own.

    Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol, RebalanceInProgress,
    StoreUnavailable.
    """
    membership = request.membership
    while True:
        with waits.watch(keys) as watch:
            reply = await _enter(store, waits, SYNC_GROUP, keys, _sync_args(store, request))
            if reply[0] != 0:
                raise from_code(reply[0])
            if reply[1] == b"now":
                return Synced(reply[2], reply[3].decode(), reply[4].decode())
            synced = await watch.synced(
                membership.member_id, membership.instance_id, membership.generation, due_ms=reply[2]
            )
        if synced is not AGAIN:
            assert isinstance(synced, Synced)
            return synced


def _sync_args(store: Store, request: SyncRequest) -> list[Arg]:
    membership = request.membership
    args: list[Arg] = [
        membership.member_id,
        membership.instance_id or "",
        membership.generation,
        "" if request.protocol_type is None else f"={request.protocol_type}",
        "" if request.protocol is None else f"={request.protocol}",
        store.settings.group_park_lease_ms,
    ]
    for member_id, assignment in request.assignments:
        args += [member_id, assignment]
    return args


async def leave(
    store: Store,
    keys: GroupKeys,
    leaving: Sequence[Leaving],
    broker: str = "",
    *,
    client_id: str = "",
    client_host: str = "",
) -> list[int]:
    """Members go, each with its own code: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID. Raises StoreUnavailable.

    Who asks, if not the member itself, removes it: the events tell one from the other.
    """
    args: list[Arg] = [client_id, client_host]
    for member in leaving:
        args += [member.member_id, member.instance_id or "", member.reason[:REASON_LENGTH_MAX]]
    codes: list[int] = (await _ask(store, broker, LEAVE_GROUP, keys, args))[1:]
    return codes


def note_subscribed(store: Store, keys: GroupKeys, generation: int, topics: Collection[str] | None) -> None:
    """Note the topics that a generation's members subscribe to; None: they cannot be told.

    Nobody waits for it: until it is noted every topic is protected, and a later generation notes its own.
    """
    noted = "" if topics is None else json.dumps(sorted(topics), separators=(",", ":"))

    def answered(reply: Any) -> None:
        if isinstance(reply, Exception):
            logger.warning("subscription_not_noted", group=keys.ref, reason=str(reply))

    store.send_script(NOTE_SUBSCRIBED, [keys.group], [generation, noted], answered)


async def _enter(store: Store, waits: GroupWaits, script: Script, keys: GroupKeys, args: Sequence[Arg]) -> list[Any]:
    """Run a join or a sync; once more where the answer was lost, for the script knows its arguments again.

    Where it ended the wait of others, those of this broker hear it at once. Raises StoreUnavailable.
    """

    def see(reply: list[Any]) -> None:
        look = Look.behind(reply)
        if look is not None:
            waits.saw(keys, look)

    try:
        return await _ask(store, waits.broker(), script, keys, args, see)
    except StoreUnavailable:
        await store.control.wait_up(store.settings.redis_command_timeout_ms / 1000)
        return await _ask(store, waits.broker(), script, keys, args, see)


async def _ask(
    store: Store,
    broker: str,
    script: Script,
    keys: GroupKeys,
    args: Sequence[Arg],
    see: Callable[[list[Any]], None] | None = None,
) -> list[Any]:
    """Run a script that changes the group, and return its reply with the code; `see` has it first.

    Raises StoreUnavailable.
    """
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def answered(reply: Any) -> None:
        if see is not None and not isinstance(reply, Exception):
            see(reply)
        if future.done():
            return
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    forgive(store, keys)
    store.send_script(script, group_script_keys(keys), [*group_script_args(store, keys, broker), *args], answered)
    return await future
