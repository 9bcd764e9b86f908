"""What the right to a frequent request depends on, besides the client, the rules and the topics: its scope.

A client produces to, fetches from and commits for the same topics all the time. A request of a scope that was allowed
is not judged again until rules or topics change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter, itemgetter
from typing import Any, Final

from tidegate.protocol.api_keys import ApiKey

NAMES_MAX: Final = 100
"""Requests with more topics or keys are judged each time."""
_SOME: Final = slice(NAMES_MAX + 1)
"""Of more topics so many are compared, which no scope that is remembered has."""
_name: Final = attrgetter("name")
_fetched_name: Final = attrgetter("topic")
_label: Final = attrgetter("name", "topic_id")
_fetched_label: Final = attrgetter("topic", "topic_id")
"""Versions before topic ids have names alone: AttributeError then, which is cheaper than to look first."""
_produced_name: Final = itemgetter(0)


def _produce(request: Any) -> Hashable:
    return request.transactional_id, tuple(map(_produced_name, request.topics[_SOME]))


def _commit(request: Any) -> Hashable:
    topics = request.topics[_SOME]
    try:
        return request.group_id, tuple(map(_label, topics))
    except AttributeError:
        return request.group_id, tuple(map(_name, topics))


def _offset_fetch(request: Any) -> Hashable:
    """Of one group and named topics: the answer to "all topics" is filtered."""
    groups = request.groups
    if len(groups) != 1:
        return None
    group = groups[0]
    topics = group.topics
    if topics is None:
        return None
    try:
        return group.group_id, tuple(map(_label, topics[_SOME]))
    except AttributeError:
        return group.group_id, tuple(map(_name, topics[_SOME]))


def _fetch(request: Any) -> Hashable:
    """Of a session only its topics that are new; a change of rules ends it, so it is not in the scope."""
    topics = request.topics[_SOME]
    try:
        return request.session_epoch > 0, tuple(map(_fetched_label, topics))
    except AttributeError:
        return request.session_epoch > 0, tuple(map(_fetched_name, topics))


_group: Final = attrgetter("group_id")


def _epoch_heartbeat(request: Any) -> Hashable:
    """The topics of a subscription come with its changes only."""
    group_id, names = request.group_id, request.subscribed_topic_names
    return None if names is not None and len(names) > NAMES_MAX else (group_id, names)


def _find_coordinator(request: Any) -> Hashable:
    keys = request.coordinator_keys
    return None if len(keys) > NAMES_MAX else (request.key_type, keys)


SCOPES: Final[dict[int, Callable[[Any], Hashable]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.HEARTBEAT: _group,
    ApiKey.JOIN_GROUP: _group,
    ApiKey.SYNC_GROUP: _group,
    ApiKey.LEAVE_GROUP: _group,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _epoch_heartbeat,
    ApiKey.SHARE_GROUP_HEARTBEAT: _epoch_heartbeat,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
}
"""API key -> its scope; None: judge the request. That of Metadata is its `Question`."""
