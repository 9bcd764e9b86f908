"""Metadata answers, and the cache of encoded answers for as long as nothing has changed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from tidegate.apis import mutations
from tidegate.apis.call import Call
from tidegate.apis.slices import SLICE, each, in_slices, pause
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.placement import leader_of
from tidegate.errors import InvalidTopic, KafkaError, LeaderNotAvailable, StoreUnavailable, TopicAlreadyExists
from tidegate.memory import shares_of
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.protocol.metadata_writer import TopicWriter
from tidegate.protocol.versions import Fields
from tidegate.quotas.errors import ThrottlingQuotaExceeded
from tidegate.topics import names
from tidegate.topics.catalog import PARTITIONS_MAX, Topic

if TYPE_CHECKING:
    from kio.schema.metadata.v13.request import MetadataRequest

    from tidegate.topics.catalog import Catalog

logger = structlog.get_logger()

NO_OPERATIONS: Final = -(1 << 31)
TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""

CACHE_BYTES_MAX: Final = 32 << 20
"""Limit of the encoded replies that a broker caches until topics or brokers change."""
_AT_ONCE: Final = 16

NameOrId = tuple[str | None, UUID | None]
"""A topic's name or its id."""


class Question(NamedTuple):
    """One Metadata request: `wanted` None is all topics; `operations`: which of (topic, cluster) are requested.

    A tuple, which is hashed and compared in C: once for each request.
    """

    org: str
    listener: str
    version: int
    wanted: tuple[NameOrId, ...] | None
    may_create: bool
    operations: tuple[bool, bool]

    @classmethod
    def of(cls, call: Call, request: MetadataRequest) -> Question:
        """Read a request of any version."""
        wanted: tuple[NameOrId, ...] | None = None
        if request.topics is not None and (request.topics or call.version > 0):
            wanted = tuple((None if one.topic_id else one.name, one.topic_id) for one in request.topics)
        return cls(
            call.org,
            call.client.listener,
            call.version,
            wanted,
            request.allow_auto_topic_creation and call.context.settings.auto_create_topics_enable,
            (
                request.include_topic_authorized_operations,
                bool(getattr(request, "include_cluster_authorized_operations", False)),
            ),
        )

    def unknown(self, catalog: Catalog) -> list[NameOrId]:
        """Requested topics that are not cached and may exist in the store."""
        return [wanted for wanted in self.wanted or () if self.is_unknown(catalog, wanted)]

    def is_unknown(self, catalog: Catalog, wanted: NameOrId) -> bool:
        """Whether the topic is not cached and may exist in the store."""
        name, topic_id = wanted
        if topic_id:
            return catalog.by_id(self.org, topic_id) is None
        return name is not None and catalog.get(self.org, name) is None and names.is_legal(name)


class Encoded:
    """Encoded answers, valid while topics, brokers and leader epochs do not change. Unknown topics are never cached."""

    def __init__(self) -> None:
        self._state: tuple[int, int, int] = (-1, -1, -1)
        self._leader_epoch = 0
        self._bodies: dict[Question, bytes] = {}
        self._bytes = 0

    def get(self, call: Call, question: Question) -> bytes | None:
        """The cached answer, if it is still valid."""
        state = self.state_of(call)
        if state != self._state:
            self._state, self._bytes = state, 0
            self._bodies.clear()
        return self._bodies.get(question)

    def state_of(self, call: Call) -> tuple[int, int, int]:
        """The inputs of answers: the versions of topics and brokers, and the leader epoch."""
        return call.context.catalog.version, call.context.broker_lease.version, self.leader_epoch(call)

    def leader_epoch(self, call: Call) -> int:
        """The leader epoch of every partition, as `log/fence_log` writes it: the server's failover epoch less 1.

        While the failover epoch is unknown it is the previous one, because clients ignore an epoch that goes back.
        """
        number = call.context.logs.failover_epochs.number
        if number is not None:
            self._leader_epoch = max(self._leader_epoch, number - 1)
        return self._leader_epoch

    def put(self, call: Call, question: Question, body: bytes) -> None:
        """Cache an answer while the size limit permits."""
        size = len(body) + 100 * len(question.wanted or ())
        if self._bytes + size <= min(CACHE_BYTES_MAX, shares_of(call.context.settings.memory_max).metadata_cache):
            self._bytes += size
            self._bodies[question] = body


_encoded: weakref.WeakKeyDictionary[Catalog, Encoded] = weakref.WeakKeyDictionary()


