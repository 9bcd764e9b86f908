"""StreamsGroupHeartbeat and StreamsGroupDescribe: the threads of Kafka Streams applications (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.streams_group_describe.v0 import response as describing
from kio.schema.streams_group_heartbeat.v0 import response as beating
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64, u16

from tidegate.apis import group_creation, mutations
from tidegate.apis.call import Call
from tidegate.apis.epoch_groups import described_sizes, undescribed
from tidegate.apis.group_admin import describe_each
from tidegate.apis.registry import api
from tidegate.apis.slices import SLICE
from tidegate.apis.topic_rights import may_all, may_create
from tidegate.errors import GroupIdNotFound, InvalidGroupId, InvalidRequest, TopicAuthorizationFailed
from tidegate.groups.configs import STREAMS_HEARTBEAT_INTERVAL_MS
from tidegate.groups.consumer.model import JOIN_EPOCH, STATIC_LEAVE_EPOCH, Partitions
from tidegate.groups.consumer.stored import by_topic
from tidegate.groups.decision_queue import computed
from tidegate.groups.streams.assignor import STICKY
from tidegate.groups.streams.errors import StreamsInvalidTopology
from tidegate.groups.streams.model import (
    NO_TASKS,
    EndpointPartitions,
    StreamsAnswer,
    StreamsGroup,
    StreamsHeartbeat,
    StreamsMember,
    Tasks,
)
from tidegate.groups.streams.topology import InternalTopic, Subtopology, Topology, check
from tidegate.log.offload import ENCODED
from tidegate.protocol import codec, error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.protocol.newer_schemas import streams_group_describe_v1 as describing_v1
from tidegate.protocol.newer_schemas.streams_group_heartbeat_v1 import StreamsGroupHeartbeatResponse
from tidegate.security.acls import Operation
from tidegate.topics import names

if TYPE_CHECKING:
    from kio.schema.streams_group_heartbeat.v0 import request as asked
    from kio.schema.types import GroupId

    from tidegate.protocol.newer_schemas.streams_group_heartbeat_v1 import StreamsGroupHeartbeatRequest

TOPOLOGY_NAMES_MAX: Final = 1 << 20
"""Characters of the names and configs of one topology."""
SUBTOPOLOGIES_MAX: Final = 2_000
"""Subtopologies of one topology; an application has some ten."""
_TASK_OFFSET_INTERVAL: Final = i32Timedelta.parse(timedelta(minutes=1))
"""How often a member may report the offsets of its tasks, which no assignment depends on."""
_LEGACY_RECOVERY_LAG, _NO_RECOVERY_LAG, _RECOVERY_LAG = i64(0), i64(-1), i64(10_000)
"""Offsets that a warm-up task may be behind, which no assignment depends on: in v0, for a member that leaves, else."""
_MS: Final = timedelta(milliseconds=1)
_NOT_STORED: Final = i8(1)


@api(ApiKey.STREAMS_GROUP_HEARTBEAT, first=0, last=1, error=error_responses.streams_group_heartbeat)
async def heartbeat(call: Call, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse | bytes:
    """Join or leave a streams group, renew the session of a member, and give it its tasks (KIP-1071)."""
    entered = await computed(_sizes(request), partial(_request, call, request))
    keys = call.store.group_keys(call.org, request.group_id)
    if entered.member_epoch == JOIN_EPOCH:
        await group_creation.admit(call, keys)
    interval_ms = await call.context.consumers.plain.interval_ms(keys, entered.ref) if entered.is_plain else None
    if interval_ms is None:
        answer = await call.context.streams.run(keys, entered, call)
        return _answered(call, answer) if _is_small(answer) else await ENCODED.run(_encoded, call, answer)
    interval_ms = interval_ms or STREAMS_HEARTBEAT_INTERVAL_MS
    endpoints = () if entered.endpoint_epoch else None  # groups with endpoints have no snapshots
    return _answered(
        call,
        StreamsAnswer(entered.member_id, entered.member_epoch, heartbeat_interval_ms=interval_ms, endpoints=endpoints),
    )


def _is_small(answer: StreamsAnswer) -> bool:
    """Whether the answer's tasks and partitions are few, or there is no news."""
    found = [topics for one in answer.endpoints or () for topics in (one.active, one.standby)]
    partitions = sum(len(indexes) for topics in found for indexes in topics.values())
    return len(answer.tasks or ()) + partitions <= SLICE


