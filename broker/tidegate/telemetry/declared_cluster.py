"""Every metric of the whole cluster, exported by one broker at a time: groups, topics, Redis; and foreign names.

All are gauges of the last sampling round. Topic and group names are labels here, bounded by `metrics_groups_max` and
ten times as many partitions.
"""

from __future__ import annotations

from typing import Final

from tidegate.telemetry.declared import Declared


def _gauge(name: str, help_: str, *labels: str) -> Declared:
    return Declared(name, "gauge", help_, labels)


# -- groups
_GROUP: Final = ("org", "group")
_TOPIC: Final = (*_GROUP, "topic")
_PARTITION: Final = (*_TOPIC, "partition")

LAG_RECORDS: Final = _gauge(
    "tidegate_group_lag_records",
    "Offsets between the committed offset, or the log start, and the log end; of a share group: unfinished records.",
    *_PARTITION,
)
LAG_SECONDS: Final = _gauge(
    "tidegate_group_lag_seconds", "Age of the oldest uncommitted record; 0 without one.", *_PARTITION
)
COMMITTED_OFFSET: Final = _gauge(
    "tidegate_group_committed_offset", "Committed offset; of a share group: start offset.", *_PARTITION
)
TOPIC_LAG_RECORDS: Final = _gauge("tidegate_group_topic_lag_records", "Sum of the lag of all partitions.", *_TOPIC)
TOPIC_LAG_SECONDS: Final = _gauge("tidegate_group_topic_lag_seconds", "Maximum lag of a partition.", *_TOPIC)
DRAIN_SECONDS: Final = _gauge(
    "tidegate_group_drain_seconds",
    "Time until lag is 0 at the rates of the last minute; +Inf if lag does not shrink.",
    *_TOPIC,
)
MEMBERS: Final = _gauge("tidegate_group_members", "Members of the group.", *_GROUP)
MEMBERS_MISSING: Final = _gauge(
    "tidegate_group_members_missing", "Members that the current rebalance waits for, to join or to sync.", *_GROUP
)
GENERATION: Final = _gauge("tidegate_group_generation", "Generation; it increases with each rebalance.", *_GROUP)
STATE_SECONDS: Final = _gauge(
    "tidegate_group_state_seconds", "Time since the group entered its current state.", *_GROUP, "state"
)
UNCOMMITTED_PARTITIONS: Final = _gauge(
    "tidegate_group_uncommitted_partitions", "Assigned partitions without a committed offset.", *_GROUP
)
SHARE_IN_FLIGHT: Final = _gauge(
    "tidegate_share_group_records_in_flight", "Records of a share-partition that members have acquired.", *_PARTITION
)
SHARE_RETURNED: Final = _gauge(
    "tidegate_share_group_records_returned",
    "Records of a share-partition that were delivered and wait for another delivery.",
    *_PARTITION,
)
SHARE_REDELIVERED: Final = _gauge(
    "tidegate_share_group_redelivered_records",
    "Deliveries that were not the first of their record, since the start offset was set.",
    *_PARTITION,
)
SHARE_FAILED: Final = _gauge(
    "tidegate_share_group_failed_records",
    "Records that were rejected, or whose last delivery failed, since the start offset was set.",
    *_PARTITION,
)
SHARE_DEAD_LETTERED: Final = _gauge(
    "tidegate_share_group_dead_lettered_records",
    "Failed records that were written to the dead-letter topic, since the start offset was set.",
    *_PARTITION,
)
SHARE_DROPPED: Final = _gauge(
    "tidegate_share_group_dropped_records",
    "Failed records that the dead-letter topic did not take, since the start offset was set.",
    *_PARTITION,
)
GROUPS: Final = _gauge("tidegate_groups", "Number of groups, by state.", "org", "state")

