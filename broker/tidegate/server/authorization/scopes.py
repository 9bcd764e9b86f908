"""What the right to a frequent request depends on, besides the client, the rules and the topics: its scope.

A client produces to, fetches from and commits for the same topics all the time. A request of a scope that was allowed
is not judged again until rules or topics change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
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
    if len(topics) > NAMES_MAX:
        return None
    return request.group_id, tuple([topic.name or topic.topic_id for topic in topics])


def _offset_fetch(request: Any) -> Hashable:
    """Of one group and named topics: the answer to "all topics" is filtered."""
    if len(request.groups) != 1 or request.groups[0].topics is None or len(request.groups[0].topics) > NAMES_MAX:
        return None
    group = request.groups[0]
    return group.group_id, tuple([topic.name or topic.topic_id for topic in group.topics])


def _fetch(request: Any) -> Hashable:
    """Of a session only its topics that are new; a change of rules ends it, so it is not in the scope."""
    topics = request.topics
    if len(topics) > NAMES_MAX:
        return None
    return request.session_epoch > 0, tuple([topic.topic or topic.topic_id for topic in topics])


def _heartbeat(request: Any) -> Hashable:
    group_id: str = request.group_id
    return group_id


SCOPES: Final[dict[int, Callable[[Any], Hashable]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.HEARTBEAT: _heartbeat,
}
"""API key -> its scope; None: judge the request."""
