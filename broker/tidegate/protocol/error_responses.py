"""The response of each API when the whole request failed, in its newest shape."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.protocol.versions import Fields

NO_TIME: Final = datetime.timedelta(0)


def error_response(api_key: int, request: Any, code: ErrorCode) -> Any:
    """The API's newest response to a request that failed as a whole, with `code` in every field that clients check."""
    return _ERRORS[api_key](request, code)


def _at_top(**values: Any) -> Callable[[Any, ErrorCode], Any]:
    """A response with a top-level error code and empty arrays."""

    def build(request: Any, code: ErrorCode) -> Any:
        return Fields(throttle_time=NO_TIME, error_code=code, error_message=None, **values)

    return build


def _per_partition(
    topics: str, partitions: str, index: str, answer: str, answer_index: str, results: str, **values: Any
) -> Callable[[Any, ErrorCode], Any]:
    """A response that repeats the error for every requested partition."""

    def build(request: Any, code: ErrorCode) -> Any:
        return Fields(
            throttle_time=NO_TIME,
            error_code=code,
            **{
                answer: tuple(
                    Fields(
                        topic,
                        **{
                            results: tuple(
                                Fields(None, error_code=code, **{answer_index: getattr(partition, index)}, **values)
                                for partition in getattr(topic, partitions)
                            )
                        },
                    )
                    for topic in getattr(request, topics)
                )
            },
        )

    return build


def _metadata(request: Any, code: ErrorCode) -> Any:
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


def _fetch(request: Any, code: ErrorCode) -> Any:
    """v7+ clients read the top-level error code; older ones only that of the partitions."""
    whole: Any = _FETCH_PARTITIONS(request, code)
    return Fields(whole, session_id=0, node_endpoints=(), responses=() if request.__version__ >= 7 else whole.responses)


def _offset_fetch(request: Any, code: ErrorCode) -> Any:
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


def _find_coordinator(request: Any, code: ErrorCode) -> Any:
    return Fields(
        throttle_time=NO_TIME,
        coordinators=tuple(
            Fields(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
            for key in request.coordinator_keys
        ),
    )


def _join_group(request: Any, code: ErrorCode) -> Any:
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


def _describe_groups(request: Any, code: ErrorCode) -> Any:
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


def _create_topics(request: Any, code: ErrorCode) -> Any:
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
                configs=None,
            )
            for topic in request.topics
        ),
    )


def _delete_topics(request: Any, code: ErrorCode) -> Any:
    responses = tuple(Fields(topic, error_code=code, error_message=None) for topic in request.topics)
    return Fields(throttle_time=NO_TIME, responses=responses)


def _create_partitions(request: Any, code: ErrorCode) -> Any:
    results = tuple(Fields(name=topic.name, error_code=code, error_message=None) for topic in request.topics)
    return Fields(throttle_time=NO_TIME, results=results)


def _describe_configs(request: Any, code: ErrorCode) -> Any:
    results = tuple(Fields(resource, error_code=code, error_message=None, configs=()) for resource in request.resources)
    return Fields(throttle_time=NO_TIME, results=results)


def _alter_configs(request: Any, code: ErrorCode) -> Any:
    responses = tuple(Fields(resource, error_code=code, error_message=None) for resource in request.resources)
    return Fields(throttle_time=NO_TIME, responses=responses)


def _delete_groups(request: Any, code: ErrorCode) -> Any:
    results = tuple(Fields(group_id=group_id, error_code=code) for group_id in request.groups_names)
    return Fields(throttle_time=NO_TIME, results=results)


def _produce(request: Any, code: ErrorCode) -> Any:
    """From v10 on a partition has a `current_leader`; set its default."""
    whole = _PRODUCE_PARTITIONS(request, code)
    partition_class = resolve_name(f"kio.schema.produce.v{request.__version__}.response:PartitionProduceResponse")
    leader = partition_class.__dataclass_fields__.get("current_leader")
    for topic in whole.responses if leader is not None else ():
        for partition in topic.partition_responses:
            partition.current_leader = leader.default
    return Fields(whole, node_endpoints=())


_PRODUCE_PARTITIONS = _per_partition(
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
_FETCH_PARTITIONS = _per_partition(
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
_ERRORS: Final[dict[int, Callable[[Any, ErrorCode], Any]]] = {
    0: _produce,
    1: _fetch,
    2: _per_partition(
        "topics",
        "partitions",
        "partition_index",
        "topics",
        "partition_index",
        "partitions",
        timestamp=-1,
        offset=-1,
        leader_epoch=-1,
    ),
    3: _metadata,
    8: _per_partition("topics", "partitions", "partition_index", "topics", "partition_index", "partitions"),
    9: _offset_fetch,
    10: _find_coordinator,
    11: _join_group,
    12: _at_top(),
    13: _at_top(members=()),
    14: _at_top(protocol_type=None, protocol_name=None, assignment=b""),
    15: _describe_groups,
    16: _at_top(groups=()),
    18: _at_top(
        api_keys=(), supported_features=(), finalized_features_epoch=-1, finalized_features=(), zk_migration_ready=False
    ),
    19: _create_topics,
    20: _delete_topics,
    22: _at_top(producer_id=-1, producer_epoch=-1),
    23: _per_partition(
        "topics", "partitions", "partition", "topics", "partition", "partitions", leader_epoch=-1, end_offset=-1
    ),
    32: _describe_configs,
    33: _alter_configs,
    37: _create_partitions,
    42: _delete_groups,
    44: _alter_configs,
    47: _at_top(topics=()),
    60: _at_top(endpoint_type=1, cluster_id="", controller_id=-1, brokers=(), cluster_authorized_operations=-(1 << 31)),
}
