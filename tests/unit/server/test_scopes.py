"""Requests that were allowed are not judged again until the rules, the topics, or what they are about change."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.wire import encode_request
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes
from tidegate.apis import registry
from tidegate.apis.call import Client
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.security.acls import Operation
from tidegate.server.authorization.guard import Authorization
from tidegate.server.authorization.scopes import NAMES_MAX


class Judge:
    """An authorizer that counts what it is asked; it denies the names in `denied`."""

    def __init__(self) -> None:
        self.super_users: frozenset[str] = frozenset()
        self.rules = SimpleNamespace(version=1)
        self.denied: set[str] = set()
        self.asked: list[tuple[Operation, str]] = []

    def is_super_user(self, principal: str) -> bool:
        return False

    def allows(self, requester: Any, operation: Operation, kind: Any, name: str) -> bool:
        self.asked.append((operation, name))
        return name not in self.denied


class Guarded:
    """One API behind access control; `served` has the requests that reached its handler."""

    def __init__(self, api_key: ApiKey) -> None:
        self.judge, self.served, self.replies = Judge(), list[Any](), list[Any]()
        self.catalog = SimpleNamespace(version=1, get=lambda org, name: name, by_id=lambda org, topic_id: None)
        context: Any = SimpleNamespace(catalog=self.catalog)
        judge: Any = self.judge
        api = dataclasses.replace(
            registry.load_all()[api_key], handler=lambda call, request: self.served.append(request)
        )
        self._api = Authorization(context, judge, lambda call, codes: None).guarded({api_key: api})[api_key]
        self._client = Client(1, "10.0.0.1", 1)

    def ask(self, request: Any, version: int = 9) -> None:
        call: Any = SimpleNamespace(
            client=self._client, api_key=self._api.key, version=version, org="default", reply=self.replies.append,
            context=None, correlation_id=1, client_id="c", arrived_s=0.0, drop=None, close=self.replies.append,
            run_alone=None, draining=None, mute=None, answer_later=None,
        )  # fmt: skip
        self._api.handler(call, request)


def commit(group: str, *topics: str) -> Any:
    return Fields(group_id=group, topics=tuple(Fields(name=name, topic_id=None) for name in topics))


def test_scope_allowed_once_is_not_judged_again() -> None:
    guarded = Guarded(ApiKey.OFFSET_COMMIT)
    for _ in range(3):
        guarded.ask(commit("g", "a", "b"))

    assert [name for _, name in guarded.judge.asked] == ["g", "a", "b"]
    assert len(guarded.served) == 3


@pytest.mark.parametrize("other", [commit("h", "a"), commit("g", "b"), commit("g", "a", "b"), commit("g")])
def test_other_scope_is_judged(other: Any) -> None:
    guarded = Guarded(ApiKey.OFFSET_COMMIT)
    guarded.ask(commit("g", "a"))
    guarded.judge.asked.clear()
    guarded.ask(other)
    assert guarded.judge.asked


def test_change_of_rules_or_topics_is_judged() -> None:
    guarded = Guarded(ApiKey.OFFSET_COMMIT)
    guarded.ask(commit("g", "a"))
    for changed in (guarded.judge.rules, guarded.catalog):
        changed.version += 1
        guarded.judge.asked.clear()
        guarded.ask(commit("g", "a"))
        assert guarded.judge.asked


def test_produce_is_read_once() -> None:
    guarded = Guarded(ApiKey.PRODUCE)
    frame = encode_request(produce_request([("a", [(0, batch_bytes(count=1))])]), 1, None)
    version = int(produce_request([]).__version__)
    body = memoryview(frame)[4 + 10 + (version >= 9) :]
    guarded.ask(body, version)
    guarded.ask(body, version)

    assert [name for _, name in guarded.judge.asked] == ["a"]
    assert [type(one).__name__ for one in guarded.served] == ["memoryview", "ProduceRequest"]


@pytest.mark.parametrize(("names", "judged"), [(NAMES_MAX, 0), (NAMES_MAX + 1, NAMES_MAX + 2)])
def test_requests_with_many_topics_are_judged_each_time(names: int, judged: int) -> None:
    guarded = Guarded(ApiKey.OFFSET_COMMIT)
    for _ in range(2):
        guarded.judge.asked.clear()
        guarded.ask(commit("g", *map(str, range(names))))
    assert len(guarded.judge.asked) == judged


def test_request_that_begins_like_an_allowed_one_is_judged() -> None:
    guarded = Guarded(ApiKey.OFFSET_COMMIT)
    guarded.ask(commit("g", *map(str, range(NAMES_MAX))))
    guarded.judge.denied.add("secret")
    guarded.ask(commit("g", *map(str, range(NAMES_MAX)), "secret"))
    assert [name for _, name in guarded.judge.asked][-1] == "secret"
