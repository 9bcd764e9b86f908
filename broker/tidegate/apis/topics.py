"""CreateTopics, DeleteTopics, CreatePartitions: each topic of a request succeeds or fails by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import structlog
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.create_topics.v7.response import CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from tidegate.apis import mutations
from tidegate.apis.call import Call
from tidegate.apis.named_topics import NamedTopic, as_now, topics_of
from tidegate.apis.registry import api
from tidegate.apis.slices import each, in_slices
from tidegate.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    StoreUnavailable,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.topics import configs, names
from tidegate.topics.catalog import PARTITIONS_MAX

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest

logger = structlog.get_logger()

REPLICAS: Final = 1
"""The reported replication factor: replication is the store's responsibility."""

_AT_ONCE: Final = 16


def failure(error: KafkaError) -> tuple[ErrorCode, str | None]:
    """Code and message of one failed topic; an unavailable store gets a retriable code."""
    code = ErrorCode.request_timed_out if isinstance(error, StoreUnavailable) else error.code
    return code, error.message


# -- CreateTopics


@api(
    ApiKey.CREATE_TOPICS,
    first=2,
    last=7,
    confirmed=True,
    away=ErrorCode.request_timed_out,
    error=error_responses.create_topics,
)
async def create_topics(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics. v4: -1 for the default counts (KIP-464). v5: the created properties (KIP-525). v7: topic ids."""
    times = Counter(topic.name for topic in request.topics)
    once = {topic.name: topic for topic in request.topics}
    made = (one for name, one in once.items() if times[name] == 1 and name != names.METADATA_TOPIC)
    counts = (len(one.assignments) or one.num_partitions for one in made)
    if sum(max(count, 0) for count in counts) > PARTITIONS_MAX:
        raise PolicyViolation(f"a request may create {PARTITIONS_MAX} partitions at most")

    async def one(topic: Any) -> CreatableTopicResult:
        try:
            call.refuse_if_gone()
            return await _create(call, topic, times[topic.name], request.validate_only)
        except KafkaError as error:
            code, message = failure(error)
            values: dict[str, Any] = {"name": topic.name, "error_code": code, "error_message": message}
            return CreatableTopicResult(**values, topic_id=None, configs=())

    return CreateTopicsResponse(throttle_time=NO_TIME, topics=tuple(await each(once.values(), one, _AT_ONCE)))


async def _create(call: Call, wanted: CreatableTopic, times: int, validate_only: bool) -> CreatableTopicResult:
    """Validate in Kafka's order, then create the topic."""
    catalog, settings = call.context.catalog, call.context.settings
    names.check(wanted.name)
    if times > 1:
        raise InvalidRequest("the topic appears more than once in the request")
    await catalog.check_new(call.org, wanted.name)
    overrides = configs.parse(call.context.settings, {config.name: config.value for config in wanted.configs}, {})
    count = _partition_count(call, wanted, settings.num_partitions)
    await catalog.check_limits(call.org, wanted.name, count)
    await mutations.spend(call, count)
    topic_id = uuid4()  # as Kafka's, of a topic that is not made
    if not validate_only:
        call.refuse_if_gone()
        topic_id = (await catalog.create(call.org, wanted.name, count, overrides)).topic_id
    values: dict[str, Any] = {
        "name": wanted.name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": count,
        "replication_factor": REPLICAS,
        "configs": tuple(_made_with(one) for one in configs.describe_topic(settings, overrides)),
    }
    return CreatableTopicResult(**values)


def _made_with(config: configs.Described) -> CreatableTopicConfigs:
    values: dict[str, Any] = {"name": config.name, "value": config.value, "config_source": int(config.source)}
    return CreatableTopicConfigs(**values, read_only=config.read_only, is_sensitive=False)


def _partition_count(call: Call, wanted: CreatableTopic, default: int) -> int:
    """The requested number of partitions, by count or by assignment. Every replication factor is accepted."""
    if not wanted.assignments:
        if wanted.replication_factor != -1 and wanted.replication_factor < 1:
            raise InvalidReplicationFactor("replication factor must be at least 1")
        if wanted.num_partitions != -1 and wanted.num_partitions < 1:
            raise InvalidPartitions("number of partitions must be at least 1")
        return default if wanted.num_partitions == -1 else int(wanted.num_partitions)
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise InvalidRequest("assignments and counts were both given")
    indexes = sorted(one.partition_index for one in wanted.assignments)
    if indexes != list(range(len(indexes))):
        raise InvalidReplicaAssignment("the partitions are not 0 to n - 1")
    _check_replicas(call, [one.broker_ids for one in wanted.assignments])
    return len(indexes)


def _check_replicas(call: Call, assignments: Sequence[Sequence[int]]) -> None:
    """Replicas are not placed here, but an invalid list of them is refused. Raises InvalidReplicaAssignment."""
    known = {broker.node_id for broker in call.context.broker_lease.shown(call.client.listener)}
    for replicas in assignments:
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment("a partition's replicas are empty, or a broker appears twice")
        if unknown := sorted(set(replicas) - known):
            raise InvalidReplicaAssignment(f"there is no broker {unknown[0]}; there are {sorted(known)}")


# -- DeleteTopics


@api(
    ApiKey.DELETE_TOPICS,
    first=1,
    last=6,
    confirmed=True,
    away=ErrorCode.request_timed_out,
    error=error_responses.delete_topics,
)
async def delete_topics(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics with their records and committed offsets. v6: by name or id.

    All are found before the first is deleted, as by Kafka.
    """
    named = await topics_of(call, dict.fromkeys(topic.name for topic in request.topics if topic.name is not None))
    times = Counter[tuple[str | None, UUID | None]]((topic.name, topic.topic_id) for topic in request.topics)
    every = [wanted for wanted, count in times.items() for _ in range(1 if any(wanted) else count)]
    found = [_to_delete(call, named, *wanted, times[wanted]) async for wanted in in_slices(every)]

    async def one(asked: tuple[tuple[str | None, UUID | None], NamedTopic]) -> DeletableTopicResult:
        (name, topic_id), topic = asked
        code, message = ErrorCode.none, None
        try:
            call.refuse_if_gone()
            if not isinstance(topic, KafkaError):
                name, topic_id = topic.name, topic.topic_id
            await _delete(call, topic, is_by_id=asked[0][1] is not None)
        except KafkaError as error:
            code, message = failure(error)
        values: dict[str, Any] = {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
        return DeletableTopicResult(**values)

    results = await each(zip(every, found, strict=True), one, _AT_ONCE)
    return DeleteTopicsResponse(throttle_time=NO_TIME, responses=tuple(results))


def _to_delete(
    call: Call, named: Mapping[str, NamedTopic], name: str | None, topic_id: UUID | None, times: int
) -> NamedTopic:
    """The topic, or why it is not deleted."""
    if not call.context.settings.delete_topic_enable:
        return InvalidRequest("topic deletion is disabled") if call.version < 3 else TopicDeletionDisabled()
    if (name is None) == (topic_id is None):
        return InvalidRequest("either a name or an id is needed")
    if times > 1:
        return InvalidRequest("the topic appears more than once in the request")
    by_id = None if topic_id is None else call.context.catalog.by_id(call.org, topic_id)
    topic = named[name] if name is not None else by_id or UnknownTopicId()
    if not isinstance(topic, KafkaError) and call.context.settings.internal_topics_interval_ms:
        try:
            names.check_changeable(topic.name)  # it would be written again at once
        except KafkaError as error:
            return error
    return topic


async def _delete(call: Call, topic: NamedTopic, is_by_id: bool) -> None:
    """Delete that topic, and no later one of its name. Raises KafkaError."""
    if isinstance(topic, KafkaError):
        raise topic.with_traceback(None)
    await mutations.spend(call, topic.partition_count)
    try:
        await call.context.catalog.delete(call.org, topic.name, topic.topic_id)
    except (UnknownTopicId, UnknownTopicOrPartition):
        raise (UnknownTopicId if is_by_id else UnknownTopicOrPartition) from None


# -- CreatePartitions


@api(
    ApiKey.CREATE_PARTITIONS,
    first=0,
    last=3,
    confirmed=True,
    away=ErrorCode.request_timed_out,
    error=error_responses.create_partitions,
)
async def create_partitions(call: Call, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add partitions (KIP-195); they begin at offset 0."""
    times = Counter(topic.name for topic in request.topics)
    once = {topic.name: topic for topic in request.topics}
    named = await topics_of(call, once)

    async def one(wanted: Any) -> CreatePartitionsTopicResult:
        code, message = ErrorCode.none, None
        try:
            call.refuse_if_gone()
            await _grow(call, wanted, named[wanted.name], times[wanted.name], request.validate_only)
        except KafkaError as error:
            code, message = failure(error)
        return CreatePartitionsTopicResult(name=wanted.name, error_code=code, error_message=message)

    results = await each(once.values(), one, _AT_ONCE)
    return CreatePartitionsResponse(throttle_time=NO_TIME, results=tuple(results))


async def _grow(call: Call, wanted: CreatePartitionsTopic, named: NamedTopic, times: int, validate_only: bool) -> None:
    if times > 1:
        raise InvalidRequest("the topic appears more than once in the request")
    names.check_changeable(wanted.name)
    catalog, topic_id = call.context.catalog, as_now(call, named).topic_id
    topic = await catalog.check_growth(call.org, wanted.name, wanted.count, topic_id)
    if wanted.assignments is not None:
        if len(wanted.assignments) != wanted.count - topic.partition_count:
            raise InvalidReplicaAssignment("there must be one assignment for each new partition")
        _check_replicas(call, [one.broker_ids for one in wanted.assignments])
    await catalog.check_limits(call.org, wanted.name, wanted.count)
    await mutations.spend(call, wanted.count - topic.partition_count)
    if not validate_only:
        await catalog.add_partitions(call.org, wanted.name, wanted.count, topic_id)
