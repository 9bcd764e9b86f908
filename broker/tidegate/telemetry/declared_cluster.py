"""Every metric of the whole cluster, exported by one broker at a time: groups, topics, Redis; and foreign names.

All are gauges of the last sampling round. Topic and group names are labels here, bounded by `metrics_groups_max` and
`metrics_partitions_max`.
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
    "tidegate_group_lag_records", "Offsets from the committed one, or the log's start, to its end.", *_PARTITION
)
LAG_SECONDS: Final = _gauge(
    "tidegate_group_lag_seconds", "Age of the oldest record that is not committed; 0 where all are.", *_PARTITION
)
COMMITTED_OFFSET: Final = _gauge("tidegate_group_committed_offset", "What the group has committed.", *_PARTITION)
TOPIC_LAG_RECORDS: Final = _gauge("tidegate_group_topic_lag_records", "Lag of all partitions together.", *_TOPIC)
TOPIC_LAG_SECONDS: Final = _gauge("tidegate_group_topic_lag_seconds", "Lag of the worst partition.", *_TOPIC)
DRAIN_SECONDS: Final = _gauge(
    "tidegate_group_drain_seconds",
    "When lag is gone if consuming and producing go on as in the last minute; +Inf where it does not shrink.",
    *_TOPIC,
)
MEMBERS: Final = _gauge("tidegate_group_members", "Members of the group.", *_GROUP)
MEMBERS_MISSING: Final = _gauge(
    "tidegate_group_members_missing", "Members that a barrier waits for: to join, or to sync.", *_GROUP
)
GENERATION: Final = _gauge(
    "tidegate_group_generation", "The group's generation: it grows with each rebalance.", *_GROUP
)
STATE_SECONDS: Final = _gauge(
    "tidegate_group_state_seconds", "How long the group has been in the state that it is in.", *_GROUP, "state"
)
UNCOMMITTED_PARTITIONS: Final = _gauge(
    "tidegate_group_uncommitted_partitions", "Partitions that members own and nothing is committed for.", *_GROUP
)
GROUPS: Final = _gauge("tidegate_groups", "Groups in a state.", "org", "state")

# -- topics
PARTITION_START: Final = _gauge(
    "tidegate_partition_log_start_offset", "The first offset that is there.", "org", "topic", "partition"
)
PARTITION_END: Final = _gauge(
    "tidegate_partition_log_end_offset", "The next offset to be written.", "org", "topic", "partition"
)
ARCHIVE_END: Final = _gauge(
    "tidegate_partition_archive_end_offset",
    "Up to which offset the archive has a topic of two tiers.",
    "org", "topic", "partition",
)  # fmt: skip
TOPIC_PARTITIONS: Final = _gauge("tidegate_topic_partitions", "Partitions of a topic.", "org", "topic")
TOPIC_REDIS_BYTES: Final = _gauge(
    "tidegate_topic_redis_bytes", "Bytes of record batches of a topic in Redis, as brokers estimate.", "org", "topic"
)
ORG_REDIS_BYTES: Final = _gauge(
    "tidegate_org_redis_bytes", "Bytes of record batches of all topics of an organisation in Redis.", "org"
)

# -- Redis itself
REDIS_MEMORY_USED: Final = _gauge("tidegate_redis_memory_used_bytes", "What Redis says it uses.", "server")
REDIS_MEMORY_MAX: Final = _gauge("tidegate_redis_memory_max_bytes", "maxmemory; 0 is without limit.", "server")
REDIS_MAY_EVICT: Final = _gauge(
    "tidegate_redis_may_evict", "1 where maxmemory-policy is not noeviction: data will be lost.", "server"
)
REDIS_EVICTED: Final = _gauge("tidegate_redis_evicted_keys", "Keys that Redis evicted since its start.", "server")
REDIS_AOF: Final = _gauge("tidegate_redis_aof_enabled", "Whether Redis writes an append-only file.", "server")
REDIS_PERSISTENCE_OK: Final = _gauge(
    "tidegate_redis_persistence_ok", "0 where the last write of the append-only file or snapshot failed.", "server"
)
REDIS_UNSAVED: Final = _gauge(
    "tidegate_redis_unsaved_changes", "Changes since the last snapshot: what a crash loses without an AOF.",
    "server",
)  # fmt: skip
REDIS_REPLICAS: Final = _gauge("tidegate_redis_replicas", "Replicas that are connected to the primary.", "server")
REDIS_CLIENTS: Final = _gauge("tidegate_redis_clients", "Connections that Redis has.", "server")

# -- the exporter itself
LEFT_OUT: Final = _gauge(
    "tidegate_series_left_out", "Groups and partitions (of groups, of topics) beyond the most that are told.", "what"
)
CLUSTER_SAMPLED: Final = _gauge(
    "tidegate_cluster_sampled_timestamp_seconds", "When the round began that this tells of."
)

GROUP_FAMILIES: Final = (
    LAG_RECORDS, LAG_SECONDS, COMMITTED_OFFSET, TOPIC_LAG_RECORDS, TOPIC_LAG_SECONDS, DRAIN_SECONDS, MEMBERS,
    MEMBERS_MISSING, GENERATION, STATE_SECONDS, UNCOMMITTED_PARTITIONS, GROUPS,
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
