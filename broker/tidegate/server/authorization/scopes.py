"""What the right to a frequent request depends on, besides the client, the rules and the topics: its scope.

A client produces to, fetches from and commits for the same topics all the time. A request of a scope that was allowed
is not judged again until rules or topics change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Final

from tidegate.protocol.api_keys import ApiKey

NAMES_MAX: Final = 100
"""Requests with more topics are judged each time."""


def _produce(request: Any) -> Hashable:
    topics = request.topics
    if len(topics) == 1:
        return request.transactional_id, topics[0][0]
    if len(topics) > NAMES_MAX:
        return None
    return request.transactional_id, tuple([name for name, _ in topics])


def _commit(request: Any) -> Hashable:
    topics = request.topics
    if len(topics) == 1:
        return request.group_id, topics[0].name or topics[0].topic_id
    if len(topics) > NAMES_MAX:
        return None
    return request.group_id, tuple([topic.name or topic.topic_id for topic in topics])


def _offset_fetch(request: Any) -> Hashable:
    """Of one group and named topics: the answer to "all topics" is filtered."""
    groups = request.groups
    if len(groups) != 1:
        return None
    group = groups[0]
    topics = group.topics
    if topics is None or len(topics) > NAMES_MAX:
        return None
    if len(topics) == 1:
        return group.group_id, topics[0].name or topics[0].topic_id
    return group.group_id, tuple([topic.name or topic.topic_id for topic in topics])


def _fetch(request: Any) -> Hashable:
    """Of a session only its topics that are new; a change of rules ends it, so it is not in the scope."""
    topics = request.topics
    if len(topics) > NAMES_MAX:
        return None
    return request.session_epoch > 0, tuple([topic.topic or topic.topic_id for topic in topics])


_group: Final = attrgetter("group_id")


def _epoch_heartbeat(request: Any) -> Hashable:
    """The topics of a subscription come with its changes only."""
    group_id, names = request.group_id, request.subscribed_topic_names
    return None if names is not None and len(names) > NAMES_MAX else (group_id, names)


def _find_coordinator(request: Any) -> Hashable:
    keys = request.coordinator_keys
    return None if len(keys) > NAMES_MAX else (request.key_type, keys)


def _metadata(request: Any) -> Hashable:
    """Operations depend on the rules; `allow_auto_topic_creation` asks for more rights; no topics are all in v0."""
    if request.include_topic_authorized_operations or getattr(request, "include_cluster_authorized_operations", False):
        return None
    topics = request.topics
    if topics is None:
        return True
    if len(topics) == 1:
        return request.allow_auto_topic_creation, topics[0].name or topics[0].topic_id
    if not topics or len(topics) > NAMES_MAX:
        return None
    return request.allow_auto_topic_creation, tuple([topic.name or topic.topic_id for topic in topics])


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
    ApiKey.METADATA: _metadata,
}
"""API key -> its scope; None: judge the request."""
