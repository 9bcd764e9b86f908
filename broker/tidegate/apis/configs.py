"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs of topics, groups and brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse as IncrementalAlterConfigsResourceResponse,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

from tidegate.apis import broker_configs, broker_loggers, client_metrics
from tidegate.apis.bounded_answers import BEYOND
from tidegate.apis.call import Call
from tidegate.apis.described_configs import DescribedConfigs
from tidegate.apis.group_configs import GROUP, alter_group_configs, describe_group_configs
from tidegate.apis.named_topics import NamedTopic, as_now, topics_of
from tidegate.apis.registry import api
from tidegate.apis.slices import in_slices
from tidegate.apis.topics import failure
from tidegate.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.topics import configs, names
from tidegate.topics.configs import Change, Described, Operation

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
_OF_THE_CLUSTER: Final = (BROKER, BROKER_LOGGER, CLIENT_METRICS)
_ADMINISTRATORS: Final = "default"
"""The organisation whose administrators may change what holds for all organisations."""


@api(
    ApiKey.DESCRIBE_CONFIGS,
    first=1,
    last=4,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=error_responses.describe_configs,
)
async def describe_configs(call: Call, request: DescribeConfigsRequest) -> list[bytes]:
    """Configs of topics and of this broker. v1: sources and synonyms (KIP-226). v3: types and documentation.

    Resources beyond the bytes of an answer get a retriable error.
    """
    if any(resource.resource_type == TOPIC for resource in request.resources):
        await call.context.catalog.refresh()  # another broker may have altered them
    described = DescribedConfigs(call.version, request)
    async for resource in in_slices(request.resources, 1):
        try:
            if described.is_full:
                raise RequestTimedOut(BEYOND)
            if not described.repeat(resource):
                described.add(resource, await _configs_of(call, resource), ErrorCode.none, None)
        except KafkaError as error:
            described.add(resource, (), *failure(error))
    return described.parts()


async def _configs_of(call: Call, resource: DescribeConfigsResource) -> list[Described]:
    settings = call.context.settings
    if resource.resource_type == TOPIC:
        names.check(resource.resource_name)
        topic = await call.context.catalog.find(call.org, resource.resource_name)
        if topic is None:
            raise UnknownTopicOrPartition
        return configs.describe_topic(settings, topic.overrides)
    if resource.resource_type == BROKER:
        return broker_configs.describe(call, resource.resource_name)
    if resource.resource_type == BROKER_LOGGER:
        return broker_loggers.describe(call, resource.resource_name)
    if resource.resource_type == CLIENT_METRICS:
        return client_metrics.describe(call, resource.resource_name)
    if resource.resource_type == GROUP:
        return await describe_group_configs(call, resource.resource_name)
    raise InvalidRequest(f"configs of resource type {resource.resource_type} are not served")


# -- changes


@api(ApiKey.ALTER_CONFIGS, first=0, last=2, confirmed=True, error=error_responses.alter_configs)
async def alter_configs(call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all own configs of topics and groups; configs that are not named return to their defaults."""
    times, topics = _times(request), await _topics(call, request)
    responses = [
        AlterConfigsResourceResponse(**await _alter(call, one, times, topics, request.validate_only, replace=True))
        async for one in in_slices(request.resources)
    ]
    return AlterConfigsResponse(throttle_time=NO_TIME, responses=tuple(responses))


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, first=0, last=1, confirmed=True, error=error_responses.incremental_alter_configs)
async def incremental_alter_configs(
    call: Call, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from single configs of topics and groups (KIP-339)."""
    times, topics = _times(request), await _topics(call, request)
    responses = [
        IncrementalAlterConfigsResourceResponse(
            **await _alter(call, one, times, topics, request.validate_only, replace=False)
        )
        async for one in in_slices(request.resources)
    ]
    return IncrementalAlterConfigsResponse(throttle_time=NO_TIME, responses=tuple(responses))


def _times(request: Any) -> Counter[tuple[int, str]]:
    return Counter((one.resource_type, one.resource_name) for one in request.resources)


async def _topics(call: Call, request: Any) -> Mapping[str, NamedTopic]:
    named = dict.fromkeys(one.resource_name for one in request.resources if one.resource_type == TOPIC)
    return await topics_of(call, named) if named else {}


async def _alter(
    call: Call,
    resource: Any,
    times: Counter[tuple[int, str]],
    topics: Mapping[str, NamedTopic],
    validate_only: bool,
    *,
    replace: bool,
) -> dict[str, Any]:
    """Alter one resource; returns its line of the answer."""
    code, message = ErrorCode.none, None
    try:
        call.refuse_if_gone()
        if times[resource.resource_type, resource.resource_name] > 1:
            raise InvalidRequest("the resource appears more than once in the request")
        if resource.resource_type == TOPIC:
            await _alter_topic(call, resource, topics[resource.resource_name], validate_only, replace)
        else:
            await _alter_other(call, resource, validate_only, replace)
    except KafkaError as error:
        code, message = failure(error)
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


async def _alter_other(call: Call, resource: Any, validate_only: bool, replace: bool) -> None:
    if resource.resource_type in _OF_THE_CLUSTER and call.org != _ADMINISTRATORS:
        raise ClusterAuthorizationFailed(
            f"only organisation {_ADMINISTRATORS!r} changes configs that apply to all organisations"
        )
    if resource.resource_type == GROUP:
        await alter_group_configs(call, resource.resource_name, _changes(resource), validate_only, replace=replace)
        return
    if resource.resource_type == BROKER:
        await broker_configs.alter(call, resource.resource_name, _changes(resource), validate_only, replace)
        return
    if resource.resource_type == BROKER_LOGGER and not replace:
        broker_loggers.alter(call, resource.resource_name, _changes(resource), validate_only)
        return
    if resource.resource_type == CLIENT_METRICS and not replace:
        await client_metrics.alter(call, resource.resource_name, _changes(resource), validate_only)
        return
    raise InvalidRequest(f"configs of resource type {resource.resource_type} cannot be altered")


def _changes(resource: Any) -> list[Change]:
    """The changes of one resource. Raises InvalidRequest for a config that is named twice."""
    changes: list[Change] = [
        (one.name, getattr(one, "config_operation", Operation.SET), one.value) for one in resource.configs
    ]
    if len({name for name, _, _ in changes}) != len(changes):
        raise InvalidRequest("a config appears more than once in the request")
    return changes


async def _alter_topic(call: Call, resource: Any, named: NamedTopic, validate_only: bool, replace: bool) -> None:
    """In Kafka's order of checks."""
    changes = _changes(resource)
    configs.check_operations(changes)
    if not resource.resource_name:
        raise InvalidRequest("the topic has no name")
    names.check(resource.resource_name)
    names.check_changeable(resource.resource_name)

    def plan(overrides: Mapping[str, str]) -> dict[str, str]:
        return configs.altered(call.context.settings, overrides, changes, replace=replace)

    try:
        topic = as_now(call, named)
        await call.context.catalog.alter_configs(call.org, topic.name, plan, validate_only, topic.topic_id)
    except UnknownTopicOrPartition:
        plan({})  # wrong configs are reported first
        raise
