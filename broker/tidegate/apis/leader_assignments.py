"""The assignments in a leader's SyncGroup: by member, as text for the group's event, and by partition.

A leader may name members, topics and partitions that do not exist, and each repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from tidegate.apis.call import Call
from tidegate.apis.slices import SLICE, in_slices
from tidegate.groups import classic
from tidegate.groups.clients import Clients, read_clients
from tidegate.groups.model import SyncRequest
from tidegate.log.offload import DECODED
from tidegate.log.owners import Owner
from tidegate.protocol.consumer_blobs import assigned_partitions, owners_text
from tidegate.store.keys import GroupKeys
from tidegate.topics.model import Topic

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequestAssignment

P = ParamSpec("P")
R = TypeVar("R")

Assignments = Sequence[tuple[str, bytes]]
"""Member ids, each once, and the leader's bytes for them."""
Owned = tuple[Topic, int, Owner]

_INLINE_BYTES: Final = 16 << 10
"""Assignments that are decoded on the event loop: a ms. Larger ones are decoded in a thread."""
_BYTES: Final = itemgetter(1)


async def read_assignments(given: Sequence[SyncGroupRequestAssignment]) -> Assignments:
    """The last assignment of each member, as in Kafka. Raises KafkaError beyond the limits of a group."""
    if len(given) <= SLICE:
        by_member = {one.member_id: one.assignment for one in given}
    else:
        by_member = {one.member_id: one.assignment async for one in in_slices(given)}
    assignments = list(by_member.items())
    classic.check_assignments(assignments)
    return assignments


async def describe_owners(assignments: Assignments) -> str:
    """`owners_text` of these assignments."""
    return await _decode(assignments, owners_text, assignments)


async def assigned_owners(
    call: Call, keys: GroupKeys, request: SyncRequest, concerns: Callable[[Topic], bool]
) -> list[Owned]:
    """The partitions of such topics that exist and are assigned, each once, with the members that will own them.

    None unless the group is in this generation with this leader. Raises StoreUnavailable.
    """
    member = request.member_ref
    found = await read_clients(call.store, keys, member.generation, member.member_id)
    if found is None:
        return []
    owned, are_known = await _decode(request.assignments, _owned, call, found, request, concerns)
    if not are_known:
        await call.context.catalog.refresh()
        owned, _ = await _decode(request.assignments, _owned, call, found, request, concerns)
    return owned


def _owned(
    call: Call, found: Clients, request: SyncRequest, concerns: Callable[[Topic], bool]
) -> tuple[list[Owned], bool]:
    """The same from the cached topics, and whether all topics are cached; for any thread."""
    owned: dict[tuple[str, int], Owned] = {}
    are_known = True
    for member_id, assignment in request.assignments:
        client = found.clients.get(member_id)
        if client is None:
            continue
        owner = Owner(found.own_id, request.member_ref.generation, member_id, *client)
        for name, indexes in (assigned_partitions(assignment) or {}).items():
            topic = call.context.catalog.get(call.org, name)
            if topic is None:
                are_known = False
            elif concerns(topic):
                existing = (index for index in indexes if 0 <= index < topic.partition_count)
                owned |= {(topic.topic_hex, index): (topic, index, owner) for index in existing}
    return list(owned.values()), are_known


async def _decode(assignments: Assignments, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of work on assignments; in a thread if they are large."""
    if len(assignments) <= SLICE and sum(map(len, map(_BYTES, assignments))) <= _INLINE_BYTES:
        return work(*args, **kwargs)
    return await DECODED.run(work, *args, **kwargs)