def _encoded(call: Call, answer: StreamsAnswer) -> bytes:
    return codec.encode(call.api_key, call.version, _answered(call, answer))


def _answered(call: Call, answer: StreamsAnswer) -> StreamsGroupHeartbeatResponse:
    tasks = answer.tasks
    return StreamsGroupHeartbeatResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=i32(answer.member_epoch),
        heartbeat_interval=i32Timedelta.parse(answer.heartbeat_interval_ms * _MS),
        task_offset_interval=_TASK_OFFSET_INTERVAL if answer.member_epoch > 0 else NO_TIME,
        acceptable_recovery_lag=_recovery_lag(call.version, answer.member_epoch),
        status=tuple(
            beating.Status(status_code=i8(int(code)), status_detail=detail) for code, detail in answer.statuses
        ),
        active_tasks=None if tasks is None else _task_ids(beating.TaskIds, tasks.active),
        standby_tasks=None if tasks is None else _task_ids(beating.TaskIds, tasks.standby),
        warmup_tasks=None if tasks is None else (),
        endpoint_information_epoch=i32(answer.endpoint_epoch),
        partitions_by_user_endpoint=None if answer.endpoints is None else tuple(map(_of_endpoint, answer.endpoints)),
    )


def _recovery_lag(version: int, member_epoch: int) -> i64:
    if version == 0:
        return _LEGACY_RECOVERY_LAG
    return _RECOVERY_LAG if member_epoch > 0 else _NO_RECOVERY_LAG


def _task_ids(of: type[Any], tasks: Partitions) -> tuple[Any, ...]:
    return tuple(
        of(subtopology_id=name, partitions=tuple(map(i32, indexes))) for name, indexes in by_topic(tasks).items()
    )


def _of_endpoint(one: EndpointPartitions) -> beating.EndpointToPartitions:
    host, port = one.endpoint
    return beating.EndpointToPartitions(
        user_endpoint=beating.Endpoint(host=host, port=u16(port)),
        active_partitions=_topic_partitions(one.active),
        standby_partitions=_topic_partitions(one.standby),
    )


def _topic_partitions(found: Mapping[str, Iterable[int]]) -> tuple[beating.TopicPartition, ...]:
    return tuple(
        beating.TopicPartition(topic=name, partitions=tuple(map(i32, indexes)))  # type: ignore[arg-type]
        for name, indexes in found.items()
    )


# -- the request


