"""What is removed from answers because the client may not see it, and the operations that it may do (KIP-430)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.protocol.api_keys import ApiKey
from tidegate.security.acls import Operation, ResourceType
from tidegate.server.authorization.access import Access


@dataclass(frozen=True, slots=True)
class Filter:
    """`needed`: whether the answer to a request may have to change; `apply` returns it without what is hidden."""

    needed: Callable[[Access, Any], bool]
    apply: Callable[[Access, Any, Any], Any]


def _visible_groups(access: Access, request: Any, response: Any) -> Any:
    groups = tuple(group for group in response.groups if access.group(Operation.DESCRIBE, group.group_id))
    return dataclasses.replace(response, groups=groups)


def _visible_transactions(access: Access, request: Any, response: Any) -> Any:
    states = tuple(
        one for one in response.transaction_states if access.transactional_id(Operation.DESCRIBE, one.transactional_id)
    )
    return dataclasses.replace(response, transaction_states=states)


def _visible_offsets(access: Access, request: Any, response: Any) -> Any:
    """Remove the offsets of topics without DESCRIBE from "all topics"."""

    def without(holder: Any) -> Any:
        topics = tuple(
            topic
            for topic in holder.topics
            if (name := access.name_of(topic)) is None or access.topic(Operation.DESCRIBE, name)
        )
        return dataclasses.replace(holder, topics=topics)

    if not hasattr(response, "groups"):
        return without(response)
    return dataclasses.replace(response, groups=tuple(map(without, response.groups)))


def _topic_operations(access: Access, request: Any, response: Any) -> Any:
    """The operations that this client may do (KIP-430)."""
    values: dict[str, Any] = {}
    if request.include_topic_authorized_operations:
        values["topics"] = tuple(
            dataclasses.replace(topic, topic_authorized_operations=access.operations(ResourceType.TOPIC, topic.name))
            if topic.name and topic.error_code is not ErrorCode.topic_authorization_failed
            else topic
            for topic in response.topics
        )
    if getattr(request, "include_cluster_authorized_operations", False) and hasattr(
        response, "cluster_authorized_operations"
    ):
        values["cluster_authorized_operations"] = access.cluster_operations()
    return dataclasses.replace(response, **values)


def _partition_operations(access: Access, request: Any, response: Any) -> Any:
    """The same for DescribeTopicPartitions, which always has them."""
    topics = tuple(
        dataclasses.replace(topic, topic_authorized_operations=access.operations(ResourceType.TOPIC, topic.name))
        if topic.error_code is not ErrorCode.topic_authorization_failed
        else topic
        for topic in response.topics
    )
    return dataclasses.replace(response, topics=topics)


def _group_operations(access: Access, request: Any, response: Any) -> Any:
    groups = tuple(
        dataclasses.replace(group, authorized_operations=access.operations(ResourceType.GROUP, group.group_id))
        if group.error_code is ErrorCode.none
        else group
        for group in response.groups
    )
    return dataclasses.replace(response, groups=groups)


def _cluster_operations(access: Access, request: Any, response: Any) -> Any:
    return dataclasses.replace(response, cluster_authorized_operations=access.cluster_operations())


def _created_configs(access: Access, request: Any, response: Any) -> Any:
    """A created topic's configs and sizes, in the answer from version 5 on, need DESCRIBE_CONFIGS (KIP-525)."""
    topics = tuple(
        topic
        if topic.error_code is not ErrorCode.none or access.topic(Operation.DESCRIBE_CONFIGS, topic.name)
        else dataclasses.replace(
            topic,
            topic_config_error_code=ErrorCode.topic_authorization_failed,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
        for topic in response.topics
    )
    return dataclasses.replace(response, topics=topics)


FILTERS: Final[dict[int, Filter]] = {
    ApiKey.LIST_GROUPS: Filter(lambda access, request: not access.cluster(Operation.DESCRIBE), _visible_groups),
    ApiKey.LIST_TRANSACTIONS: Filter(lambda access, request: True, _visible_transactions),
    ApiKey.OFFSET_FETCH: Filter(
        lambda access, request: any(one.topics is None for one in request.groups), _visible_offsets
    ),
    ApiKey.METADATA: Filter(
        lambda access, request: (
            request.include_topic_authorized_operations
            or getattr(request, "include_cluster_authorized_operations", False)
        ),
        _topic_operations,
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Filter(lambda access, request: True, _partition_operations),
    ApiKey.CREATE_TOPICS: Filter(lambda access, request: request.__version__ >= 5, _created_configs),
    ApiKey.DESCRIBE_GROUPS: Filter(lambda access, request: request.include_authorized_operations, _group_operations),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Filter(
        lambda access, request: request.include_authorized_operations, _group_operations
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Filter(
        lambda access, request: request.include_authorized_operations, _group_operations
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: Filter(
        lambda access, request: request.include_authorized_operations, _group_operations
    ),
    ApiKey.DESCRIBE_CLUSTER: Filter(
        lambda access, request: request.include_cluster_authorized_operations, _cluster_operations
    ),
}
"""API key -> its filter."""
