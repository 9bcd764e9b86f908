"""JoinGroup, SyncGroup and Heartbeat of classic members of a group that has members of KIP-848 too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from tidegate.apis.call import Call
from tidegate.apis.record_groups import note_consumer_owner
from tidegate.errors import (
    CoordinatorLoadInProgress,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
)
from tidegate.groups import classic
from tidegate.groups.consumer.classic_members import ClassicCall, ClassicJoin
from tidegate.groups.consumer.conversion import MigrationPolicy, by_name
from tidegate.groups.consumer.decisions import Decided
from tidegate.groups.consumer.errors import OTHER_TYPE, OtherGroupType
from tidegate.groups.consumer.model import JOIN_EPOCH, ClassicMember, HeartbeatRequest
from tidegate.groups.heartbeats import OnCode
from tidegate.groups.model import Joined, JoinRefused, JoinRequest, MemberRef, Synced, SyncRequest
from tidegate.protocol.consumer_blobs import read_subscription, write_assignment
from tidegate.store.keys import GroupKeys

_CONSUMER: Final = "consumer"
_NONE: Final = 0
_TRIES_MAX: Final = 5
"""How often a request may find its group changed to the other protocol before it is answered with a retriable code."""


Answer = TypeVar("Answer")


async def _by_either(
    as_consumers: Callable[[], Awaitable[Answer]], as_classic: Callable[[], Awaitable[Answer]]
) -> Answer | None:
    """The answer of the type that the group has; None if it was of the other type at every try."""
    for _ in range(_TRIES_MAX):
        for ask in (as_consumers, as_classic):
            with suppress(OtherGroupType):
                return await ask()
    return None


async def join(call: Call, keys: GroupKeys, request: JoinRequest) -> Joined:
    """Join a group that was found to be of the other type. Raises JoinRefused, StoreUnavailable."""
    joined = await _by_either(
        lambda: _join_consumers(call, keys, request),
        lambda: classic.join(call.store, call.context.waits, keys, request),
    )
    if joined is None:
        raise JoinRefused(CoordinatorLoadInProgress(), request.member_id)
    return joined


async def _join_consumers(call: Call, keys: GroupKeys, request: JoinRequest) -> Joined:
    if MigrationPolicy(call.context.settings.group_consumer_migration_policy) is MigrationPolicy.DISABLED:
        raise JoinRefused(InconsistentGroupProtocol(), request.member_id)
    read = read_subscription(request.protocols[0][1]) if request.protocols else None
    if read is None or request.protocol_type != _CONSUMER:
        raise JoinRefused(InconsistentGroupProtocol(), request.member_id)
    topics, owned, rack_id = read
    member_id = request.member_id or request.candidate_id
    asked = HeartbeatRequest(
        member_id,
        JOIN_EPOCH,
        request.instance_id,
        rack_id,
        max(request.rebalance_timeout_ms, 0),
        topics,
        "",
        None,
        None,
        request.client_id,
        request.client_host,
        request.client_software,
        ClassicMember(request.session_timeout_ms, tuple(request.protocols)),
    )
    join = ClassicJoin(asked, not request.member_id, request.id_required, request.protocol_type, owned)
    try:
        joined = await call.context.consumers.groups.run(keys, join, call)
    except OtherGroupType:
        raise
    except MemberIdRequired as error:
        raise JoinRefused(error, member_id) from None
    except KafkaError as error:
        raise JoinRefused(error, request.member_id) from None
    return Joined(joined.member_id, joined.member_epoch, _CONSUMER, joined.protocol, "")


async def sync(call: Call, keys: GroupKeys, request: SyncRequest) -> Synced:
    """Sync with a group that was found to be of the other type. Raises the errors of `classic.sync`."""
    synced = await _by_either(
        lambda: _sync_consumers(call, keys, request), lambda: classic.sync(call.context.waits, keys, request)
    )
    if synced is None:
        raise RebalanceInProgress
    return synced


async def _sync_consumers(call: Call, keys: GroupKeys, request: SyncRequest) -> Synced:
    """The member's assignment, which the server made: what the request brings is ignored."""
    who = request.member_ref
    asked = ClassicCall(who.member_id, who.generation, who.instance_id, True, request.protocol_type, request.protocol)
    groups = call.context.consumers.groups
    try:
        synced = await groups.run(keys, asked, call)
    except CoordinatorLoadInProgress:
        raise RebalanceInProgress from None  # as Kafka: clients do not expect the other code here
    if synced.assignment and call.context.catalog.record_topics:
        await note_consumer_owner(call, keys, who.member_id, synced.assignment)
    assigned = by_name(synced.assignment or (), groups.topics.view(keys.org))
    return Synced(write_assignment(assigned), _CONSUMER, synced.protocol)


def heartbeat(call: Call, keys: GroupKeys, who: MemberRef, on_code: OnCode) -> None:
    """Answer a heartbeat that found a group of the other type."""

    def repeated(code: int) -> None:
        on_code(CoordinatorLoadInProgress.code.value if code == OTHER_TYPE else code)

    def decided(answer: Decided) -> None:
        if isinstance(answer, OtherGroupType):
            call.context.heartbeats.add(keys, who, repeated)
        else:
            on_code(answer.code.value if isinstance(answer, KafkaError) else _NONE)

    asked = ClassicCall(who.member_id, who.generation, who.instance_id)
    call.context.consumers.groups.submit(keys, asked, decided, call)
