"""The rights of one request's client, and the verdict on its request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.produce_request import ProduceRequest
from tidegate.protocol.versions import Fields
from tidegate.security.acls import Operation, ResourceType
from tidegate.security.authorizer import Authorizer, Requester
from tidegate.topics.catalog import Catalog

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_CLUSTER, _TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID

_TOPIC_LISTS: Final = ("topics", "topic_data")
_WITH_TOPICS: Final = frozenset(
    {
        ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.DELETE_TOPICS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.OFFSET_DELETE, ApiKey.DELETE_RECORDS,
        ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_PRODUCERS, ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS,
    }
)  # fmt: skip
"""APIs whose requests name topics in `topics`."""
_ARRAYS: Final[dict[int, str]] = {
    **dict.fromkeys(_WITH_TOPICS, "topics"),
    ApiKey.PRODUCE: "topics",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "topics",
    ApiKey.FIND_COORDINATOR: "coordinator_keys",
    ApiKey.DESCRIBE_GROUPS: "groups",
    ApiKey.DELETE_GROUPS: "groups_names",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "group_ids",
    ApiKey.SHARE_GROUP_DESCRIBE: "group_ids",
    ApiKey.STREAMS_GROUP_DESCRIBE: "group_ids",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "subscribed_topic_names",
    ApiKey.SHARE_GROUP_HEARTBEAT: "subscribed_topic_names",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "groups",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactional_ids",
    ApiKey.DESCRIBE_CONFIGS: "resources",
    ApiKey.ALTER_CONFIGS: "resources",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "resources",
}
"""API key -> the array of its requests whose things are judged one by one."""


def _of_groups(request: Any) -> int:
    return sum(len(group.topics or ()) or 1 for group in request.groups)


def _of_transactions(request: Any) -> int:
    return sum(1 + len(one.topics) for one in request.transactions)


def _of_topology(request: Any) -> int:
    return sum(
        len(one.source_topics)
        + len(one.repartition_sink_topics)
        + len(one.repartition_source_topics)
        + len(one.state_changelog_topics)
        for one in (() if request.topology is None else request.topology.subtopologies)
    )


_COUNTS: Final[dict[int, Callable[[Any], int]]] = {
    ApiKey.OFFSET_FETCH: _of_groups,
    ApiKey.ADD_PARTITIONS_TO_TXN: _of_transactions,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _of_topology,
}
"""The same for what is in several arrays of a request."""


@dataclass(slots=True)
class Verdict:
    """`allowed`: the request for the handler, None if nothing is left of it; `denied`: the rest, with its codes."""

    allowed: Any
    denied: list[tuple[Any, ErrorCode]]
    names: frozenset[str | bytes] = frozenset()
    """Of a Produce request that is not decoded yet: the topics that are denied, by name or id."""

    def of_decoded(self, request: Any) -> Verdict:
        """The verdict on a Produce request after it was decoded."""
        parts: tuple[list[Any], list[Any]] = [], []
        for topic in request.topic_data:
            parts[_produced_topic(topic) in self.names].append(topic)
        allowed, denied = (Fields(request, topic_data=tuple(part)) if part else None for part in parts)
        return Verdict(allowed, [(denied, ErrorCode.topic_authorization_failed)])


def _produced_topic(topic: Any) -> str | bytes:
    topic_id: UUID | None = topic.topic_id
    return topic.name or (b"" if topic_id is None else topic_id.bytes)


class Access:
    """The rights of one request's client."""

    __slots__ = ("_authorizer", "_requester", "call", "catalog")

    def __init__(self, authorizer: Authorizer, requester: Requester, catalog: Catalog, call: Call) -> None:
        self._authorizer = authorizer
        self._requester = requester
        self.catalog = catalog
        self.call = call

    @property
    def rules_version(self) -> int:
        """Grows with every change of the access rules."""
        return self._authorizer.rules.version

    def topic(self, operation: Operation, name: str) -> bool:
        """Whether the operation on a topic is allowed."""
        return self._authorizer.allows(self._requester, operation, _TOPIC, name)

    def group(self, operation: Operation, group_id: str) -> bool:
        """Whether the operation on a group is allowed."""
        return self._authorizer.allows(self._requester, operation, _GROUP, group_id)

    def cluster(self, operation: Operation) -> bool:
        """Whether the operation on the cluster is allowed."""
        return self._authorizer.allows(self._requester, operation, _CLUSTER)

    def transactional_id(self, operation: Operation, transactional_id: str) -> bool:
        """Whether the operation on a transactional id is allowed."""
        return self._authorizer.allows(self._requester, operation, _TRANSACTIONAL_ID, transactional_id)

    def idempotent_write(self) -> bool:
        """Whether the client may be an idempotent producer."""
        return self._authorizer.allows_idempotent_write(self._requester)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The allowed operations as a bit field."""
        return self._authorizer.operations(self._requester, resource_type, name)

    def cluster_operations(self) -> int:
        """The same for the cluster; none without DESCRIBE of it."""
        if not self.cluster(Operation.DESCRIBE):
            return 0
        return self._authorizer.operations(self._requester, _CLUSTER)

    def creates_topics(self, request: Any) -> bool:
        """Whether the request creates the topics that it names and that do not exist."""
        if self.call.api_key != ApiKey.METADATA or not request.allow_auto_topic_creation:
            return False
        return self.call.context.settings.auto_create_topics_enable

    def exists(self, name: str) -> bool:
        """Whether there is a topic of that name, once `unresolved` names were looked up."""
        return self.catalog.get(self.call.org, name) is not None

    def name_of(self, topic: Any) -> str | None:
        """The name of a topic in a request; None if its id is not known, which is then the handler's to answer."""
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        if isinstance(name, str) and name:
            return name
        return self.name_of_id(getattr(topic, "topic_id", None))

    def name_of_id(self, topic_id: UUID | None) -> str | None:
        """The name of a topic id, or None."""
        found = None if topic_id is None else self.catalog.by_id(self.call.org, topic_id)
        return None if found is None else found.name

    def unresolved(self, request: Any) -> list[str | UUID]:
        """Topics that must be looked up in the store first: their right or their name depends on whether they exist."""
        if isinstance(request, ProduceRequest):
            ids = [UUID(bytes=key) for key, _ in request.topics if isinstance(key, bytes)]
            return [one for one in ids if self.name_of_id(one) is None]
        found: list[str | UUID] = []
        by_name = self.call.api_key == ApiKey.DELETE_TOPICS or self.creates_topics(request)
        for topic in self._topics(request):
            topic_id = getattr(topic, "topic_id", None)
            if topic_id is not None and topic_id.int:
                if self.name_of_id(topic_id) is None:
                    found.append(topic_id)
            elif by_name and not self.exists(topic.name or ""):
                found.append(topic.name or "")
        return found

    async def resolve(self, wanted: str | UUID) -> None:
        """Read a topic into the cache. Raises StoreUnavailable."""
        if isinstance(wanted, UUID):
            await self.catalog.find_by_id(self.call.org, wanted)
        elif wanted:
            await self.catalog.find(self.call.org, wanted)

    def size(self, request: Any) -> int:
        """How many things a request names that are judged one by one."""
        key = self.call.api_key
        field = _ARRAYS.get(key)
        if field is not None:
            return len(getattr(request, field) or ())
        count = _COUNTS.get(key)
        return 0 if count is None else count(request)

    def judged_count(self, request: Any) -> int:
        """The same; all topics, for a request that names none."""
        size = self.size(request)
        if size or self.call.api_key not in (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS):
            return size
        return self.catalog.topic_count(self.call.org)

    def _topics(self, request: Any) -> Iterable[Any]:
        if isinstance(request, ProduceRequest):
            return request.topics
        if self.call.api_key == ApiKey.OFFSET_FETCH:
            return [topic for group in request.groups for topic in group.topics or ()]
        if self.call.api_key not in _WITH_TOPICS:
            return ()
        return next((getattr(request, name) or () for name in _TOPIC_LISTS if hasattr(request, name)), ())
