"""ApiVersions, Metadata, FindCoordinator, DescribeCluster.

The first two are inline: no task and no future while everything is cached.

The named leader or coordinator is a hint; every broker serves every partition and group.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import structlog
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode

from tidegate.apis import metadata as answers
from tidegate.apis import registry
from tidegate.apis.call import Call
from tidegate.apis.metadata import CLUSTER_OPERATIONS, NO_OPERATIONS, Question, RefreshedTopics
from tidegate.apis.registry import api, inline_api
from tidegate.apis.slices import SLICE, in_slices
from tidegate.cluster import features
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.placement import coordinator_of
from tidegate.errors import InvalidRequest, MismatchedEndpointType, UnsupportedEndpointType
from tidegate.log.offload import ENCODED
from tidegate.protocol import error_responses, group_writers, log_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.group_writers import Coordinator
from tidegate.security.errors import IllegalSaslState
from tidegate.store.keys import shard_of

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
    from kio.schema.metadata.v13.request import MetadataRequest

    from tidegate.protocol.newer_schemas.api_versions_v5 import ApiVersionsRequest

logger = structlog.get_logger()

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_LENGTH_MAX: Final = 256
_GROUP, _TRANSACTION = 0, 1
_TELEMETRY: Final = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
_BROKERS, _CONTROLLERS = 1, 2


# -- ApiVersions


@inline_api(
    ApiKey.API_VERSIONS,
    first=0,
    last=5,
    safe_late=True,
    error=at_top(
        api_keys=(), supported_features=(), finalized_features_epoch=-1, finalized_features=(), zk_migration_ready=False
    ),
)
def api_versions(call: Call, request: ApiVersionsRequest) -> None:
    """Served APIs (KIP-35). v3: the client's software (KIP-511). v5: the broker that the client means (KIP-1242).

    The dispatcher answers versions that are too new.
    """
    if call.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_is_software(name) and _is_software(version)):
            call.reply(log_writers.api_versions(call.version, ErrorCode.invalid_request.value, ()))
            return
        call.client.note_software(name, version)
        code = _misrouted(call, request)
        if code is not ErrorCode.none:
            call.reply(log_writers.api_versions(call.version, code.value, ()))
            return
    try:
        if call.client.sasl is not None and not call.client.sasl.admit_api_versions():
            call.close("a second ApiVersions before SASL authentication")
            return
    except IllegalSaslState as error:
        call.reply(log_writers.api_versions(call.version, error.code.value, ()))
        return
    hides_telemetry = not call.context.settings.client_metrics_enabled
    call.reply(_api_versions(call.version, len(registry.served), hides_telemetry))


def _misrouted(call: Call, request: ApiVersionsRequest) -> ErrorCode:
    """Whether the client reached another cluster. Node ids are not compared: any broker may answer for one address."""
    cluster_id, node_id = request.cluster_id, request.node_id
    if (cluster_id is None) != (node_id == -1):
        return ErrorCode.invalid_request
    if cluster_id is not None and cluster_id != call.context.broker_lease.cluster_id:
        return ErrorCode.rebootstrap_required
    return ErrorCode.none


@cache
def _api_versions(version: int, _: int, hides_telemetry: bool) -> bytes:
    """The answer of a version; the number of served APIs changes in tests only."""
    return log_writers.api_versions(
        version, ErrorCode.none.value, _listed(hides_telemetry), features.SUPPORTED, features.FINALIZED, features.EPOCH
    )


def _is_software(text: str) -> bool:
    return len(text) <= _SOFTWARE_LENGTH_MAX and _SOFTWARE.fullmatch(text) is not None


def _listed(hides_telemetry: bool) -> list[tuple[int, int, int]]:
    """As in Kafka, the APIs of client metrics are listed where pushes are wanted only, and served everywhere."""
    hidden = _TELEMETRY if hides_telemetry else ()
    return [(key, one.listed_first, one.last) for key, one in sorted(registry.served.items()) if key not in hidden]


# -- Metadata


@inline_api(
    ApiKey.METADATA,
    first=0,
    last=13,
    away=ErrorCode.leader_not_available,
    safe_late=True,
    error=error_responses.metadata,
)
def metadata(call: Call, request: MetadataRequest, question: Question | None = None) -> None:
    """Brokers, topics and partition leaders. Access control has read the `question` already.

    v1: null is all topics. v4: allow_auto_topic_creation. v7: leader epochs. v12: topics by id. Unknown topics are
    refreshed from the store, and created before the answer if that is allowed, so that clients need no retry. A late
    request creates none.
    """
    if call.version in (10, 11) and any(one.topic_id or one.name is None for one in request.topics or ()):
        raise InvalidRequest("topic ids are read from version 12 on")
    if question is None:
        question = Question.of(call, request)
    if question.wanted is not None and len(question.wanted) > SLICE:
        call.answer_later(_metadata_after_refresh(call, question, None), request)
        return
    encoded = answers.encoded_of(call.context.catalog)
    body = encoded.get(call, question)
    if body is None:
        unknown = question.unknown(call.context.catalog)
        if unknown or answers.is_large(call, question):
            call.answer_later(_metadata_after_refresh(call, question, unknown), request)
            return
        body = answers.answer(call, question, RefreshedTopics())
        encoded.put(call, question, body)
    call.reply(body)


async def _metadata_after_refresh(call: Call, question: Question, unknown: list[answers.NameOrId] | None) -> None:
    """Refresh the `unknown` topics from the store (None: compute them first), then answer; large answers in slices."""
    held = unknown is not None and not unknown
    if unknown is None:
        catalog = call.context.catalog
        unknown = [one async for one in in_slices(question.wanted or ()) if question.is_unknown(catalog, one)]
    refreshed = await answers.refresh(call, question, unknown) if unknown else RefreshedTopics()
    if answers.is_large(call, question):
        encoded = answers.encoded_of(call.context.catalog)
        state = encoded.state_of(call)
        body = await answers.answer_in_slices(call, question, refreshed)
        if held and state == encoded.state_of(call):
            encoded.put(call, question, body)
    else:
        body = answers.answer(call, question, refreshed)
    call.reply(body)


# -- FindCoordinator

_KEYS_IN_BATCHES: Final = 4
_KEYS_SLICE: Final = 100


@api(ApiKey.FIND_COORDINATOR, first=0, last=6, safe_late=True, prepared=True, error=error_responses.find_coordinator)
async def find_coordinator(call: Call, request: FindCoordinatorRequest) -> bytes:
    """The coordinator of a group or transactional id. v4: several keys (KIP-699). v6: share groups (not supported)."""
    if request.key_type not in (_GROUP, _TRANSACTION):
        message = f"coordinators of type {request.key_type} are not served"
        found = [_no_coordinator(key, ErrorCode.invalid_request, message) for key in request.coordinator_keys]
    else:
        found = [_coordinator(call, key) async for key in in_slices(request.coordinator_keys, _KEYS_SLICE)]
    if len(found) > _KEYS_SLICE:
        return await ENCODED.run(group_writers.find_coordinator, call.version, found)
    return group_writers.find_coordinator(call.version, found)


def _coordinator(call: Call, key: str) -> Coordinator:
    brokers = call.context.broker_lease.nameable(call.client.listener)
    if not brokers:
        return _no_coordinator(key, ErrorCode.coordinator_not_available, "no broker is live")
    info = coordinator_of(shard_of(key, call.context.settings.coordinator_shards), brokers)
    host, port = info.endpoint(call.client.listener)
    message = "NONE" if call.version < _KEYS_IN_BATCHES else ""  # Kafka's message for no error
    return key, info.node_id, host, port, ErrorCode.none.value, message


def _no_coordinator(key: str, code: ErrorCode, message: str) -> Coordinator:
    return key, -1, "", -1, code.value, message


# -- DescribeCluster


@api(
    ApiKey.DESCRIBE_CLUSTER,
    first=0,
    last=2,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=at_top(
        endpoint_type=1, cluster_id="", controller_id=-1, brokers=(), cluster_authorized_operations=-(1 << 31)
    ),
)
async def describe_cluster(call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """The live brokers (KIP-700). v1: endpoint type (KIP-919). v2: fenced brokers, which do not exist here."""
    if request.endpoint_type == _CONTROLLERS:
        raise MismatchedEndpointType("this is a broker's listener")
    if request.endpoint_type != _BROKERS:
        raise UnsupportedEndpointType
    broker_lease, listener = call.context.broker_lease, call.client.listener
    asked = request.include_cluster_authorized_operations
    values: dict[str, Any] = {
        "throttle_time": NO_TIME,
        "error_code": ErrorCode.none,
        "cluster_id": broker_lease.cluster_id,
        "controller_id": broker_lease.shown_node_id(listener),
        "brokers": tuple(_described(info, listener) for info in broker_lease.shown(listener)),
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else NO_OPERATIONS,
    }
    return DescribeClusterResponse(**values)


def _described(info: BrokerInfo, listener: str) -> DescribeClusterBroker:
    host, port = info.endpoint(listener)
    values: dict[str, Any] = {"broker_id": info.node_id, "host": host, "port": port, "rack": info.rack}
    return DescribeClusterBroker(**values, is_fenced=False)