def encoded_of(catalog: Catalog) -> Encoded:
    """The encoded answers of one catalogue."""
    found = _encoded.get(catalog)
    if found is None:
        found = _encoded[catalog] = Encoded()
    return found


@dataclass(slots=True)
class RefreshedTopics:
    """Topics that a refresh or a creation failed to provide: name or id -> code."""

    failed: dict[str | UUID, ErrorCode] = field(default_factory=dict)
    creatable_partitions: int = PARTITIONS_MAX
    """How many more the request may create, as a CreateTopics may; 0 once the client's quota is used up."""


def is_large(call: Call, question: Question) -> bool:
    """Whether its answer is encoded in slices."""
    if question.wanted is not None:
        return len(question.wanted) > SLICE or _partitions_asked(call, question) > SLICE
    return sum(topic.partition_count for topic in call.context.catalog.topics(question.org)) > SLICE


def _partitions_asked(call: Call, question: Question) -> int:
    catalog = call.context.catalog
    found = (
        catalog.by_id(question.org, topic_id) if topic_id else catalog.get(question.org, name or "")
        for name, topic_id in question.wanted or ()
    )
    return sum(topic.partition_count for topic in found if topic is not None)


async def answer_in_slices(call: Call, question: Question, refreshed: RefreshedTopics) -> bytes:
    """The same as `answer`, but the event loop runs other work before, and after every few hundred partitions."""
    await pause()
    broker_lease, listener = call.context.broker_lease, question.listener
    nameable = broker_lease.nameable(listener)
    catalog = call.context.catalog
    epoch = encoded_of(catalog).leader_epoch(call)
    writer = TopicWriter(question.version)
    parts: list[bytes] = []
    operations = TOPIC_OPERATIONS if question.operations[0] else NO_OPERATIONS
    count = 0
    async for topic, missing in in_slices(_found(catalog, question), SLICE):
        count += 1
        if topic is None:
            parts.append(writer.topic(_no_topic(*missing, refreshed, operations)))
            continue
        empty = _topic(topic, nameable, epoch, operations, partition_count=0)
        before, after = writer.around_partitions(empty, topic.partition_count)
        parts.append(before)
        for first in range(0, topic.partition_count, SLICE):
            last = min(first + SLICE, topic.partition_count)
            leaders = [leader_of(topic.topic_id, index, nameable).node_id for index in range(first, last)]
            parts.append(writer.partitions(first, leaders, epoch))
            if last - first == SLICE:
                await pause()
        parts.append(after)
    whole = codec.encode(ApiKey.METADATA, question.version, _whole(call, question, ()))
    before, after = writer.around_topics(whole, count)
    return b"".join([before, *parts, after])


def _found(catalog: Catalog, question: Question) -> Iterator[tuple[Topic | None, NameOrId]]:
    """Each topic once, even if requested repeatedly, or the requested name or id if it does not exist."""
    if question.wanted is None:
        for topic in list(catalog.topics(question.org)):
            yield topic, (None, None)
        return
    answered: set[str | UUID | None] = set()
    for name, topic_id in question.wanted:
        found = catalog.by_id(question.org, topic_id) if topic_id else catalog.get(question.org, name or "")
        key = (found.topic_id if found else topic_id) or name
        if key not in answered:
            answered.add(key)
            yield found, (name, topic_id)


def answer(call: Call, question: Question, refreshed: RefreshedTopics) -> bytes:
    """The encoded answer from this broker's caches."""
    broker_lease, listener = call.context.broker_lease, question.listener
    nameable = broker_lease.nameable(listener)
    epoch = encoded_of(call.context.catalog).leader_epoch(call)
    topics = tuple(_topics(call.context.catalog, question, refreshed, nameable, epoch))
    return codec.encode(ApiKey.METADATA, question.version, _whole(call, question, topics))


def _whole(call: Call, question: Question, topics: tuple[MetadataResponseTopic, ...]) -> Fields:
    broker_lease, listener = call.context.broker_lease, question.listener
    return Fields(
        throttle_time=NO_TIME,
        brokers=tuple(_broker(one, listener) for one in broker_lease.shown(listener)),
        cluster_id=broker_lease.cluster_id,
        controller_id=broker_lease.shown_node_id(listener),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if question.operations[1] else NO_OPERATIONS,
        error_code=ErrorCode.none,
    )


