"""Rights on topics that a handler checks itself: those of topics that the request does not name."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.apis.call import Call
from tidegate.apis.slices import in_slices
from tidegate.security.acls import Operation, ResourceType
from tidegate.security.authorizer import Requester


def may_create(call: Call, topic: str) -> bool:
    """Whether the call's client may create a topic: a right on the topic, or on the cluster."""
    if may(call, Operation.CREATE, topic):
        return True
    security = call.context.security
    if security is None or security.authorizer is None:
        return True
    requester = Requester(call.client.principal, call.client.host, call.org)
    return security.authorizer.allows(requester, Operation.CREATE, ResourceType.CLUSTER)


async def may_all(call: Call, operation: Operation, topics: Iterable[str]) -> bool:
    """Whether the call's client may do something with each of the topics; other work goes on in between."""
    security = call.context.security
    if security is None or security.authorizer is None:
        return True
    async for topic in in_slices(topics):
        if not may(call, operation, topic):
            return False
    return True


def may(call: Call, operation: Operation, topic: str) -> bool:
    """Whether the call's client may do something with a topic; it may if there are no access rules."""
    security = call.context.security
    authorizer = None if security is None else security.authorizer
    if authorizer is None or authorizer.is_super_user(call.client.principal):
        return True
    requester = Requester(call.client.principal, call.client.host, call.org)
    return authorizer.allows(requester, operation, ResourceType.TOPIC, topic)
