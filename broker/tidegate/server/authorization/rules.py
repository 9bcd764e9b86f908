"""The rights that each API needs, as KafkaApis.scala checks them.

A rule takes an `Access` and a request and returns None (all of it is allowed) or a `Verdict`; it raises the KafkaError
of a request that is denied as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidegate.errors import (
    ClusterAuthorizationFailed,
    FetchSessionIdNotFound,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.produce_request import ProduceRequest
from tidegate.protocol.versions import Fields
from tidegate.security.acls import Operation
from tidegate.server.authorization.access import Access, Verdict

NONE: Final = ErrorCode.none
TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
GROUP_DENIED: Final = ErrorCode.group_authorization_failed
CLUSTER_DENIED: Final = ErrorCode.cluster_authorization_failed
TRANSACTIONAL_ID_DENIED: Final = ErrorCode.transactional_id_authorization_failed


Rule = Callable[[Access, Any], Verdict | None]
CodeOf = Callable[[Access, Any], ErrorCode]


def _split(field: str, code_of: CodeOf) -> Rule:
    """A rule that judges each thing of one array by itself."""

    def rule(access: Access, request: Any) -> Verdict | None:
        allowed: list[Any] = []
        denied: dict[ErrorCode, list[Any]] = {}
        for one in getattr(request, field) or ():
            code = code_of(access, one)
            if code is NONE:
                allowed.append(one)
            else:
                denied.setdefault(code, []).append(one)
        if not denied:
            return None
        parts = [(Fields(request, **{field: tuple(ones)}), code) for code, ones in denied.items()]
        return Verdict(Fields(request, **{field: tuple(allowed)}) if allowed else None, parts)

    return rule


def _topics(operation: Operation, field: str = "topics") -> Rule:
    """Each topic of an array needs the operation; an id that is not known is the handler's to answer."""

    def code_of(access: Access, topic: Any) -> ErrorCode:
        name = access.name_of(topic)
        return NONE if name is None or access.topic(operation, name) else TOPIC_DENIED

    return _split(field, code_of)


def _of_group(operation: Operation, then: Rule | None = None) -> Rule:
    """The request's group needs the operation; `then` judges the rest."""

    def rule(access: Access, request: Any) -> Verdict | None:
        if not access.group(operation, request.group_id):
            raise GroupAuthorizationFailed
        return None if then is None else then(access, request)

    return rule


def _offset_delete(access: Access, request: Any) -> Verdict | None:
    """DELETE of the group, READ of each topic. Without any topic the handler still says whether there is the group."""
    verdict = _of_group(Operation.DELETE, _topics(Operation.READ))(access, request)
    if verdict is not None and verdict.allowed is None:
        verdict.allowed = Fields(request, topics=())
    return verdict


def _of_cluster(operation: Operation) -> Rule:
    def rule(access: Access, request: Any) -> None:
        if not access.cluster(operation):
            raise ClusterAuthorizationFailed

    return rule


def _write_markers(access: Access, request: Any) -> None:
    """ALTER is for administrators who end a hanging transaction, CLUSTER_ACTION for brokers."""
    if not (access.cluster(Operation.ALTER) or access.cluster(Operation.CLUSTER_ACTION)):
        raise ClusterAuthorizationFailed


def free(access: Access, request: Any) -> None:
    """Everybody may call it."""


def _produce(access: Access, request: Any) -> Verdict | None:
    parsed: ProduceRequest = request
    if parsed.transactional_id is not None and not access.transactional_id(Operation.WRITE, parsed.transactional_id):
        raise TransactionalIdAuthorizationFailed
    denied = []
    for key, _ in parsed.topics:
        name = key if isinstance(key, str) else access.name_of_id(UUID(bytes=key))
        if name is not None and not access.topic(Operation.WRITE, name):
            denied.append(key)
    return Verdict(None, [(None, TOPIC_DENIED)], frozenset(denied)) if denied else None


_read_topics: Final = _topics(Operation.READ)


