"""The newest shape of every API, for all its versions.

Handlers use the newest version's field names and response class. Fields that were only added or removed get their
defaults (`complete`). For fields that moved, this is the newest form:

| API | newest form | older versions |
|---|---|---|
| Metadata | `topics` None: all topics | v0: an empty array means all |
| Fetch | `replica_id`; topics by `topic_id` from v13, by `topic` before | v15 on: in `replica_state` |
| Produce | `topic_data[]` by `topic_id` in v13, by `name` before | |
| FindCoordinator | `coordinator_keys[]` -> `coordinators[]` | v0-3: one key, answer at top level |
| OffsetCommit | topics by `topic_id` in v10, by `name` before | |
| OffsetFetch | `groups[]` -> `groups[]`; topics by `topic_id` in v10, by `name` before | v1-7: one group at top level |
| JoinGroup | `rebalance_timeout` | v0: the session timeout |
| | `protocol_name` None | v0-6: "" |
| LeaveGroup | `members[]` -> `members[]` | v0-2: one member; its error is lifted to the top |
| TxnOffsetCommit | topics by `topic_id` in v6, by `name` before | |
| AddPartitionsToTxn | `transactions[]` -> `results_by_transaction[]` | v0-3: one transaction at top level |
| UpdateFeatures | error at the top, `results[]` beside it | v2: no `results[]` |
| DeleteTopics | `topics[]` (name or id) -> `responses[]` | v1-5: `topic_names[]` |

Both `topic`/`name` and `topic_id` are attributes in every version; the absent one is "" or None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kio.schema.delete_topics.v6.request import DeleteTopicState
from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5.request import MemberIdentity
from kio.schema.offset_fetch.v9.request import OffsetFetchRequestGroup
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import EntityField, EntityTupleField, PrimitiveTupleField, classify_field, is_optional

from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.schemas import load_request_schema, versions_of
from tidegate.protocol.versions import Fields

Adapter = Callable[[Any], Any]


# -- requests: absent fields


def _entities(entity: type[Any], path: str = "") -> Iterator[tuple[str, type[Any]]]:
    """A class and its nested classes, each with the path of field names that leads to it."""
    yield path, entity
    for field in dataclasses.fields(entity):
        found = classify_field(field)
        if isinstance(found, EntityField | EntityTupleField):
            yield from _entities(found.type_, f"{path}/{field.name}")


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if is_optional(field):
        return None
    found = classify_field(field)
    if isinstance(found, EntityTupleField | PrimitiveTupleField):
        return ()
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type == "bool":
        return False
    if kafka_type == "uuid":
        return None
    return get_tagged_field_default(field)


@cache
def complete(api_key: int) -> None:
    """Add the fields of other versions to each version's request classes, as class attributes."""
    versions = [dict(_entities(load_request_schema(api_key, version))) for version in versions_of(api_key)]
    defaults: dict[str, dict[str, Any]] = {}
    for entities in versions:
        for path, entity in entities.items():
            for field in dataclasses.fields(entity):
                defaults.setdefault(path, {})[field.name] = _default(field)
    for entities in versions:
        for path, entity in entities.items():
            own = {field.name for field in dataclasses.fields(entity)}
            for name, default in defaults[path].items():
                if name not in own:
                    setattr(entity, name, default)
    for version in versions_of(api_key):
        for name, moved in _moved(api_key, version).items():
            setattr(load_request_schema(api_key, version), name, property(moved))


def _moved(api_key: int, version: int) -> dict[str, Adapter]:
    """Fields that this version has in another place of the request."""
    match api_key:
        case ApiKey.FETCH if version >= 15:
            return {"replica_id": lambda request: request.replica_state.replica_id}
        case ApiKey.OFFSET_FETCH if version <= 7:
            return {"groups": _one_group}
        case ApiKey.FIND_COORDINATOR if version <= 3:
            return {"coordinator_keys": lambda request: (request.key,)}
        case ApiKey.JOIN_GROUP if version == 0:
            return {"rebalance_timeout": lambda request: request.session_timeout}
        case ApiKey.LEAVE_GROUP if version <= 2:
            return {"members": _one_member}
        case ApiKey.DELETE_TOPICS if version <= 5:
            return {"topics": _named_topics}
        case ApiKey.ADD_PARTITIONS_TO_TXN if version <= 3:
            return {"transactions": _one_transaction}
    return {}


def _one_group(request: Any) -> tuple[OffsetFetchRequestGroup, ...]:
    return (OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics),)


def _one_member(request: Any) -> tuple[MemberIdentity, ...]:
    return (MemberIdentity(member_id=request.member_id),)


def _one_transaction(request: Any) -> tuple[Any, ...]:
    transaction = Fields(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        topics=request.v3_and_below_topics,
    )
    return (transaction,)


def _named_topics(request: Any) -> tuple[DeleteTopicState, ...]:
    return tuple(DeleteTopicState(name=name, topic_id=None) for name in request.topic_names)


# -- responses: moved fields


def response_adapter(api_key: int, version: int) -> Adapter | None:
    """Converts the newest response for this version's writer; None when no field moved."""
    match api_key:
        case ApiKey.METADATA if version <= 11:
            return _named_metadata
        case ApiKey.OFFSET_FETCH if version <= 7:
            return lambda response: Fields(
                throttle_time=response.throttle_time,
                topics=response.groups[0].topics,
                error_code=response.groups[0].error_code,
            )
        case ApiKey.FIND_COORDINATOR if version <= 3:
            return lambda response: Fields(response.coordinators[0], throttle_time=response.throttle_time)
        case ApiKey.JOIN_GROUP if version <= 6:
            return _join_with_protocol
        case ApiKey.LEAVE_GROUP if version <= 2:
            return _leave_of_one
        case ApiKey.DELETE_TOPICS if version <= 5:
            return _named_deletions
        case ApiKey.ADD_PARTITIONS_TO_TXN if version <= 3:
            return lambda response: Fields(
                throttle_time=response.throttle_time,
                results_by_topic_v3_and_below=response.results_by_transaction[0].topic_results,
            )
        case ApiKey.UPDATE_FEATURES if version <= 1:
            return lambda response: Fields(response, results=getattr(response, "results", ()))
    return None


def _named_metadata(response: Any) -> Any:
    """Names are not nullable before v12; cluster operations exist in v8-10 only."""
    topics = tuple(Fields(topic, name="") if topic.name is None else topic for topic in response.topics)
    operations = getattr(response, "cluster_authorized_operations", -(1 << 31))
    return Fields(response, topics=topics, cluster_authorized_operations=operations)


def _join_with_protocol(response: Any) -> Any:
    return Fields(response, protocol_name="") if response.protocol_name is None else response


def _leave_of_one(response: Any) -> Any:
    code = response.error_code
    if code is ErrorCode.none and response.members:
        code = response.members[0].error_code
    return Fields(throttle_time=response.throttle_time, error_code=code)


def _named_deletions(response: Any) -> Any:
    responses = tuple(Fields(one, name="") if one.name is None else one for one in response.responses)
    return Fields(response, responses=responses)
