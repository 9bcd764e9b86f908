"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, as a cluster of equals answers them.

Every broker serves every partition, and the store replicates. So no election is ever needed, the only assignment of a
partition is the one that Metadata shows, and no reassignment is ever in progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.alter_partition_reassignments.v1.response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import Slices
from tidegate.apis.topics import failure
from tidegate.cluster.errors import ElectionNotNeeded, NoReassignmentInProgress
from tidegate.cluster.placement import leader_of
from tidegate.errors import InvalidReplicaAssignment, InvalidRequest, KafkaError, UnknownTopicOrPartition
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.topics.catalog import Topic

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
    )
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

_UNCLEAN: Final = 1
"""The last kind of election: 0 elects the preferred replica, 1 any live one."""


async def _partition_of(call: Call, name: str, index: int) -> Topic:
    topic = await call.context.catalog.find(call.org, name)
    if topic is None or not 0 <= index < topic.partition_count:
        raise UnknownTopicOrPartition
    return topic


# -- ElectLeaders


@api(
    ApiKey.ELECT_LEADERS,
    first=0,
    last=2,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=error_responses.elect_leaders,
)
async def elect_leaders(call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """No partition needs an election (KIP-460). No topics (null): all partitions, of which only failures are listed."""
    if not 0 <= request.election_type <= _UNCLEAN:
        raise InvalidRequest(f"there is no election type {request.election_type}")
    results, slices = [], Slices()
    async for asked in slices.of(request.topic_partitions or ()):
        partitions = [await _elected(call, asked.topic, index) async for index in slices.of(asked.partitions)]
        results.append(ReplicaElectionResult(topic=asked.topic, partition_result=tuple(partitions)))
    return ElectLeadersResponse(
        throttle_time=NO_TIME, error_code=ErrorCode.none, replica_election_results=tuple(results)
    )


async def _elected(call: Call, name: str, index: int) -> PartitionResult:
    try:
        await _partition_of(call, name, index)
        raise ElectionNotNeeded("every broker serves the partition")
    except KafkaError as error:
        code, message = failure(error)
    values: dict[str, Any] = {"partition_id": index, "error_code": code, "error_message": message}
    return PartitionResult(**values)


# -- reassignments


@api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    first=0,
    last=1,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=error_responses.alter_partition_reassignments,
)
async def alter_partition_reassignments(
    call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Accept the replicas that a partition has; refuse others, and cancellations (null), with a reason (KIP-455)."""
    responses, slices = [], Slices()
    async for asked in slices.of(request.topics):
        partitions = [await _reassigned(call, asked.name, one) async for one in slices.of(asked.partitions)]
        responses.append(ReassignableTopicResponse(name=asked.name, partitions=tuple(partitions)))
    return AlterPartitionReassignmentsResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(responses),
    )


async def _reassigned(call: Call, name: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
    code, message = ErrorCode.none, None
    try:
        _check_replicas(call, await _partition_of(call, name, asked.partition_index), asked)
    except KafkaError as error:
        code, message = failure(error)
    values: dict[str, Any] = {"partition_index": asked.partition_index, "error_code": code, "error_message": message}
    return ReassignablePartitionResponse(**values)


def _check_replicas(call: Call, topic: Topic, asked: ReassignablePartition) -> None:
    """Raises NoReassignmentInProgress, InvalidReplicaAssignment."""
    if asked.replicas is None:
        raise NoReassignmentInProgress("brokers hold no replicas: nothing is being reassigned")
    brokers = call.context.broker_lease.nameable(call.client.listener)
    present = [leader_of(topic.topic_id, asked.partition_index, brokers).node_id] if brokers else []
    if list(asked.replicas) != present:
        raise InvalidReplicaAssignment(
            f"the replicas are {present}: every broker serves every partition, and the store replicates"
        )


@api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    first=0,
    last=0,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=at_top(topics=()),
)
async def list_partition_reassignments(
    call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """None is ever in progress (KIP-455)."""
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_TIME, error_code=ErrorCode.none, error_message=None, topics=()
    )