def _fetch(access: Access, request: Any) -> Verdict | None:
    """A fetch that names a topic without READ has no session and does not wait, so that its error comes at once.

    The topics of a session were checked when it began; a change of the rules ends it, so that they are checked again.
    """
    verdict, client = _read_topics(access, request), access.call.client
    if request.session_epoch > 0 and (verdict is not None or client.fetch_rules_version != access.rules_version):
        raise FetchSessionIdNotFound
    client.fetch_rules_version = access.rules_version
    if verdict is not None and verdict.allowed is not None:
        verdict.allowed = Fields(
            verdict.allowed, session_id=0, session_epoch=-1, max_wait=request.max_wait * 0, forgotten_topics_data=()
        )
    return verdict


def _offset_for_leader_epoch(access: Access, request: Any) -> Verdict | None:
    """DESCRIBE of each topic, or CLUSTER_ACTION, which only brokers sent once."""
    return None if access.cluster(Operation.CLUSTER_ACTION) else _topics(Operation.DESCRIBE)(access, request)


class _TheseTopics(tuple[Any, ...]):
    """The topics that are allowed, maybe none, where an empty array would mean all."""

    def __bool__(self) -> bool:
        return True


def _metadata(access: Access, request: Any) -> Verdict | None:
    """DESCRIBE for each topic; "all topics" are those; one that would be created needs CREATE of it or the cluster."""
    if request.topics is None or (access.call.version == 0 and not request.topics):
        every = access.catalog.topics(access.call.org)
        allowed = [Fields(name=t.name, topic_id=None) for t in every if access.topic(Operation.DESCRIBE, t.name)]
        return Verdict(Fields(request, topics=_TheseTopics(allowed)), []) if len(allowed) < len(every) else None
    verdict = _split("topics", _metadata_topic(access.creates_topics(request)))(access, request)
    if verdict is not None and verdict.allowed is None:
        verdict.allowed = Fields(request, topics=_TheseTopics())  # it still asks for the brokers
    return verdict


def _metadata_topic(creates: bool) -> CodeOf:
    def code_of(access: Access, topic: Any) -> ErrorCode:
        name = access.name_of(topic)
        if name is None:
            return NONE
        if not access.topic(Operation.DESCRIBE, name):
            return TOPIC_DENIED if topic.name else ErrorCode.unknown_topic_id
        return NONE if not creates or access.exists(name) or _may_create(access, name) else TOPIC_DENIED

    return code_of


def _may_create(access: Access, name: str) -> bool:
    return access.cluster(Operation.CREATE) or access.topic(Operation.CREATE, name)


def _describe_topic_partitions(access: Access, request: Any) -> Verdict | None:
    """DESCRIBE for each topic; of "all topics" the others are left out. Topics before the cursor are not judged."""
    cursor, every = request.cursor, not request.topics
    listed = access.catalog.topics(access.call.org) if every else request.topics
    allowed: list[Any] = []
    denied: list[Any] = []
    for topic in listed:
        if cursor is None or topic.name >= cursor.topic_name:
            may = access.topic(Operation.DESCRIBE, topic.name)
            (allowed if may else denied).append(Fields(name=topic.name))
    if cursor is not None and cursor.partition_index >= 0 and (every or cursor.topic_name in {t.name for t in denied}):
        present = cursor.topic_name in {topic.name for topic in allowed}
        cursor = cursor if present else None  # its topic is not shown: the next one begins at 0
    part = Fields(request, topics=_TheseTopics(allowed), cursor=cursor)
    refused = [] if every or not denied else [(Fields(request, topics=tuple(denied)), TOPIC_DENIED)]
    return Verdict(part, refused)


def _offset_fetch(access: Access, request: Any) -> Verdict | None:
    """DESCRIBE of each group and topic; of "all topics" the others are filtered out of the answer."""
    allowed: list[Any] = []
    denied: dict[ErrorCode, list[Any]] = {}
    for group in request.groups:
        if not access.group(Operation.DESCRIBE, group.group_id):
            denied.setdefault(GROUP_DENIED, []).append(group)
            continue
        visible: list[Any] = []
        hidden: list[Any] = []
        for topic in group.topics or ():
            name = access.name_of(topic)
            (visible if name is None or access.topic(Operation.DESCRIBE, name) else hidden).append(topic)
        if hidden:
            denied.setdefault(TOPIC_DENIED, []).append(Fields(group, topics=tuple(hidden)))
            allowed.append(Fields(group, topics=tuple(visible)))
        else:
            allowed.append(group)
    if not denied:
        return None
    parts = [(Fields(request, groups=tuple(groups)), code) for code, groups in denied.items()]
    return Verdict(Fields(request, groups=tuple(allowed)) if allowed else None, parts)


