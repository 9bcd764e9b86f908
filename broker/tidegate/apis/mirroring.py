"""Reports to the group mirrors: records delivered, offsets committed, assignments stored, groups deleted.

Each report follows the decision on the client's answer and never fails the request. Without a mirror it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from tidegate.apis.call import BrokerContext, Call, Client
from tidegate.apis.equal_fetches import connection_of
from tidegate.apis.fetch_sessions import Wanted
from tidegate.apis.leader_assignments import assigned_owners
from tidegate.groups.model import Synced, SyncRequest
from tidegate.groups.offsets import committed_partitions
from tidegate.log.mirror import Mirror, quietly
from tidegate.store.keys import GroupKeys
from tidegate.topics.model import Topic

logger = structlog.get_logger()

_CONSUMER: Final = "consumer"


def note_fetched(call: Call, reported: Iterable[Wanted]) -> None:
    """Report the partitions whose records a client received, or whose end it has reached."""
    if call.context.mirror is None:
        return
    try:
        _note_fetched(call.context.mirror, call, reported)
    except Exception:  # the answer is not sent yet
        logger.exception("fetch_not_mirrored")


def _note_fetched(mirror: Mirror, call: Call, reported: Iterable[Wanted]) -> None:
    connection = connection_of(call)
    for wanted in reported:
        log, result = wanted.log, wanted.result
        if log is None or result is None or result.error_code or result.diverging is not None:
            continue
        if result.size:
            mirror.fetched(log.topic, wanted.index, connection, wanted.offset, wanted.end_offset, wanted.bases)
        else:
            mirror.fetched(log.topic, wanted.index, connection, wanted.offset, wanted.offset, ())


def follow(mirror: Mirror | None, client: Client) -> None:
    """Note that a connection fetches, until it is closed."""
    if mirror is not None:
        mirror.connections.add(client.connection_id)
        client.when_closed(partial(mirror.connections.discard, client.connection_id))


def note_assigned(call: Call, keys: GroupKeys, request: SyncRequest, synced: Synced) -> None:
    """A leader's assignments are stored: report each partition's owner, in a task."""
    mirror = call.context.mirror
    if mirror is not None and request.assignments and synced.protocol_type == _CONSUMER:
        mirror.tasks.start(quietly(_own(call, mirror, keys, request)))


async def _own(call: Call, mirror: Mirror, keys: GroupKeys, request: SyncRequest) -> None:
    await mirror.own(keys.group_id, await assigned_owners(call, keys, request, _is_mirrored))


def _is_mirrored(topic: Topic) -> bool:
    return topic.config.mirror


async def mirrors_of(call: Call, keys: GroupKeys) -> Callable[[], None]:
    """A function that removes a group's mirrors, in a task, after its deletion: where the group has committed offsets.

    Other mirrors are removed when their partitions' owners are read next. Raises StoreUnavailable.
    """
    if call.context.mirror is None:
        return lambda: None
    own_id, partitions = await committed_partitions(call.store, keys)
    return lambda: forget_mirrors(call.context, keys, own_id, partitions)


def forget_mirrors(context: BrokerContext, keys: GroupKeys, own_id: str, partitions: Sequence[tuple[str, int]]) -> None:
    """Remove a deleted group's mirrors on these partitions, in a task."""
    if context.mirror is not None:
        found = [(context.catalog.get(keys.org, name), index) for name, index in partitions]
        known = [(topic, index) for topic, index in found if topic is not None]
        context.mirror.tasks.start(quietly(context.mirror.forget(keys.group_id, own_id, known)))