def _sizes(request: StreamsGroupHeartbeatRequest) -> Iterator[int]:
    """How much reading the parts of a request adds, for `computed`: a tenth of what has no parts of its own."""
    for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        yield from (1 + len(one.partitions) // 10 for one in tasks or ())
    for one in () if request.topology is None else request.topology.subtopologies:
        yield 1 + (len(one.source_topics) + len(one.repartition_sink_topics)) // 10
        for topics in (one.repartition_source_topics, one.state_changelog_topics):
            yield from (1 + len(topic.topic_configs) // 10 for topic in topics)
        for group in one.copartition_groups:
            yield 1 + (len(group.source_topics) + len(group.repartition_source_topics)) // 10
    yield len(request.client_tags or ()) // 10


def _request(call: Call, request: StreamsGroupHeartbeatRequest) -> StreamsHeartbeat:
    """The validated request, in the order of Kafka's checks. Raises the KafkaError of the first that fails."""
    for name, value in (
        ("member id", request.member_id),
        ("group id", request.group_id),
        ("instance id", request.instance_id),
        ("rack id", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise InvalidRequest(f"the {name} is blank")
    epoch = request.member_epoch
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequest("the member epoch is below -2")
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise InvalidRequest("only a static member can leave with the epoch -2")
    elif request.topology is not None:
        raise InvalidRequest("only a join brings a topology")
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsHeartbeat(
        request.member_id,
        epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout // _MS,
        None if request.topology is None else _topology(request.topology),
        _owned(request),
        request.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        None if tags is None else tuple(sorted({one.key: one.value for one in tags}.items())),
        request.endpoint_information_epoch,
        request.shutdown_application,
        call.client_id or "",
        f"/{call.client.host}",
        call.client.called_itself,
        partial(may_create, call),
        partial(mutations.spend_unthrottled, call),
    )


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout // _MS == -1:
        raise InvalidRequest("a join needs a rebalance timeout")
    for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        if tasks is None or tasks:
            raise InvalidRequest("a member that joins owns no tasks")
    if request.topology is None:
        raise InvalidRequest("a join needs a topology")


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    sent = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    given = [tasks for tasks in sent if tasks is not None]
    if not given:
        return None
    if len(given) < len(sent):
        raise InvalidRequest("active, standby and warm-up tasks are given together or not at all")
    active, standby, _ = (
        frozenset((one.subtopology_id, index) for one in tasks for index in one.partitions) for tasks in given
    )
    return Tasks(active, standby)


def _topology(sent: asked.Topology) -> Topology:
    """The topology of a join. Raises InvalidRequest, StreamsInvalidTopology."""
    if len(sent.subtopologies) > SUBTOPOLOGIES_MAX:
        raise InvalidRequest(f"the topology has more than {SUBTOPOLOGIES_MAX} subtopologies")
    topology = Topology(sent.epoch, tuple(map(_subtopology, sent.subtopologies)))
    for name in topology.topics:
        if not names.is_legal(name) or name in names.INTERNAL:
            raise StreamsInvalidTopology(f"{name!r} cannot be a topic of a topology")
    configs = (
        value
        for one in topology.subtopologies
        for topic in (*one.repartition_sources, *one.changelogs)
        for pair in topic.configs
        for value in pair
    )
    if sum(map(len, topology.topics)) + sum(map(len, configs)) > TOPOLOGY_NAMES_MAX:
        raise InvalidRequest("the topology is too large")
    check(topology)
    return topology


def _subtopology(sent: asked.Subtopology) -> Subtopology:
    if sent.source_topic_regex:
        raise InvalidRequest("regular expressions for source topics are not supported")
    repartition = tuple(map(_internal, sent.repartition_source_topics))
    try:
        groups = tuple(
            frozenset(
                [sent.source_topics[index] for index in group.source_topics]
                + [repartition[index].name for index in group.repartition_source_topics]
            )
            for group in sent.copartition_groups
        )
    except IndexError:
        raise InvalidRequest("a copartition group names a topic that its subtopology does not have") from None
    return Subtopology(
        sent.subtopology_id,
        tuple(sent.source_topics),
        repartition,
        tuple(sent.repartition_sink_topics),
        tuple(map(_internal, sent.state_changelog_topics)),
        groups,
    )


def _internal(sent: asked.TopicInfo) -> InternalTopic:
    return InternalTopic(sent.name, sent.partitions, tuple((one.key, one.value) for one in sent.topic_configs))


# -- StreamsGroupDescribe


@api(ApiKey.STREAMS_GROUP_DESCRIBE, first=0, last=1, answers_large=True, error=error_responses.describe_streams_groups)
async def describe(
    call: Call, request: describing_v1.StreamsGroupDescribeRequest
) -> describing_v1.StreamsGroupDescribeResponse:
    """Describe streams groups, their topologies and members; each group succeeds or fails by itself."""
    refused = partial(undescribed, describing_v1.DescribedGroup)
    groups = await describe_each(call, request.group_ids, _describe, refused, request.include_authorized_operations)
    if request.include_topology_description:  # clients are never asked for one
        groups = tuple(replace(group, topology_description_status=_NOT_STORED) for group in groups)
    return describing_v1.StreamsGroupDescribeResponse(throttle_time=NO_TIME, groups=groups)


async def _describe(call: Call, group_id: GroupId) -> describing_v1.DescribedGroup:
    if not group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, group_id)
    await call.context.streams.expire(keys)
    group = await call.context.streams.read(keys)
    if not group.is_streams:
        raise GroupIdNotFound(f"Group {group_id} not found.")
    topology = group.topology
    if topology is not None and not await may_all(call, Operation.DESCRIBE, topology.source_names):
        raise TopicAuthorizationFailed("the group has topics that the client may not describe")
    sizes = chain(described_sizes(group), () if topology is None else _topology_sizes(topology))
    described_topology, members = await computed(sizes, partial(_described, group))
    return describing_v1.DescribedGroup(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state,
        group_epoch=i32(group.epoch),
        assignment_epoch=i32(group.target_epoch),
        topology=described_topology,
        members=members,
        assignor_name=STICKY,
    )


def _topology_sizes(topology: Topology) -> Iterator[int]:
    """How much describing a topology adds, for `computed`."""
    for one in topology.subtopologies:
        yield 1
        yield from (1 + len(topic.configs) // 10 for topic in one.internal_topics)


def _described(group: StreamsGroup) -> tuple[describing.Topology | None, tuple[describing.Member, ...]]:
    topology = None if group.topology is None else _described_topology(group, group.topology)
    return topology, tuple(_members(group))


def _described_topology(group: StreamsGroup, topology: Topology) -> describing.Topology:
    def internal(topics: Iterable[InternalTopic]) -> tuple[describing.TopicInfo, ...]:
        return tuple(
            describing.TopicInfo(
                name=topic.name,  # type: ignore[arg-type]
                partitions=i32(group.topics[topic.name][1] if topic.name in group.topics else topic.partition_count),
                replication_factor=i16(0),
                topic_configs=tuple(describing.KeyValue(key=key, value=value) for key, value in topic.configs),
            )
            for topic in topics
        )

    return describing.Topology(
        epoch=i32(topology.epoch),
        subtopologies=tuple(
            describing.Subtopology(
                subtopology_id=one.subtopology_id,
                source_topics=one.source_topics,  # type: ignore[arg-type]
                repartition_sink_topics=one.repartition_sinks,  # type: ignore[arg-type]
                state_changelog_topics=internal(one.changelogs),
                repartition_source_topics=internal(one.repartition_sources),
            )
            for one in topology.subtopologies
        ),
    )


def _members(group: StreamsGroup) -> Iterator[describing.Member]:
    return (_member(group, one) for _, one in sorted(group.members.items()))


def _member(group: StreamsGroup, member: StreamsMember) -> describing.Member:
    endpoint = member.endpoint
    return describing.Member(
        member_id=member.member_id,
        member_epoch=i32(member.epoch),
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=i32(member.topology_epoch),
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else describing.Endpoint(host=endpoint[0], port=u16(endpoint[1])),
        client_tags=tuple(describing.KeyValue(key=key, value=value) for key, value in member.client_tags),
        task_offsets=(),
        task_end_offsets=(),
        assignment=_assignment(member.tasks),
        target_assignment=_assignment(group.targets.get(member.member_id, NO_TASKS)),
        is_classic=False,
    )


def _assignment(tasks: Tasks) -> describing.Assignment:
    return describing.Assignment(
        active_tasks=_task_ids(describing.TaskIds, tasks.active),
        standby_tasks=_task_ids(describing.TaskIds, tasks.standby),
        warmup_tasks=(),
    )
