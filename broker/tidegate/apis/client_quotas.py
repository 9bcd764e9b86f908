"""DescribeClientQuotas and AlterClientQuotas: the quotas of the caller's organisation (KIP-546, KIP-612, KIP-599).

The entity types `ip` and `org` belong to the organisation `default`, whose administrators run the cluster.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import in_slices
from tidegate.errors import InvalidRequest, KafkaError, UnsupportedVersion
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.quotas.entities import CLUSTER_ORG, Entity, Filter
from tidegate.quotas.leases import QuotaLeases
from tidegate.quotas.table import Change

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntryData
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest

ENTRIES_MAX: Final = 1_000
"""Entities of one request."""


@api(ApiKey.DESCRIBE_CLIENT_QUOTAS, first=0, last=1, answers_large=True, safe_late=True, error=at_top(entries=None))
async def describe_client_quotas(call: Call, request: DescribeClientQuotasRequest) -> Any:
    """The quotas of the entities that a filter selects."""
    quotas = _leases(call).quotas
    _check_count(len(request.components))
    components = ((one.entity_type, one.match_type, one.match) for one in request.components)
    try:
        selected = Filter(components, request.strict)
    except KafkaError as error:
        return Fields(throttle_time=NO_TIME, error_code=error.code, error_message=error.message, entries=None)
    await quotas.refresh()
    found = await asyncio.to_thread(quotas.table.of_org, call.org)
    entries = [
        Fields(
            entity=_named(entity.names),
            values=tuple(Fields(key=quota.value, value=value) for quota, value in values.items()),
        )
        async for entity, values in in_slices(found.items())
        if selected.selects(entity)
    ]
    return Fields(throttle_time=NO_TIME, error_code=ErrorCode.none, error_message=None, entries=tuple(entries))


@api(ApiKey.ALTER_CLIENT_QUOTAS, first=0, last=1, confirmed=True, error=error_responses.alter_client_quotas)
async def alter_client_quotas(call: Call, request: AlterClientQuotasRequest) -> Any:
    """Set and remove quotas; an entity with an error is not changed, all others are, in one step."""
    quotas = _leases(call).quotas
    _check_count(len(request.entries))
    failed: dict[int, KafkaError] = {}
    changes: list[Change] = []
    met: set[Any] = set()
    for index, entry in enumerate(request.entries):
        names = tuple(sorted((one.entity_type, one.entity_name or "") for one in entry.entity))
        try:
            if names in met:
                raise InvalidRequest("the entity appears more than once in the request")
            met.add(names)
            changes += _changes(call, entry)
        except KafkaError as error:
            failed[index] = error
    if not request.validate_only:
        await quotas.change(call.org, changes, call.client.principal)
    return Fields(
        throttle_time=NO_TIME,
        entries=tuple(_answer(entry, failed.get(index)) for index, entry in enumerate(request.entries)),
    )


def _changes(call: Call, entry: EntryData) -> list[Change]:
    """The changes of one entity. Raises InvalidRequest."""
    names = {one.entity_type: one.entity_name for one in entry.entity}
    if len(names) < len(entry.entity):
        raise InvalidRequest("Invalid client quota entity, duplicate entity entry")
    entity = Entity.of(names).checked()
    if entity.is_of_cluster and call.org != CLUSTER_ORG:
        raise InvalidRequest(f"only organisation {CLUSTER_ORG!r} sets quotas of addresses and organisations")
    if len({one.key for one in entry.ops}) < len(entry.ops):
        raise InvalidRequest("Duplicate quota key")
    changes: list[Change] = []
    for one in entry.ops:
        value = None if one.remove else float(one.value)
        changes.append((entity, entity.check_quota(one.key, value), value))
    return changes


def _answer(entry: EntryData, error: KafkaError | None) -> Any:
    return Fields(
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
        entity=_named((one.entity_type, one.entity_name) for one in entry.entity),
    )


def _named(names: Any) -> tuple[Any, ...]:
    return tuple(Fields(entity_type=kind, entity_name=name) for kind, name in names)


def _leases(call: Call) -> QuotaLeases:
    if call.context.quotas is None:
        raise UnsupportedVersion("this broker has no quotas")
    return call.context.quotas


def _check_count(count: int) -> None:
    if count > ENTRIES_MAX:
        raise InvalidRequest(f"{count} entities in one request; the limit is {ENTRIES_MAX}")
