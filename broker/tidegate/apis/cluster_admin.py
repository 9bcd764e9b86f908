"""DescribeQuorum, UpdateFeatures, ListConfigResources: the cluster as tools of Kafka's controller see it.

Redis decides what Kafka's controllers agree on by their quorum, and each broker reads it there. So every live broker is
a voter that is caught up, and the broker that answers is the leader, as it is the controller in Metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.describe_quorum.v2.response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.response import ConfigResource, ListConfigResourcesResponse
from kio.static.primitive import i8

from tidegate.apis.call import Call
from tidegate.apis.metadata import encoded_of
from tidegate.apis.registry import api
from tidegate.apis.slices import Slices, in_slices
from tidegate.cluster import resource_configs
from tidegate.cluster.errors import InvalidUpdateVersion
from tidegate.cluster.features import FINALIZED, SUPPORTED
from tidegate.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition, UnsupportedVersion
from tidegate.groups.configs import configured_groups
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.security.identity import DEFAULT_ORG
from tidegate.topics.names import METADATA_TOPIC

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Kinds of resources that have configs (`ConfigResource.Type`)."""


# -- DescribeQuorum


@api(
    ApiKey.DESCRIBE_QUORUM,
    first=0,
    last=2,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=at_top(topics=(), nodes=()),
)
async def describe_quorum(call: Call, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """The live brokers as voters without lag (KIP-595). v1: times of replicas. v2: their listeners (KIP-853)."""
    listener, now_ms = call.client.listener, call.store.clock.now_ms()
    brokers = call.context.broker_lease.shown(listener)
    voters = tuple(_voter(info.node_id, now_ms) for info in brokers)
    topics, slices = [], Slices()
    async for topic in slices.of(request.topics):
        name = topic.topic_name
        partitions = [_quorum_of(call, name, one.partition_index, voters) async for one in slices.of(topic.partitions)]
        topics.append(TopicData(topic_name=name, partitions=tuple(partitions)))
    nodes = []
    for info in brokers:
        host, port = info.endpoint(listener)
        values: dict[str, Any] = {"name": listener, "host": host, "port": port}
        nodes.append(Node(node_id=info.node_id, listeners=(Listener(**values),)))  # type: ignore[arg-type]
    return DescribeQuorumResponse(
        error_code=ErrorCode.none, error_message=None, topics=tuple(topics), nodes=tuple(nodes)
    )


def _quorum_of(call: Call, name: str, index: int, voters: tuple[ReplicaState, ...]) -> PartitionData:
    known = name == METADATA_TOPIC and index == 0
    values: dict[str, Any] = {
        "partition_index": index,
        "error_code": ErrorCode.none if known else UnknownTopicOrPartition.code,
        "error_message": None,
        "leader_id": call.context.broker_lease.shown_node_id(call.client.listener) if known else -1,
        "leader_epoch": encoded_of(call.context.catalog).leader_epoch(call) if known else -1,
        "high_watermark": 0 if known else -1,
        "current_voters": voters if known else (),
        "observers": (),
    }
    return PartitionData(**values)


def _voter(node_id: int, now_ms: int) -> ReplicaState:
    values: dict[str, Any] = {
        "replica_id": node_id,
        "replica_directory_id": None,
        "log_end_offset": 0,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    return ReplicaState(**values)


# -- UpdateFeatures

_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3


@api(
    ApiKey.UPDATE_FEATURES, first=0, last=2, away=ErrorCode.request_timed_out, safe_late=True, error=at_top(results=())
)
async def update_features(call: Call, request: UpdateFeaturesRequest) -> Any:
    """Accept the levels that are in use, refuse others (KIP-584): a broker's features depend on its version only.

    v0-1: one result for each feature. v2: the error of all at the top (KIP-1022).
    """
    results = []
    async for asked in in_slices(request.feature_updates):
        try:
            _check_feature(asked.feature, asked.max_version_level, asked.upgrade_type)
        except KafkaError as error:
            return Fields(throttle_time=NO_TIME, error_code=error.code, error_message=error.message, results=())
        results.append(Fields(feature=asked.feature, error_code=ErrorCode.none, error_message=None))
    return Fields(throttle_time=NO_TIME, error_code=ErrorCode.none, error_message=None, results=tuple(results))


def _check_feature(name: str, level: int, upgrade_type: int) -> None:
    """Raises InvalidUpdateVersion, InvalidRequest."""
    if not _UPGRADE <= upgrade_type <= _UNSAFE_DOWNGRADE:
        raise InvalidRequest(f"there is no upgrade type {upgrade_type}")
    ranges = {feature: (lowest, highest) for feature, lowest, highest in SUPPORTED}
    if name not in ranges:
        raise InvalidUpdateVersion(f"there is no feature {name!r}")
    lowest, highest = ranges[name]
    if not lowest <= level <= highest:
        raise InvalidUpdateVersion(f"{name} has the levels {lowest} to {highest}, not {level}")
    if level not in [highest for feature, highest, _ in FINALIZED if feature == name]:
        raise InvalidUpdateVersion(f"{name} cannot change: its level belongs to the version of the brokers")


# -- ListConfigResources

_LISTED: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


@api(
    ApiKey.LIST_CONFIG_RESOURCES,
    first=0,
    last=1,
    answers_large=True,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=at_top(config_resources=()),
)
async def list_config_resources(call: Call, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """Things that have configs. v0: client metrics only (KIP-714). v1: by types, none is all (KIP-1142)."""
    kinds: list[int] = sorted(set(request.resource_types)) or list(_LISTED)
    if call.version == 0:
        kinds = [CLIENT_METRICS]
    if not set(kinds) <= set(_LISTED):
        raise UnsupportedVersion(f"resource types {kinds} include unknown ones")
    found = [
        ConfigResource(resource_name=name, resource_type=i8(kind))
        for kind in kinds
        async for name in in_slices(await _names(call, kind))
    ]
    return ListConfigResourcesResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, config_resources=tuple(found))


async def _names(call: Call, kind: int) -> list[str]:
    """The names of one kind. Loggers are those of a broker; client metrics have no configs of their own."""
    context = call.context
    if kind == TOPIC:
        return sorted(topic.name for topic in context.catalog.topics(call.org))
    if kind == CLIENT_METRICS and context.resource_configs is not None and call.org == DEFAULT_ORG:
        return context.resource_configs.names(resource_configs.CLIENT_METRICS)
    if kind in (BROKER, BROKER_LOGGER):
        return [str(info.node_id) for info in context.broker_lease.shown(call.client.listener)]
    if kind == GROUP:
        return await configured_groups(call.store, call.org)
    return []
