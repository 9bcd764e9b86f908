"""Group and topic metrics under the names of other exporters, for existing dashboards, alerts and scalers.

Names, labels and meaning follow danielqsj/kafka_exporter (kafka_exporter.go) and redpanda-data/kminion
(prometheus/exporter.go); metrics without a counterpart here are omitted.
"""

from __future__ import annotations

from typing import Final

from tidegate.telemetry.declared import Declared


def _gauge(name: str, help_: str, *labels: str) -> Declared:
    return Declared(name, "gauge", help_, labels)


# -- kafka_exporter
_KE_PLACE: Final = ("topic", "partition")
_KE_GROUP: Final = ("consumergroup", "topic", "partition")

KE_BROKERS: Final = _gauge("kafka_brokers", "Number of brokers in the cluster.")
KE_BROKER_INFO: Final = _gauge("kafka_broker_info", "A broker.", "id", "address")
KE_TOPIC_PARTITIONS: Final = _gauge("kafka_topic_partitions", "Partitions of a topic.", "topic")
KE_CURRENT: Final = _gauge("kafka_topic_partition_current_offset", "Next offset of a partition.", *_KE_PLACE)
KE_OLDEST: Final = _gauge("kafka_topic_partition_oldest_offset", "First offset of a partition.", *_KE_PLACE)
KE_LEADER: Final = _gauge("kafka_topic_partition_leader", "Broker named as leader of a partition.", *_KE_PLACE)
KE_REPLICAS: Final = _gauge("kafka_topic_partition_replicas", "1: Redis keeps the copies.", *_KE_PLACE)
KE_IN_SYNC: Final = _gauge("kafka_topic_partition_in_sync_replica", "1: Redis keeps the copies.", *_KE_PLACE)
KE_PREFERRED: Final = _gauge(
    "kafka_topic_partition_leader_is_preferred", "1: the leader named is the first replica.", *_KE_PLACE
)
KE_UNDER_REPLICATED: Final = _gauge(
    "kafka_topic_partition_under_replicated_partition", "0: Redis keeps the copies.", *_KE_PLACE
)
KE_COMMITTED: Final = _gauge(
    "kafka_consumergroup_current_offset", "Committed offset; -1 where the group has none of that partition.", *_KE_GROUP
)
KE_COMMITTED_SUM: Final = _gauge(
    "kafka_consumergroup_current_offset_sum", "Those of all partitions together.", "consumergroup", "topic"
)
KE_LAG: Final = _gauge(
    "kafka_consumergroup_lag", "Lag in records; -1 where nothing is committed for that partition.", *_KE_GROUP
)
KE_LAG_SUM: Final = _gauge("kafka_consumergroup_lag_sum", "Lag of all partitions together.", "consumergroup", "topic")
KE_MEMBERS: Final = _gauge("kafka_consumergroup_members", "Members of a group.", "consumergroup")

KAFKA_EXPORTER: Final = (
    KE_BROKERS, KE_BROKER_INFO, KE_TOPIC_PARTITIONS, KE_CURRENT, KE_OLDEST, KE_LEADER, KE_REPLICAS, KE_IN_SYNC,
    KE_PREFERRED, KE_UNDER_REPLICATED, KE_COMMITTED, KE_COMMITTED_SUM, KE_LAG, KE_LAG_SUM, KE_MEMBERS,
)  # fmt: skip

# -- kminion
_KM_PLACE: Final = ("topic_name", "partition_id")
_KM_BROKER: Final = ("broker_id", "address", "port", "rack_id")

KM_UP: Final = _gauge("kminion_exporter_up", "1.", "version")
KM_CLUSTER_INFO: Final = _gauge(
    "kminion_kafka_cluster_info", "The cluster.", "cluster_version", "broker_count", "controller_id", "cluster_id"
)
KM_BROKER_INFO: Final = _gauge("kminion_kafka_broker_info", "A broker.", *_KM_BROKER, "is_controller")
KM_BROKER_BYTES: Final = _gauge(
    "kminion_kafka_broker_log_dir_size_total_bytes", "Bytes in Redis of partitions that name this leader.", *_KM_BROKER
)
KM_TOPIC_BYTES: Final = _gauge(
    "kminion_kafka_topic_log_dir_size_total_bytes", "Bytes in Redis of a topic's partitions.", "topic_name"
)
KM_TOPIC_INFO: Final = _gauge(
    "kminion_kafka_topic_info", "A topic.", "topic_name", "partition_count", "replication_factor", "cleanup_policy"
)
KM_LOW: Final = _gauge("kminion_kafka_topic_partition_low_water_mark", "First offset of a partition.", *_KM_PLACE)
KM_LOW_SUM: Final = _gauge("kminion_kafka_topic_low_water_mark_sum", "Those of all partitions.", "topic_name")
KM_HIGH: Final = _gauge("kminion_kafka_topic_partition_high_water_mark", "Next offset of a partition.", *_KM_PLACE)
KM_HIGH_SUM: Final = _gauge("kminion_kafka_topic_high_water_mark_sum", "Those of all partitions.", "topic_name")
KM_GROUP_INFO: Final = _gauge(
    "kminion_kafka_consumer_group_info", "1 where the group is Stable.",
    "group_id", "protocol", "protocol_type", "state", "coordinator_id",
)  # fmt: skip
KM_MEMBERS: Final = _gauge("kminion_kafka_consumer_group_members", "Members of a group.", "group_id")
KM_EMPTY_MEMBERS: Final = _gauge(
    "kminion_kafka_consumer_group_empty_members", "Members without a partition.", "group_id"
)
KM_TOPIC_MEMBERS: Final = _gauge(
    "kminion_kafka_consumer_group_topic_members", "Members with partitions of a topic.", "group_id", "topic_name"
)
KM_ASSIGNED: Final = _gauge(
    "kminion_kafka_consumer_group_topic_assigned_partitions", "Partitions of a topic that members have.",
    "group_id", "topic_name",
)  # fmt: skip
KM_OFFSET_SUM: Final = _gauge(
    "kminion_kafka_consumer_group_topic_offset_sum", "Committed offsets of a topic together.", "group_id", "topic_name"
)
KM_LAG: Final = _gauge(
    "kminion_kafka_consumer_group_topic_partition_lag", "Lag in records.", "group_id", "topic_name", "partition_id"
)
KM_TOPIC_LAG: Final = _gauge(
    "kminion_kafka_consumer_group_topic_lag", "Lag of all partitions together.", "group_id", "topic_name"
)

KMINION: Final = (
    KM_UP, KM_CLUSTER_INFO, KM_BROKER_INFO, KM_BROKER_BYTES, KM_TOPIC_BYTES, KM_TOPIC_INFO, KM_LOW, KM_LOW_SUM,
    KM_HIGH, KM_HIGH_SUM, KM_GROUP_INFO, KM_MEMBERS, KM_EMPTY_MEMBERS, KM_TOPIC_MEMBERS, KM_ASSIGNED, KM_OFFSET_SUM,
    KM_LAG, KM_TOPIC_LAG,
)  # fmt: skip
