"""DescribeConfigs: what topics and this broker go by, and where each value comes from."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode

from broker.apis.call import Call
from broker.apis.registry import ApiKey, api
from broker.apis.topics import failure
from broker.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from broker.protocol.error_responses import NO_TIME
from broker.topics import configs, names
from broker.topics.configs import Described

TOPIC: Final = 2
BROKER: Final = 4


@api(ApiKey.DESCRIBE_CONFIGS, first=1, last=4)
async def describe_configs(call: Call, request: Any) -> DescribeConfigsResponse:
    """Configs of topics and of this broker. v1: sources and synonyms (KIP-226). v3: types and documentation."""
    results = [await _describe(call, resource, request) for resource in request.resources]
    return DescribeConfigsResponse(throttle_time=NO_TIME, results=tuple(results))  # type: ignore[arg-type]


async def _describe(call: Call, resource: Any, request: Any) -> DescribeConfigsResult:
    code, message, found = ErrorCode.none, None, list[Described]()
    try:
        found = await _configs_of(call, resource)
    except KafkaError as error:
        code, message = failure(error)
    wanted = set(resource.configuration_keys or ())
    values: dict[str, Any] = {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": tuple(_result(one, request) for one in found if not wanted or one.name in wanted),
    }
    return DescribeConfigsResult(**values)


async def _configs_of(call: Call, resource: Any) -> list[Described]:
    settings, membership = call.rooms.settings, call.rooms.membership
    if resource.resource_type == TOPIC:
        names.check(resource.resource_name)
        topic = await call.rooms.catalog.find(call.org, resource.resource_name)
        if topic is None:
            raise UnknownTopicOrPartition
        return configs.describe_topic(settings, topic.overrides)
    if resource.resource_type == BROKER:
        if not resource.resource_name:
            return []  # what is set for all brokers at run time: nothing can be
        if resource.resource_name not in (str(membership.node_id), str(membership.shown_node_id)):
            raise InvalidRequest(f"this is broker {membership.shown_node_id}, not {resource.resource_name!r}")
        return configs.describe_broker(settings)
    raise InvalidRequest(f"configs of resource type {resource.resource_type} are not served")


def _result(config: Described, request: Any) -> DescribeConfigsResourceResult:
    synonyms = config.synonyms if request.include_synonyms else ()
    values: dict[str, Any] = {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": int(config.source),
        "is_sensitive": False,
        "synonyms": tuple(
            DescribeConfigsSynonym(name=one.name, value=one.value, source=int(one.source))  # type: ignore[arg-type]
            for one in synonyms
        ),
        "config_type": int(config.type),
        "documentation": config.doc if request.include_documentation else None,
    }
    return DescribeConfigsResourceResult(**values)
