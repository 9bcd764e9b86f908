"""Reading the access rules, quotas and users of all organisations: not on the event loop, for it takes long."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.built import build_broker
from tidegate.quotas.entities import Entity, Quota
from tidegate.quotas.table import QuotaTable
from tidegate.security import rules as rules_module
from tidegate.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tidegate.security.rules import AccessRules
from tidegate.security.users import User, Users
from tidegate.store.store import Store

RULE = AclBinding(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that read stored rules, quotas and users."""
    found: list[threading.Thread] = []

    def noted(read: Any) -> Any:
        def run(*args: Any) -> Any:
            found.append(threading.current_thread())
            return read(*args)

        return run

    monkeypatch.setattr(rules_module, "tables_of", noted(rules_module.tables_of))
    monkeypatch.setattr(QuotaTable, "of_stored", noted(QuotaTable.of_stored))
    monkeypatch.setattr(User, "parse", noted(User.parse))
    return found


async def test_rules_are_read_in_a_thread(store: Store, threads: list[threading.Thread]) -> None:
    """20,000 take 0.15 s."""
    rules = AccessRules(store, store.settings)
    await rules.add("default", [RULE], "test")

    assert rules.table("default").rules == (RULE,)
    assert threads and threading.main_thread() not in threads


async def test_quotas_are_read_in_a_thread(store: Store, threads: list[threading.Thread]) -> None:
    """20,000 take 0.15 s."""
    context = build_broker(store).context
    assert context.quotas is not None
    alice = Entity.of({"user": "alice"})
    await context.quotas.quotas.change("default", [(alice, Quota.PRODUCE, 1.0)], "test")

    assert context.quotas.quotas.table.of_org("default") == {alice: {Quota.PRODUCE: 1.0}}
    assert threads and threading.main_thread() not in threads


async def test_users_are_read_in_a_thread(store: Store, threads: list[threading.Thread]) -> None:
    """20,000 take 0.5 s."""
    users = Users(store, store.cluster_keys)
    for name in ("bob", "alice"):
        await users.change(name, lambda _, name=name: User(name))
    threads.clear()

    assert [user.name for user in await users.all()] == ["alice", "bob"]
    assert threads and threading.main_thread() not in threads
