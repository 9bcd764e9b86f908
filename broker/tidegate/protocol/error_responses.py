"""The response of each API when the whole request failed, in its newest shape."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from kio.schema.errors import ErrorCode

from tidegate.protocol.error_shapes import EPOCH, NO_TIME, as_named, at_top, each, per_partition
from tidegate.protocol.versions import Fields


def metadata(request: Any, code: ErrorCode) -> Any:
    """Put the error on each topic: only v13 has a top-level error code."""
    topics = tuple(
        Fields(
            topic,
            error_code=code,
            is_internal=False,
            partitions=(),
            topic_authorized_operations=-(1 << 31),
        )
        for topic in request.topics or ()
    )
    return Fields(throttle_time=NO_TIME, brokers=(), cluster_id=None, controller_id=-1, topics=topics, error_code=code)


def fetch(request: Any, code: ErrorCode) -> Any:
    """v7+ clients read the top-level error code; older ones only that of the partitions."""
    whole: Any = _FETCH_PARTITIONS(request, code)
    return Fields(whole, session_id=0, node_endpoints=(), responses=() if request.__version__ >= 7 else whole.responses)


def fetch_refusal(request: Any, code: ErrorCode) -> Any:
    """The error at every partition and none at the top: the answer to a part of a Fetch."""
    whole = _FETCH_PARTITIONS(request, code)
    partition_class = resolve_name(f"kio.schema.fetch.v{request.__version__}.response:PartitionData")
    tagged = [field for field in partition_class.__dataclass_fields__.values() if "tag" in field.metadata]
    for partition in (partition for topic in whole.responses for partition in topic.partitions):
        for field in tagged:
            setattr(partition, field.name, field.default)
    return Fields(whole, error_code=ErrorCode.none, session_id=0, node_endpoints=())


def offset_fetch_refusal(request: Any, code: ErrorCode) -> Any:
    """Of a denied topic: the error at each partition. Of a denied group: from v8 on only the group has it."""
    whole = offset_fetch(request, code)
    if code is ErrorCode.topic_authorization_failed:
        return Fields(whole, groups=tuple(Fields(group, error_code=ErrorCode.none) for group in whole.groups))
    if request.__version__ < 8:
        return whole
    return Fields(whole, groups=tuple(Fields(group, topics=()) for group in whole.groups))


def offset_fetch(request: Any, code: ErrorCode) -> Any:
    """Set the error on the group and on every partition: some clients check partitions only, and would lose offsets."""

    def group(asked: Any) -> Any:
        topics = tuple(
            Fields(
                topic,
                partitions=tuple(
                    Fields(
                        partition_index=index,
                        committed_offset=-1,
                        committed_leader_epoch=-1,
                        metadata="",
                        error_code=code,
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in asked.topics or ()
        )
        return Fields(group_id=asked.group_id, topics=topics, error_code=code)

    return Fields(throttle_time=NO_TIME, groups=tuple(group(asked) for asked in request.groups))


def find_coordinator(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        coordinators=tuple(
            Fields(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
            for key in request.coordinator_keys
        ),
    )


def join_group(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        error_code=code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id=request.member_id,
        members=(),
    )


def describe_groups(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        groups=tuple(
            Fields(
                error_code=code,
                error_message=None,
                group_id=group_id,
                group_state="",
                protocol_type="",
                protocol_data="",
                members=(),
                authorized_operations=-(1 << 31),
            )
            for group_id in request.groups
        ),
    )


def _describe_assigned_groups(**values: Any) -> Callable[[Any, ErrorCode], Any]:
    def build(request: Any, code: ErrorCode) -> Any:
        return Fields(
            throttle_time=NO_TIME,
            groups=tuple(
                Fields(
                    error_code=code,
                    error_message=None,
                    group_id=group_id,
                    group_state="",
                    group_epoch=0,
                    assignment_epoch=0,
                    members=(),
                    authorized_operations=-(1 << 31),
                    **values,
                )
                for group_id in request.group_ids
            ),
        )

    return build


describe_consumer_groups = _describe_assigned_groups(assignor_name="")
describe_streams_groups = _describe_assigned_groups(
    topology=None, topology_description=None, topology_description_status=0, assignor_name=None
)


def streams_group_heartbeat(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        error_code=code,
        error_message=None,
        member_id="",
        member_epoch=0,
        heartbeat_interval=NO_TIME,
        task_offset_interval=NO_TIME,
        acceptable_recovery_lag=-1 if request.__version__ > 0 else 0,
        status=(),
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        topology_description_required=False,
        endpoint_information_epoch=0,
        partitions_by_user_endpoint=None,
    )


def create_topics(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        topics=tuple(
            Fields(
                name=topic.name,
                topic_id=None,
                error_code=code,
                error_message=None,
                topic_config_error_code=0,
                num_partitions=-1,
                replication_factor=-1,
                configs=(),
            )
            for topic in request.topics
        ),
    )


def add_partitions_to_txn(request: Any, code: ErrorCode) -> Any:
    """There is an error code at the top from v4 on only."""

    def topic_results(transaction: Any) -> tuple[Any, ...]:
        return tuple(
            Fields(
                name=topic.name,
                results_by_partition=tuple(
                    Fields(partition_index=index, partition_error_code=code) for index in topic.partitions
                ),
            )
            for topic in transaction.topics
        )

    results = tuple(
        Fields(transactional_id=one.transactional_id, topic_results=topic_results(one)) for one in request.transactions
    )
    return Fields(throttle_time=NO_TIME, error_code=code, results_by_transaction=results)


def alter_users(request: Any, code: ErrorCode) -> Any:
    names = dict.fromkeys(change.name for change in (*request.deletions, *request.upsertions))
    results = tuple(Fields(user=name, error_code=code, error_message=None) for name in names)
    return Fields(throttle_time=NO_TIME, results=results)


def describe_users(request: Any, code: ErrorCode) -> Any:
    results = tuple(
        Fields(user=one.name, error_code=code, error_message=None, credential_infos=()) for one in request.users or ()
    )
    return Fields(throttle_time=NO_TIME, error_code=code, error_message=None, results=results)


def write_txn_markers(request: Any, code: ErrorCode) -> Any:
    def partitions(topic: Any) -> tuple[Any, ...]:
        return tuple(Fields(partition_index=index, error_code=code) for index in topic.partition_indexes)

    return Fields(
        markers=tuple(
            Fields(
                producer_id=marker.producer_id,
                topics=tuple(Fields(name=topic.name, partitions=partitions(topic)) for topic in marker.topics),
            )
            for marker in request.markers
        )
    )


def alter_replica_log_dirs(request: Any, code: ErrorCode) -> Any:
    results = tuple(
        Fields(
            topic_name=topic.name,
            partitions=tuple(Fields(partition_index=index, error_code=code) for index in topic.partitions),
        )
        for one in request.dirs
        for topic in one.topics
    )
    return Fields(throttle_time=NO_TIME, results=results)


def describe_log_dirs(request: Any, code: ErrorCode) -> Any:
    """There is an error code at the top from v3 on; before, a directory without a name has it."""
    result = Fields(error_code=code, log_dir="", topics=(), total_bytes=-1, usable_bytes=-1, is_cordoned=False)
    results = (result,) if request.__version__ < 3 else ()
    return Fields(throttle_time=NO_TIME, error_code=code, results=results)


def elect_leaders(request: Any, code: ErrorCode) -> Any:
    results = tuple(
        Fields(
            topic=asked.topic,
            partition_result=tuple(
                Fields(partition_id=index, error_code=code, error_message=None) for index in asked.partitions
            ),
        )
        for asked in request.topic_partitions or ()
    )
    return Fields(throttle_time=NO_TIME, error_code=code, replica_election_results=results)


def describe_topic_partitions(request: Any, code: ErrorCode) -> Any:
    topics = tuple(
        Fields(
            name=topic.name,
            error_code=code,
            topic_id=None,
            is_internal=False,
            partitions=(),
            topic_authorized_operations=-(1 << 31),
        )
        for topic in request.topics
    )
    return Fields(throttle_time=NO_TIME, topics=topics, next_cursor=None)


def describe_producers(request: Any, code: ErrorCode) -> Any:
    def partitions(topic: Any) -> tuple[Any, ...]:
        return tuple(
            Fields(partition_index=index, error_code=code, error_message=None, active_producers=())
            for index in topic.partition_indexes
        )

    topics = tuple(Fields(name=topic.name, partitions=partitions(topic)) for topic in request.topics)
    return Fields(throttle_time=NO_TIME, topics=topics)


def describe_transactions(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        transaction_states=tuple(
            Fields(
                error_code=code,
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout=NO_TIME,
                transaction_start_time=EPOCH,
                producer_id=0,
                producer_epoch=0,
                topics=(),
            )
            for transactional_id in request.transactional_ids
        ),
    )


def alter_partition_reassignments(request: Any, code: ErrorCode) -> Any:
    whole = _REASSIGNED_PARTITIONS(request, code)
    return Fields(whole, error_message=None, allow_replication_factor_change=True)


def produce(request: Any, code: ErrorCode) -> Any:
    """From v10 on a partition has a `current_leader`; set its default."""
    whole = _PRODUCE_PARTITIONS(request, code)
    partition_class = resolve_name(f"kio.schema.produce.v{request.__version__}.response:PartitionProduceResponse")
    leader = partition_class.__dataclass_fields__.get("current_leader")
    for topic in whole.responses if leader is not None else ():
        for partition in topic.partition_responses:
            partition.current_leader = leader.default
    return Fields(whole, node_endpoints=())


_PRODUCE_PARTITIONS = per_partition(
    "topic_data",
    "partition_data",
    "index",
    "responses",
    "index",
    "partition_responses",
    base_offset=-1,
    log_append_time=None,
    log_start_offset=-1,
    record_errors=(),
    error_message=None,
)
_FETCH_PARTITIONS = per_partition(
    "topics",
    "partitions",
    "partition",
    "responses",
    "partition_index",
    "partitions",
    high_watermark=-1,
    last_stable_offset=-1,
    log_start_offset=-1,
    aborted_transactions=None,
    preferred_read_replica=-1,
    records=b"",
)
list_offsets = per_partition(
    "topics",
    "partitions",
    "partition_index",
    "topics",
    "partition_index",
    "partitions",
    timestamp=-1,
    offset=-1,
    leader_epoch=-1,
)
offset_commit = per_partition("topics", "partitions", "partition_index", "topics", "partition_index", "partitions")
offset_delete_refusal = per_partition(
    "topics", "partitions", "partition_index", "topics", "partition_index", "partitions"
)
"""The answer to a part of an OffsetDelete."""
_REASSIGNED_PARTITIONS = per_partition(
    "topics", "partitions", "partition_index", "responses", "partition_index", "partitions", error_message=None
)
delete_topics = each("topics", "responses", as_named)
delete_records = per_partition(
    "topics", "partitions", "partition_index", "topics", "partition_index", "partitions", low_watermark=-1
)
offset_for_leader_epoch = per_partition(
    "topics", "partitions", "partition", "topics", "partition", "partitions", leader_epoch=-1, end_offset=-1
)
txn_offset_commit = per_partition("topics", "partitions", "partition_index", "topics", "partition_index", "partitions")
create_acls = each("creations", "results", lambda creation: None)
delete_acls = each("filters", "filter_results", lambda one: Fields(matching_acls=()))
describe_configs = each("resources", "results", lambda resource: Fields(resource, configs=()))
alter_configs = each("resources", "responses", as_named)
create_partitions = each("topics", "results", lambda topic: Fields(name=topic.name))
delete_groups = each("groups_names", "results", lambda group_id: Fields(group_id=group_id, error_message=None))
incremental_alter_configs = each("resources", "responses", as_named)
alter_client_quotas = each("entries", "entries", lambda entry: Fields(entity=entry.entity))
describe_share_group_offsets = each("groups", "groups", lambda group: Fields(group_id=group.group_id, topics=()))
share_records = at_top(acquisition_lock_timeout=NO_TIME, responses=(), node_endpoints=())