def _find_coordinator(access: Access, request: Any) -> Verdict | None:
    """DESCRIBE of each key. Keys of share partitions (2, from v6 on) are for brokers; no other type is served."""
    if request.key_type == 2 and access.call.version >= 6 and not access.cluster(Operation.CLUSTER_ACTION):
        raise ClusterAuthorizationFailed
    if request.key_type not in (0, 1):
        return None
    may, denied = (
        (access.transactional_id, TRANSACTIONAL_ID_DENIED) if request.key_type else (access.group, GROUP_DENIED)
    )
    judge = _split("coordinator_keys", lambda _, key: NONE if may(Operation.DESCRIBE, key) else denied)
    return judge(access, request)


def _groups(operation: Operation, field: str) -> Rule:
    return _split(field, lambda access, group_id: NONE if access.group(operation, group_id) else GROUP_DENIED)


def _deleted_topic(access: Access, topic: Any) -> ErrorCode:
    """A client with DESCRIBE learns that there is no topic; a topic that it may not see has no id."""
    name = access.name_of(topic)
    if name is None or access.topic(Operation.DELETE, name):
        return NONE
    if not access.topic(Operation.DESCRIBE, name):
        return TOPIC_DENIED if topic.name else ErrorCode.unknown_topic_id
    return TOPIC_DENIED if access.exists(name) else ErrorCode.unknown_topic_or_partition


def _delete_topics(access: Access, request: Any) -> Verdict | None:
    """DELETE of the cluster is enough; only a rule for ALL operations gives it."""
    return None if access.cluster(Operation.DELETE) else _split("topics", _deleted_topic)(access, request)


def _init_producer_id(access: Access, request: Any) -> None:
    if request.transactional_id is not None:
        if not access.transactional_id(Operation.WRITE, request.transactional_id):
            raise TransactionalIdAuthorizationFailed
    elif not access.idempotent_write():
        raise ClusterAuthorizationFailed


def _of_transaction(then: Rule | None = None) -> Rule:
    """The request's transactional id needs WRITE; `then` judges the rest."""

    def rule(access: Access, request: Any) -> Verdict | None:
        if not access.transactional_id(Operation.WRITE, request.transactional_id):
            raise TransactionalIdAuthorizationFailed
        return None if then is None else then(access, request)

    return rule


def _add_partitions_to_transactions(access: Access, request: Any) -> None:
    """Nothing is added if one topic is denied."""
    for transaction in request.transactions:
        if not access.transactional_id(Operation.WRITE, transaction.transactional_id):
            raise TransactionalIdAuthorizationFailed
        if not all(access.topic(Operation.WRITE, topic.name) for topic in transaction.topics):
            raise TopicAuthorizationFailed


def _described_transaction(access: Access, transactional_id: str) -> ErrorCode:
    return NONE if access.transactional_id(Operation.DESCRIBE, transactional_id) else TRANSACTIONAL_ID_DENIED


def _share_session(access: Access, request: Any) -> None:
    """READ of the group; the handler checks READ of each topic, also of those that only the session names."""
    if request.group_id and not access.group(Operation.READ, request.group_id):
        raise GroupAuthorizationFailed


def _consumer_group_heartbeat(access: Access, request: Any) -> None:
    """READ of the group, DESCRIBE of the topics that it subscribes to by name (KIP-848, KIP-932)."""
    if not access.group(Operation.READ, request.group_id):
        raise GroupAuthorizationFailed
    if not all(access.topic(Operation.DESCRIBE, name) for name in request.subscribed_topic_names or ()):
        raise TopicAuthorizationFailed


def _streams_group_heartbeat(access: Access, request: Any) -> None:
    """READ of the group, DESCRIBE of all topics of the topology (KIP-1071)."""
    if not access.group(Operation.READ, request.group_id):
        raise GroupAuthorizationFailed
    for one in () if request.topology is None else request.topology.subtopologies:
        internal = [topic.name for topic in (*one.repartition_source_topics, *one.state_changelog_topics)]
        names = (*one.source_topics, *one.repartition_sink_topics, *internal)
        if not all(access.topic(Operation.DESCRIBE, name) for name in names):
            raise TopicAuthorizationFailed


