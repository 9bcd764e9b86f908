"""One call of every API that access control judges, about the resources of one user.

What a call answers beyond rights (a generation that is not the group's, a producer id that is not the transaction's) is
the same at both targets because both have the same resources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from tests.kit.wire import request
from tidegate.protocol.api_keys import ApiKey
from tidegate.records.build import NewRecord, build_batch

_WAIT: Final = timedelta(seconds=10)
_SHORT: Final = timedelta(milliseconds=10)
_BATCH: Final = build_batch([NewRecord(b"v", b"k", 1_700_000_000_000)])
_TOPIC, _GROUP, _BROKER = 2, 32, 4
"""Kinds of config resources."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one user's calls are about; `topic_id` is of `topic`, or of no topic."""

    topic: str
    group: str
    transactional_id: str
    topic_id: UUID

    @property
    def group_with_members(self) -> str:
        """A consumer group of KIP-848 whose member has the topic."""
        return f"{self.group}.members"


Build = Callable[[Resources], Any]


@dataclass(frozen=True, slots=True)
class CallOfApi:
    """A request of an API. `names` are compared too: what is filtered instead of refused."""

    name: str
    build: Build
    names: bool = False


def _part(**values: Any) -> dict[str, Any]:
    return values


def _config(of: Resources, kind: int) -> str:
    return {_TOPIC: of.topic, _GROUP: of.group, _BROKER: "1"}[kind]


def _incremental(kind: int, key: str, value: str) -> Build:
    def build(of: Resources) -> Any:
        config = _part(name=key, config_operation=0, value=value)
        resource = _part(resource_type=kind, resource_name=_config(of, kind), configs=[config])
        return request(44, 1, resources=[resource], validate_only=True)

    return build


def _describe_configs(kind: int) -> Build:
    def build(of: Resources) -> Any:
        resource = _part(
            resource_type=kind,
            resource_name=_config(of, kind),
            configuration_keys=["retention.ms"],
        )
        return request(32, 4, resources=[resource])

    return build


def _metadata(of: Resources, *, every: bool = False, by_id: bool = False) -> Any:
    name = None if by_id else of.topic
    topics = None if every else [_part(topic_id=of.topic_id if by_id else None, name=name)]
    return request(
        3, 12, topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=True
    )  # fmt: skip