# -- topics
PARTITION_START: Final = _gauge("tidegate_partition_log_start_offset", "Log start offset.", "org", "topic", "partition")
PARTITION_END: Final = _gauge("tidegate_partition_log_end_offset", "Log end offset.", "org", "topic", "partition")
ARCHIVE_END: Final = _gauge(
    "tidegate_partition_archive_end_offset",
    "End offset of the archived records of a topic with remote.storage.enable, without remote.log.copy.disable; 0 if "
    "none are archived.",
    "org", "topic", "partition",
)  # fmt: skip
TOPIC_PARTITIONS: Final = _gauge("tidegate_topic_partitions", "Partitions of a topic.", "org", "topic")
TOPIC_REDIS_BYTES: Final = _gauge(
    "tidegate_topic_redis_bytes", "Estimated bytes of record batches of a topic in Redis.", "org", "topic"
)
ORG_REDIS_BYTES: Final = _gauge(
    "tidegate_org_redis_bytes", "Bytes of record batches of all topics of an organisation in Redis.", "org"
)

# -- Redis itself
REDIS_MEMORY_USED: Final = _gauge("tidegate_redis_memory_used_bytes", "used_memory of Redis.", "server")
REDIS_MEMORY_MAX: Final = _gauge("tidegate_redis_memory_max_bytes", "maxmemory of Redis; 0 means no limit.", "server")
REDIS_MAY_EVICT: Final = _gauge(
    "tidegate_redis_may_evict", "1 if maxmemory-policy is not noeviction, so that data may be lost.", "server"
)
REDIS_EVICTED: Final = _gauge("tidegate_redis_evicted_keys", "Keys evicted by Redis since its start.", "server")
REDIS_AOF: Final = _gauge("tidegate_redis_aof_enabled", "1 if Redis writes an append-only file.", "server")
REDIS_PERSISTENCE_OK: Final = _gauge(
    "tidegate_redis_persistence_ok", "0 if the last write of the append-only file or snapshot failed.", "server"
)
REDIS_UNSAVED: Final = _gauge(
    "tidegate_redis_unsaved_changes",
    "Changes since the last snapshot; without an append-only file a crash loses them.",
    "server",
)  # fmt: skip
REDIS_REPLICAS: Final = _gauge("tidegate_redis_replicas", "Connected replicas.", "server")
REDIS_CLIENTS: Final = _gauge("tidegate_redis_clients", "Client connections of Redis.", "server")

# -- the exporter itself
LEFT_OUT: Final = _gauge(
    "tidegate_series_left_out",
    "Groups and partitions (of groups, of topics) above the limits, and groups, partitions and indices of shards that "
    "cannot be read (`unreadable_...`), which are not exported.",
    "what",
)
CLUSTER_SAMPLED: Final = _gauge(
    "tidegate_cluster_sampled_timestamp_seconds", "Start time of the sampling round of these values."
)

GROUP_FAMILIES: Final = (
    LAG_RECORDS, LAG_SECONDS, COMMITTED_OFFSET, TOPIC_LAG_RECORDS, TOPIC_LAG_SECONDS, DRAIN_SECONDS, MEMBERS,
    MEMBERS_MISSING, GENERATION, STATE_SECONDS, UNCOMMITTED_PARTITIONS, SHARE_IN_FLIGHT, SHARE_RETURNED,
    SHARE_REDELIVERED, SHARE_FAILED, SHARE_DEAD_LETTERED, SHARE_DROPPED, GROUPS,
)  # fmt: skip
TOPIC_FAMILIES: Final = (
    PARTITION_START, PARTITION_END, ARCHIVE_END, TOPIC_PARTITIONS, TOPIC_REDIS_BYTES, ORG_REDIS_BYTES,
)  # fmt: skip
REDIS_FAMILIES: Final = (
    REDIS_MEMORY_USED, REDIS_MEMORY_MAX, REDIS_MAY_EVICT, REDIS_EVICTED, REDIS_AOF, REDIS_PERSISTENCE_OK,
    REDIS_UNSAVED, REDIS_REPLICAS, REDIS_CLIENTS,
)  # fmt: skip
CLUSTER: Final = (*GROUP_FAMILIES, *TOPIC_FAMILIES, *REDIS_FAMILIES, LEFT_OUT, CLUSTER_SAMPLED)
"""All cluster metrics under Tidegate's names, in the order of docs/metrics.md."""