def _broker(info: BrokerInfo, listener: str) -> MetadataResponseBroker:
    host, port = info.endpoint(listener)
    values: dict[str, Any] = {"node_id": info.node_id, "host": host, "port": port, "rack": info.rack}
    return MetadataResponseBroker(**values)


def _topics(
    catalog: Catalog, question: Question, refreshed: RefreshedTopics, nameable: list[BrokerInfo], epoch: int
) -> Iterator[MetadataResponseTopic]:
    """One entry per topic, even if requested repeatedly."""
    operations = TOPIC_OPERATIONS if question.operations[0] else NO_OPERATIONS
    for found, (name, topic_id) in _found(catalog, question):
        yield _topic(found, nameable, epoch, operations) if found else _no_topic(name, topic_id, refreshed, operations)


def _topic(
    topic: Topic, nameable: list[BrokerInfo], epoch: int, operations: int, partition_count: int | None = None
) -> MetadataResponseTopic:
    values: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in names.INTERNAL,
        "partitions": tuple(
            _partition(index, leader_of(topic.topic_id, index, nameable).node_id, epoch)
            for index in range(topic.partition_count if partition_count is None else partition_count)
        ),
        "topic_authorized_operations": operations,
    }
    return MetadataResponseTopic(**values)


def _partition(index: int, leader_id: int, epoch: int) -> MetadataResponsePartition:
    """A partition has one replica, its leader: replication is the store's responsibility."""
    values: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "partition_index": index,
        "leader_id": leader_id,
        "leader_epoch": epoch,
        "replica_nodes": (leader_id,),
        "isr_nodes": (leader_id,),
    }
    return MetadataResponsePartition(**values)


def _no_topic(
    name: str | None, topic_id: UUID | None, refreshed: RefreshedTopics, operations: int
) -> MetadataResponseTopic:
    key = topic_id or name or ""
    if topic_id:
        code = ErrorCode.unknown_topic_id
    elif name is None:
        code = ErrorCode.invalid_request
    elif not names.is_legal(name or ""):
        code = ErrorCode.invalid_topic_exception
    else:
        code = ErrorCode.unknown_topic_or_partition
    values: dict[str, Any] = {
        "error_code": refreshed.failed.get(key, code),
        "name": name,
        "topic_id": topic_id,
        "partitions": (),
        "topic_authorized_operations": NO_OPERATIONS if topic_id else operations,
    }
    return MetadataResponseTopic(**values)


async def refresh(call: Call, question: Question, unknown: list[NameOrId]) -> RefreshedTopics:
    """Read topics from the store that are not cached, and create those that may be created."""
    refreshed = RefreshedTopics()

    async def one(wanted: NameOrId) -> None:
        name, topic_id = wanted
        try:
            if topic_id:
                await call.context.catalog.find_by_id(question.org, topic_id)
            else:
                await _find_or_create(call, question, name or "", refreshed)
        except (StoreUnavailable, LeaderNotAvailable):
            refreshed.failed[topic_id or name or ""] = ErrorCode.leader_not_available
        except KafkaError as error:
            refreshed.failed[topic_id or name or ""] = error.code

    await each(dict.fromkeys(unknown), one, _AT_ONCE)
    return refreshed


def _is_late(call: Call) -> bool:
    """Whether the client may have continued at another broker: the topic may have been deleted there."""
    stalls = call.context.stalls
    return call.client.closed or (stalls is not None and stalls.is_late(call.arrived_s))


async def _find_or_create(call: Call, question: Question, name: str, refreshed: RefreshedTopics) -> None:
    """A topic that may not be created now stays unknown, as in Kafka: the client asks again."""
    catalog, wanted = call.context.catalog, call.context.settings.num_partitions
    found = await catalog.find(question.org, name)
    if found is not None or not question.may_create or name in names.INTERNAL or name == names.METADATA_TOPIC:
        return
    count = min(wanted, PARTITIONS_MAX)
    if count > refreshed.creatable_partitions:
        return
    refreshed.creatable_partitions -= count
    try:
        await catalog.check_new(question.org, name)
        await catalog.check_limits(question.org, name, wanted)
        if _is_late(call):
            raise LeaderNotAvailable
        await mutations.spend_unthrottled(call, count)
        await catalog.create(question.org, name)
    except ThrottlingQuotaExceeded:
        refreshed.creatable_partitions = 0
    except TopicAlreadyExists:
        if await catalog.find(question.org, name) is None:
            raise LeaderNotAvailable from None
    except InvalidTopic:
        logger.info("topic_not_created", org=question.org, topic=name, reason="too like another name")
        raise