_RESOURCE_TOPIC, _RESOURCE_GROUP = 2, 32
"""Kinds of resources of the config APIs (`ConfigResource.Type`)."""


def _configs(operation: Operation) -> CodeOf:
    def code_of(access: Access, resource: Any) -> ErrorCode:
        if resource.resource_type == _RESOURCE_TOPIC:
            return NONE if access.topic(operation, resource.resource_name) else TOPIC_DENIED
        if resource.resource_type == _RESOURCE_GROUP:
            return NONE if access.group(operation, resource.resource_name) else GROUP_DENIED
        return NONE if access.cluster(operation) else CLUSTER_DENIED

    return code_of


RULES: Final[dict[int, Rule]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _topics(Operation.DESCRIBE),
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _of_group(Operation.READ, _topics(Operation.READ)),
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _of_group(Operation.READ),
    ApiKey.HEARTBEAT: _of_group(Operation.READ),
    ApiKey.LEAVE_GROUP: _of_group(Operation.READ),
    ApiKey.SYNC_GROUP: _of_group(Operation.READ),
    ApiKey.DESCRIBE_GROUPS: _groups(Operation.DESCRIBE, "groups"),
    ApiKey.LIST_GROUPS: free,
    ApiKey.SASL_HANDSHAKE: free,
    ApiKey.API_VERSIONS: free,
    ApiKey.CREATE_TOPICS: _split(
        "topics", lambda access, topic: NONE if _may_create(access, topic.name) else TOPIC_DENIED
    ),
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.DELETE_RECORDS: _topics(Operation.DELETE),
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_transactions,
    ApiKey.ADD_OFFSETS_TO_TXN: _of_transaction(_of_group(Operation.READ)),
    ApiKey.END_TXN: _of_transaction(),
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
    ApiKey.TXN_OFFSET_COMMIT: _of_transaction(_of_group(Operation.READ, _topics(Operation.READ))),
    ApiKey.DESCRIBE_PRODUCERS: _topics(Operation.READ),
    ApiKey.DESCRIBE_TRANSACTIONS: _split("transactional_ids", _described_transaction),
    ApiKey.LIST_TRANSACTIONS: free,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _groups(Operation.DESCRIBE, "group_ids"),
    ApiKey.SHARE_GROUP_HEARTBEAT: _consumer_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _groups(Operation.DESCRIBE, "group_ids"),
    ApiKey.STREAMS_GROUP_HEARTBEAT: _streams_group_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: _groups(Operation.DESCRIBE, "group_ids"),
    ApiKey.SHARE_FETCH: _share_session,
    ApiKey.SHARE_ACKNOWLEDGE: _share_session,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _split(
        "groups", lambda access, group: NONE if access.group(Operation.DESCRIBE, group.group_id) else GROUP_DENIED
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _of_group(Operation.READ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _of_group(Operation.DELETE),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.DESCRIBE_ACLS: _of_cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: _of_cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CONFIGS: _split("resources", _configs(Operation.DESCRIBE_CONFIGS)),
    ApiKey.ALTER_CONFIGS: _split("resources", _configs(Operation.ALTER_CONFIGS)),
    ApiKey.SASL_AUTHENTICATE: free,
    ApiKey.CREATE_PARTITIONS: _split(
        "topics", lambda access, topic: NONE if access.topic(Operation.ALTER, topic.name) else TOPIC_DENIED
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: free,
    ApiKey.RENEW_DELEGATION_TOKEN: free,
    ApiKey.EXPIRE_DELEGATION_TOKEN: free,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: free,
    ApiKey.DELETE_GROUPS: _groups(Operation.DELETE, "groups_names"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _split("resources", _configs(Operation.ALTER_CONFIGS)),
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _of_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _of_cluster(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _of_cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CLUSTER: free,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.DESCRIBE_LOG_DIRS: _of_cluster(Operation.DESCRIBE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _of_cluster(Operation.ALTER),
    ApiKey.ELECT_LEADERS: _of_cluster(Operation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _of_cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _of_cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_QUORUM: _of_cluster(Operation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: _of_cluster(Operation.ALTER),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: free,
    ApiKey.PUSH_TELEMETRY: free,
    ApiKey.LIST_CONFIG_RESOURCES: _of_cluster(Operation.DESCRIBE_CONFIGS),
}
"""API key -> its rule."""
