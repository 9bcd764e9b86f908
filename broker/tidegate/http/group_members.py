"""The members of groups of all types, for changes by operators."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.apis.call import BrokerContext
from tidegate.errors import GroupIdNotFound
from tidegate.groups import directory
from tidegate.groups.consumer import stored as consumer_stored
from tidegate.groups.share import stored as share_stored
from tidegate.groups.streams import stored as streams_stored
from tidegate.store.keys import GroupKeys


@dataclass(frozen=True, slots=True)
class OneMember:
    """A member as operators see it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str


async def type_of(context: BrokerContext, keys: GroupKeys) -> str:
    """The type of a group, "" if there is none. Raises StoreUnavailable."""
    return (await context.store.command("HGET", keys.group, "type") or b"").decode()


async def members_of(context: BrokerContext, keys: GroupKeys) -> list[OneMember] | None:
    """The members of a group of any type; None if there is none. Raises StoreUnavailable."""
    kind = await type_of(context, keys)
    if kind == share_stored.TYPE:
        sharers = (await context.shares.groups.read(keys)).members.values()
        return [OneMember(one.member_id, None, one.client_id, one.client_host) for one in sharers]
    if kind == consumer_stored.TYPE:
        consumers = (await context.consumers.groups.read(keys)).members.values()
        return [OneMember(one.member_id, one.instance_id, one.client_id, one.client_host) for one in consumers]
    if kind == streams_stored.TYPE:
        threads = (await context.streams.read(keys)).members.values()
        return [OneMember(one.member_id, one.instance_id, one.client_id, one.client_host) for one in threads]
    try:
        described = await directory.describe(context.store, keys, str(context.broker_lease.node_id))
    except GroupIdNotFound:
        return None
    return [OneMember(one.member_id, one.instance_id, one.client_id, one.client_host) for one in described.members]