def _fetch(of: Resources) -> Any:
    partition = _part(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topic = _part(topic_id=of.topic_id, partitions=[partition])
    return request(1, 13, max_wait=_SHORT, min_bytes=0, session_epoch=-1, topics=[topic], forgotten_topics_data=[])


def _commit_topic(of: Resources) -> dict[str, Any]:
    partition = _part(partition_index=0, committed_offset=1, committed_metadata="")
    return _part(name=of.topic, partitions=[partition])


def _offset_fetch(of: Resources, *, every: bool) -> Any:
    topics = None if every else [_part(name=of.topic, partition_indexes=[0])]
    return request(9, 8, groups=[_part(group_id=of.group, topics=topics)])


def _heartbeat_848(of: Resources) -> Any:
    return request(
        68, 1, group_id=of.group, member_id="A" * 22, member_epoch=5, rebalance_timeout=_WAIT,
        subscribed_topic_names=[of.topic], topic_partitions=[],
    )  # fmt: skip


def _streams(of: Resources) -> Any:
    subtopology = _part(
        subtopology_id="0", source_topics=[of.topic], state_changelog_topics=[],
        repartition_source_topics=[], copartition_groups=[],
    )  # fmt: skip
    return request(
        88, 0, group_id=of.group, member_id="A" * 22, member_epoch=5, endpoint_information_epoch=0,
        rebalance_timeout=_WAIT, topology=_part(epoch=0, subtopologies=[subtopology]),
        active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id="p", client_tags=[], task_offsets=[],
        task_end_offsets=[],
    )  # fmt: skip


def _join(of: Resources) -> Any:
    protocol = _part(name="range", metadata=b"")
    return request(
        11, 9, group_id=of.group, session_timeout=_WAIT, rebalance_timeout=_WAIT, member_id="nobody",
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip


def _add_partitions(of: Resources) -> Any:
    # v3, as clients send it; v4 is the brokers' own.
    topic = _part(name=of.topic, partitions=[0])
    return request(
        24, 3, v3_and_below_transactional_id=of.transactional_id, v3_and_below_producer_id=999_999,
        v3_and_below_producer_epoch=0, v3_and_below_topics=[topic],
    )  # fmt: skip


def _txn_offset_commit(of: Resources) -> Any:
    return request(
        28, 3, transactional_id=of.transactional_id, group_id=of.group, producer_id=999_999, producer_epoch=0,
        topics=[_commit_topic(of)],
    )  # fmt: skip


def _acl_filter() -> dict[str, Any]:
    return {
        "resource_type_filter": 2, "resource_name_filter": "of-nobody", "pattern_type_filter": 3,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip


def _creation(of: Resources) -> dict[str, Any]:
    return _part(
        resource_type=2, resource_name=f"{of.topic}-x", principal="User:of-nobody", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip


def _creatable(of: Resources) -> dict[str, Any]:
    return _part(
        name=of.topic, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )  # fmt: skip


def _produce(transactional: bool) -> Build:
    def build(of: Resources) -> Any:
        partition = _part(index=0, records=_BATCH)
        topic = _part(name=of.topic, partition_data=[partition])
        name = of.transactional_id if transactional else None
        return request(0, 9, transactional_id=name, acks=-1, timeout=_WAIT, topic_data=[topic])

    return build


def _find(key_type: int) -> Build:
    return lambda of: request(10, 4, key_type=key_type, coordinator_keys=[(of.group, of.transactional_id)[key_type]])


def _named(field: str = "name", **more: Any) -> Callable[[Resources], dict[str, Any]]:
    return lambda of: _part(**{field: of.topic}, **more)


def _share_fetch(of: Resources) -> Any:
    return request(
        78, 1, group_id=of.group, member_id="A" * 22, share_session_epoch=3, max_wait=_SHORT, min_bytes=0,
        max_records=1, batch_size=1, topics=[], forgotten_topics_data=[],
    )  # fmt: skip


CALLS: Final = (
    CallOfApi("Produce", _produce(False)),
    CallOfApi("Fetch", _fetch),
    CallOfApi("ListOffsets", lambda of: request(
        2, 7, replica_id=-1, isolation_level=0, topics=[_part(name=of.topic, partitions=[
            _part(partition_index=0, timestamp=-1)])])),
    CallOfApi("Metadata", _metadata),
    CallOfApi("Metadata by id", lambda of: _metadata(of, by_id=True)),
    CallOfApi("Metadata of all", lambda of: _metadata(of, every=True), names=True),
    CallOfApi("OffsetCommit", lambda of: request(
        8, 8, group_id=of.group, member_id="", topics=[_commit_topic(of)])),
    CallOfApi("OffsetFetch", lambda of: _offset_fetch(of, every=False)),
    CallOfApi("OffsetFetch of all", lambda of: _offset_fetch(of, every=True), names=True),
    CallOfApi("FindCoordinator of a group", _find(0)),
    CallOfApi("FindCoordinator of a transactional id", _find(1)),
    CallOfApi("JoinGroup", _join),
    CallOfApi("Heartbeat", lambda of: request(12, 4, group_id=of.group, generation_id=5, member_id="nobody")),
    CallOfApi("LeaveGroup", lambda of: request(
        13, 5, group_id=of.group, members=[_part(member_id="nobody")])),
    CallOfApi("SyncGroup", lambda of: request(
        14, 5, group_id=of.group, generation_id=5, member_id="nobody", protocol_type="consumer", protocol_name="range",
        assignments=[])),
    CallOfApi("DescribeGroups", lambda of: request(
        15, 5, groups=[of.group], include_authorized_operations=True)),
    CallOfApi("ListGroups", lambda of: request(16, 4), names=True),
    CallOfApi("InitProducerId, transactional", lambda of: request(
        22, 4, transactional_id=of.transactional_id, transaction_timeout=_WAIT)),
    CallOfApi("InitProducerId, idempotent", lambda of: request(
        22, 4, transactional_id=None, transaction_timeout=_WAIT)),
    CallOfApi("OffsetForLeaderEpoch", lambda of: request(
        23, 4, replica_id=-1, topics=[_part(topic=of.topic, partitions=[
            _part(partition=0, leader_epoch=0)])])),
    CallOfApi("AddPartitionsToTxn", _add_partitions),
    CallOfApi("AddOffsetsToTxn", lambda of: request(
        25, 3, transactional_id=of.transactional_id, producer_id=999_999, producer_epoch=0, group_id=of.group)),
    CallOfApi("EndTxn", lambda of: request(
        26, 3, transactional_id=of.transactional_id, producer_id=999_999, producer_epoch=0, committed=True)),
    CallOfApi("WriteTxnMarkers", lambda of: request(27, 1, markers=[_part(
        producer_id=999_999, producer_epoch=0, transaction_result=False,
        coordinator_epoch=0, topics=[
            _part(name=of.topic, partition_indexes=[0])])])),
    CallOfApi("TxnOffsetCommit", _txn_offset_commit),
    CallOfApi("DescribeAcls", lambda of: request(29, 3, **_acl_filter())),
    CallOfApi("CreateAcls", lambda of: request(30, 3, creations=[_creation(of)])),
    CallOfApi("DeleteAcls", lambda of: request(31, 3, filters=[_acl_filter()])),
    CallOfApi("DescribeConfigs of a topic", _describe_configs(_TOPIC)),
    CallOfApi("DescribeConfigs of a group", _describe_configs(_GROUP)),
    CallOfApi("DescribeConfigs of a broker", _describe_configs(_BROKER)),
    CallOfApi("IncrementalAlterConfigs of a topic", _incremental(_TOPIC, "retention.ms", "7200000")),
    CallOfApi("IncrementalAlterConfigs of a group", _incremental(_GROUP, "consumer.session.timeout.ms", "50000")),
    CallOfApi("AlterConfigs of a topic", lambda of: request(33, 2, validate_only=True, resources=[_part(
        resource_type=_TOPIC, resource_name=of.topic, configs=[])])),
    CallOfApi("DescribeLogDirs", lambda of: request(35, 4, topics=[
        _named("topic", partitions=[0])(of)])),
    CallOfApi("CreatePartitions", lambda of: request(
        37, 3, timeout=_WAIT, validate_only=True, topics=[
            _named(count=2, assignments=None)(of)])),
    CallOfApi("ElectLeaders", lambda of: request(
        43, 2, election_type=0, topic_partitions=[_named("topic", partitions=[0])(of)])),
    CallOfApi("ListPartitionReassignments", lambda of: request(46, 0, topics=[
        _named(partition_indexes=[0])(of)])),
    CallOfApi("AlterPartitionReassignments", lambda of: request(45, 0, topics=[_named(partitions=[
        _part(partition_index=0, replicas=None)])(of)])),
    CallOfApi("DescribeClientQuotas", lambda of: request(48, 1, components=[], strict=False)),
    CallOfApi("AlterClientQuotas", lambda of: request(49, 1, validate_only=True, entries=[_part(
        entity=[_part(entity_type="user", entity_name="of-nobody")],
        ops=[_part(key="producer_byte_rate", value=1e6, remove=False)])])),
    CallOfApi("DescribeUserScramCredentials", lambda of: request(50, 0, users=[_part(name="of-nobody")])),
    CallOfApi("AlterUserScramCredentials", lambda of: request(51, 0, upsertions=[], deletions=[
        _part(name="of-nobody", mechanism=1)])),
    CallOfApi("DescribeQuorum", lambda of: request(55, 2, topics=[_part(
        topic_name="__cluster_metadata", partitions=[_part(partition_index=0)])])),
    CallOfApi("UpdateFeatures", lambda of: request(57, 1, validate_only=True, feature_updates=[])),
    CallOfApi("DescribeCluster", lambda of: request(60, 1, include_cluster_authorized_operations=True)),
    CallOfApi("DescribeProducers", lambda of: request(61, 0, topics=[
        _named(partition_indexes=[0])(of)])),
    CallOfApi("DescribeTransactions", lambda of: request(65, 0, transactional_ids=[of.transactional_id])),
    CallOfApi("ListTransactions", lambda of: request(66, 1), names=True),
    CallOfApi("ConsumerGroupHeartbeat", _heartbeat_848),
    CallOfApi("ConsumerGroupDescribe", lambda of: request(
        69, 0, group_ids=[of.group], include_authorized_operations=True)),
    CallOfApi("ConsumerGroupDescribe of members", lambda of: request(
        69, 0, group_ids=[of.group_with_members], include_authorized_operations=True)),
    CallOfApi("ListConfigResources", lambda of: request(74, 1)),
    CallOfApi("DescribeTopicPartitions", lambda of: request(75, 0, topics=[_named()(of)])),
    CallOfApi("ShareGroupHeartbeat", lambda of: request(
        76, 1, group_id=of.group, member_id="A" * 22, member_epoch=5, subscribed_topic_names=[of.topic])),
    CallOfApi("ShareFetch", _share_fetch),
    CallOfApi("ShareAcknowledge", lambda of: request(
        79, 1, group_id=of.group, member_id="A" * 22, share_session_epoch=3, topics=[])),
    CallOfApi("StreamsGroupHeartbeat", _streams),
    CallOfApi("StreamsGroupDescribe", lambda of: request(
        89, 0, group_ids=[of.group], include_authorized_operations=True)),
    CallOfApi("DescribeShareGroupOffsets", lambda of: request(90, 0, groups=[_part(
        group_id=of.group, topics=[
            _named("topic_name", partitions=[0])(of)])])),
    CallOfApi("AlterShareGroupOffsets", lambda of: request(91, 0, group_id=of.group, topics=[_named(
        "topic_name", partitions=[
            _part(partition_index=0, start_offset=0)])(of)])),
    CallOfApi("DeleteShareGroupOffsets", lambda of: request(92, 0, group_id=of.group, topics=[
        _named("topic_name")(of)])),
    # Those that take something away come last.
    CallOfApi("OffsetDelete", lambda of: request(47, 0, group_id=of.group, topics=[_named(
        partitions=[_part(partition_index=0)])(of)])),
    CallOfApi("DeleteRecords", lambda of: request(21, 2, timeout=_WAIT, topics=[_named(
        partitions=[
        _part(partition_index=0, offset=0)])(of)])),
    CallOfApi("DeleteGroups", lambda of: request(42, 2, groups_names=[of.group])),
    CallOfApi("DeleteTopics by id", lambda of: request(20, 6, timeout=_WAIT, topics=[
        _part(name=None, topic_id=of.topic_id)])),
    CallOfApi("DeleteTopics", lambda of: request(20, 6, timeout=_WAIT, topics=[
        _part(name=of.topic, topic_id=None)])),
    CallOfApi("CreateTopics", lambda of: request(19, 7, timeout=_WAIT, topics=[_creatable(of)])),
)  # fmt: skip
"""Every API of `server/authorization/rules.py` that is no part of authentication."""

NOT_CALLED: Final = {
    ApiKey.SASL_HANDSHAKE: "before anybody is authenticated",
    ApiKey.SASL_AUTHENTICATE: "before anybody is authenticated",
    ApiKey.API_VERSIONS: "before anybody is authenticated",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "for everybody (KIP-714)",
    ApiKey.PUSH_TELEMETRY: "for everybody (KIP-714)",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "Tidegate has no log directories to move between",
    ApiKey.CREATE_DELEGATION_TOKEN: "not enabled, whoever asks",
    ApiKey.RENEW_DELEGATION_TOKEN: "not enabled, whoever asks",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "not enabled, whoever asks",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "not enabled, whoever asks",
    ApiKey.SHARE_GROUP_DESCRIBE: "kio has no schema of its one version; the rule is that of ConsumerGroupDescribe",
}
"""Why an API is not in the table."""
