"""CreateAcls, DescribeAcls and DeleteAcls: rules of many and of long names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tidegate.apis import acls as acls_module
from tidegate.apis import slices
from tidegate.apis.call import BrokerContext, Client
from tidegate.errors import MESSAGE_LENGTH_MAX
from tidegate.security import rules as rules_module
from tidegate.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tidegate.security.identity import NAME_LENGTH_MAX
from tidegate.security.rules import AccessRules
from tidegate.security.security import Security
from tidegate.store.store import Store

RULES = 1_200


@pytest.fixture
async def context(store: Store) -> AsyncIterator[BrokerContext]:
    security = Security(store, store.settings.model_copy(update={"acl_enabled": True}))
    await security.start()
    yield build_broker(store, security=security).context
    await security.close()


def rules_of(context: BrokerContext) -> AccessRules:
    assert context.security is not None
    return context.security.rules


async def add_rules(context: BrokerContext, count: int) -> None:
    """Rules of as many topics."""
    kinds = (PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
    added = [AclBinding(ResourceType.TOPIC, f"orders-{n}", *kinds) for n in range(count)]
    await rules_of(context).add("default", added, "test")


def deletion(*names: str | None) -> Any:
    """DeleteAcls of the rules of topics; None is all."""
    kinds = {"resource_type_filter": 2, "pattern_type_filter": 1, "principal_filter": None}
    rest = {"host_filter": None, "operation": 1, "permission_type": 1}
    return request(31, 3, filters=[{**kinds, "resource_name_filter": name, **rest} for name in names])


async def test_delete_acls_matches_in_slices(context: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 filters over 20,000 rules are 20 million comparisons."""
    await add_rules(context, RULES)
    pause, pauses = slices.pause, []

    async def counted() -> None:
        pauses.append(1)
        await pause()

    monkeypatch.setattr(slices, "pause", counted)
    answer = await ask(context, deletion("orders-7", *map(str, range(19))))

    assert [len(one.matching_acls) for one in answer.filter_results] == [1] + [0] * 19
    assert len(pauses) >= 20 * RULES // slices.SLICE
    assert len(rules_of(context).table("default").rules) == RULES - 1


async def test_delete_acls_beyond_the_matches_removes_nothing(
    context: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls_module, "MATCHES_MAX", 25)
    await add_rules(context, 10)

    refused = await ask(context, deletion(None, None, None))

    assert {one.error_code for one in refused.filter_results} == {ErrorCode.invalid_request}
    assert len(rules_of(context).table("default").rules) == 10

    removed = await ask(context, deletion(None, None))

    assert [len(one.matching_acls) for one in removed.filter_results] == [10, 10]
    assert not rules_of(context).table("default").rules


async def test_create_acls_shortens_the_reason_of_a_refused_rule(context: BrokerContext) -> None:
    """The others are added, and the answer is one that can be written."""
    kinds = {"resource_type": 2, "resource_pattern_type": 3, "principal": "User:alice"}
    rest = {"operation": 3, "permission_type": 3}
    creations = [{**kinds, "resource_name": "orders", "host": host, **rest} for host in ("*", "\x01" * NAME_LENGTH_MAX)]

    answer = await ask(context, request(30, 1, creations=creations))

    assert [one.error_code for one in answer.results] == [ErrorCode.none, ErrorCode.invalid_request]
    assert len(answer.results[1].error_message) == MESSAGE_LENGTH_MAX
    assert len(rules_of(context).table("default").rules) == 1


async def test_describe_users_shortens_the_message_about_a_name(context: BrokerContext) -> None:
    users = [{"name": name} for name in ("\x01" * 32_760, "twice", "twice")]

    answer = await ask(context, request(50, 0, users=users))

    assert [(one.error_code, len(one.error_message)) for one in answer.results] == [
        (ErrorCode.resource_not_found, MESSAGE_LENGTH_MAX),
        (ErrorCode.duplicate_resource, len("user 'twice' is named more than once")),
    ]


def creation(*names: str) -> Any:
    """CreateAcls of rules of as many topics."""
    kinds = {"resource_type": 2, "resource_pattern_type": 3, "principal": "User:alice"}
    rest = {"host": "*", "operation": 3, "permission_type": 3}
    return request(30, 1, creations=[{**kinds, "resource_name": name, **rest} for name in names])


async def test_create_acls_at_the_maximum_of_an_org(context: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing rules may be created again, and other organisations have a maximum of their own."""
    monkeypatch.setattr(rules_module, "RULES_MAX", 3)
    await add_rules(context, 3)

    async def codes(org: str, *names: str) -> set[ErrorCode]:
        answer = await ask(context, creation(*names), Client(1, "127.0.0.1", 1, principal="User:admin", org=org))
        return {one.error_code for one in answer.results}

    assert await codes("default", "orders-0", "orders-1", "orders-2") == {ErrorCode.none}
    assert await codes("default", "orders-0", "other") == {ErrorCode.policy_violation}
    assert await codes("acme", "a", "b", "c", "c") == {ErrorCode.none}
    assert await codes("acme", "d") == {ErrorCode.policy_violation}
    assert [len(rules_of(context).table(org).rules) for org in ("default", "acme")] == [3, 3]
