"""DescribeAcls, CreateAcls, DeleteAcls: the access rules of the caller's organisation (KIP-140, KIP-290).

The rights to call them (DESCRIBE and ALTER of the cluster) are checked before, by `apis.authorization`.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import in_slices
from tidegate.errors import InvalidRequest
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.security.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceType
from tidegate.security.errors import SecurityDisabled
from tidegate.security.rules import RULES_MAX, AccessRules

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

_NONE: Final = ErrorCode.none
CHANGES_MAX: Final = 1_000
"""Rules or filters of one request."""
MATCHES_MAX: Final = RULES_MAX
"""Rules that the filters of one DeleteAcls request select together: one filter may select all."""


@api(ApiKey.DESCRIBE_ACLS, first=1, last=3, answers_large=True, safe_late=True, error=at_top(resources=()))
async def describe_acls(call: Call, request: DescribeAclsRequest) -> Any:
    """The rules that a filter selects, by resource pattern."""
    rules = _rules(call)
    selector = _filter(request)
    reason = selector.reason_invalid()
    if reason is not None:
        raise InvalidRequest(reason)
    await rules.refresh()
    found: dict[tuple[ResourceType, str, PatternType], list[AclBinding]] = defaultdict(list)
    async for rule in in_slices(rules.table(call.org).rules):
        if selector.matches(rule):
            found[rule.resource_type, rule.name, rule.pattern_type].append(rule)
    resources = [
        Fields(
            resource_type=kind.value,
            resource_name=name,
            pattern_type=pattern.value,
            acls=tuple([_described(rule) async for rule in in_slices(of_resource)]),
        )
        async for (kind, name, pattern), of_resource in in_slices(found.items())
    ]
    return Fields(throttle_time=NO_TIME, error_code=_NONE, error_message=None, resources=tuple(resources))


@api(ApiKey.CREATE_ACLS, first=1, last=3, confirmed=True, error=error_responses.create_acls)
async def create_acls(call: Call, request: CreateAclsRequest) -> Any:
    """Add rules; each is refused by itself if it is malformed, the others are added in one step."""
    rules = _rules(call)
    _check_count(len(request.creations))
    wanted = [_binding(one) for one in request.creations]
    refusals = [_refusal(rule.reason_not_creatable()) for rule in wanted]
    added = [rule for rule, refusal in zip(wanted, refusals, strict=True) if refusal is None]
    await rules.add(call.org, added, call.client.principal)
    return Fields(throttle_time=NO_TIME, results=tuple(Fields(**_outcome(refusal)) for refusal in refusals))


@api(ApiKey.DELETE_ACLS, first=1, last=3, answers_large=True, confirmed=True, error=error_responses.delete_acls)
async def delete_acls(call: Call, request: DeleteAclsRequest) -> Any:
    """Remove the rules that filters select, in one step, and return them filter by filter."""
    rules = _rules(call)
    _check_count(len(request.filters))
    selectors = [_filter(one) for one in request.filters]
    refusals = [_refusal(selector.reason_invalid()) for selector in selectors]
    valid = [selector for selector, refusal in zip(selectors, refusals, strict=True) if refusal is None]
    await rules.refresh()
    selected = await _selected(valid, rules.table(call.org).rules)
    removed = list(dict.fromkeys(chain.from_iterable(selected)))
    if removed:
        await rules.remove(call.org, removed, call.client.principal)
    matches = iter(selected)
    results = []
    for refusal in refusals:
        matching = [] if refusal is not None else next(matches)
        removals = tuple([_removed(rule) async for rule in in_slices(matching)])
        results.append(Fields(**_outcome(refusal), matching_acls=removals))
    return Fields(throttle_time=NO_TIME, filter_results=tuple(results))


async def _selected(filters: Sequence[AclFilter], rules: Iterable[AclBinding]) -> list[list[AclBinding]]:
    """The rules that each filter selects. Raises InvalidRequest above MATCHES_MAX of them."""
    found: list[list[AclBinding]] = [[] for _ in filters]
    count = 0
    async for (selector, matching), rule in in_slices(product(zip(filters, found, strict=True), rules)):
        if selector.matches(rule):
            matching.append(rule)
            count += 1
            if count > MATCHES_MAX:
                raise InvalidRequest(f"the filters select more than {MATCHES_MAX} rules together; name fewer at once")
    return found


def _refusal(reason: str | None) -> InvalidRequest | None:
    return None if reason is None else InvalidRequest(reason)


def _outcome(refusal: InvalidRequest | None) -> dict[str, Any]:
    if refusal is None:
        return {"error_code": _NONE, "error_message": None}
    return {"error_code": refusal.code, "error_message": refusal.message}


def _rules(call: Call) -> AccessRules:
    security = call.context.security
    if security is None or security.authorizer is None:
        raise SecurityDisabled("no access control lists are enabled on this broker (TIDEGATE_ACL_ENABLED)")
    return security.rules


def _check_count(count: int) -> None:
    if count > CHANGES_MAX:
        raise InvalidRequest(f"{count} changes in one request; the limit is {CHANGES_MAX}")


Kind = TypeVar("Kind", bound=enum.IntEnum)


def _kind(enumeration: type[Kind], code: int) -> Kind:
    """The member of a code; codes of later versions are UNKNOWN, as in Kafka."""
    try:
        return enumeration(code)
    except ValueError:
        return enumeration(0)


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        _kind(ResourceType, creation.resource_type),
        creation.resource_name,
        _kind(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _kind(Operation, creation.operation),
        _kind(Permission, creation.permission_type),
    )


def _filter(asked: Any) -> AclFilter:
    return AclFilter(
        _kind(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _kind(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _kind(Operation, asked.operation),
        _kind(Permission, asked.permission_type),
    )


def _described(rule: AclBinding) -> Any:
    return Fields(
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation.value,
        permission_type=rule.permission.value,
    )


def _removed(rule: AclBinding) -> Any:
    return Fields(
        error_code=_NONE,
        error_message=None,
        resource_type=rule.resource_type.value,
        resource_name=rule.name,
        pattern_type=rule.pattern_type.value,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation.value,
        permission_type=rule.permission.value,
    )
