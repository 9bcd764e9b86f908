"""Every served API has a rule of access; one without would be refused to all but super users."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from tidegate.apis import registry
from tidegate.apis.call import Client
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.protocol.versions import Fields
from tidegate.security.acls import ResourceType
from tidegate.server.authorization.access import Access
from tidegate.server.authorization.filters import FILTERS, Filter
from tidegate.server.authorization.guard import Authorization
from tidegate.server.authorization.rules import RULES


def test_every_served_api_has_a_rule() -> None:
    served = registry.load_all()

    assert {api.name for key, api in served.items() if key not in RULES} == set()
    assert set(FILTERS) <= set(RULES)


def _unresolved(api_key: ApiKey, *, creates: bool = True, may_create: bool = True) -> list[Any]:
    """What of the topics `known` and `other` is looked up in the store first."""
    catalog: Any = SimpleNamespace(get=lambda org, name: name if name == "known" else None)
    settings = SimpleNamespace(auto_create_topics_enable=creates)
    call: Any = SimpleNamespace(org="default", api_key=api_key, context=SimpleNamespace(settings=settings))
    none: Any = None
    topics = tuple(Fields(name=name, topic_id=None) for name in ("known", "other"))
    access = Access(none, none, catalog, call)
    return access.unresolved(Fields(topics=topics, allow_auto_topic_creation=may_create))


def test_topics_are_resolved_where_rights_depend_on_them() -> None:
    """Another broker may have created them."""
    assert _unresolved(ApiKey.METADATA) == ["other"]
    assert _unresolved(ApiKey.DELETE_TOPICS, creates=False) == ["other"]


@pytest.mark.parametrize(("creates", "may_create"), [(False, True), (True, False)])
def test_topics_that_are_not_created_are_not_resolved(creates: bool, may_create: bool) -> None:
    assert _unresolved(ApiKey.METADATA, creates=creates, may_create=may_create) == []


CLIENT = Client(1, "192.0.2.7", 1, principal="User:mallory")
_SIZES = [(10, False), (5_000, True)]


class _Tasks:
    """Calls whose rest is run in tasks, and the thread of each `apply`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: ApiKey) -> None:
        self.replies: list[bytes] = []
        self.threads: list[threading.Thread] = []
        self.rest: list[asyncio.Task[None]] = []
        hide = FILTERS[key]

        def apply(access: Access, request: Any, response: Any) -> Any:
            self.threads.append(threading.current_thread())
            return hide.apply(access, request, response)

        monkeypatch.setitem(FILTERS, key, Filter(hide.needed, apply))

    def call(self, key: ApiKey, version: int) -> Any:
        return SimpleNamespace(
            **dict.fromkeys(("context", "drop", "close", "run_alone", "draining", "mute", "correlation_id")),
            client=CLIENT, arrived_s=0.0, org="default", api_key=key, version=version, client_id="app", start=0, end=50,
            reply=self.replies.append, answer_later=lambda work, _: self.rest.append(asyncio.create_task(work)),
        )  # fmt: skip


def _guarded(key: ApiKey, handler: Any, *allowed: ResourceType) -> Any:
    """The guarded handler of a client with every right on these kinds of resources."""
    catalog: Any = SimpleNamespace(version=0, get=lambda org, name: None, by_id=lambda org, topic_id: None)
    authorizer: Any = SimpleNamespace(
        rules=SimpleNamespace(version=0), super_users=(), is_super_user=lambda principal: False,
        allows=lambda requester, operation, kind, name="": kind in allowed,
    )  # fmt: skip
    context: Any = SimpleNamespace(catalog=catalog)
    api = dataclasses.replace(registry.load_all()[key], handler=handler)
    return Authorization(context, authorizer, lambda call, codes: None).guarded({key: api})[key].handler


def _listed(count: int) -> Any:
    groups = tuple(Fields(group_id=f"group-{n}", protocol_type="consumer", group_state="Empty") for n in range(count))
    return Fields(throttle_time=NO_TIME, error_code=ErrorCode.none, groups=groups)


async def test_filtered_answers_of_tasks_are_written_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, key = _Tasks(monkeypatch, ApiKey.LIST_GROUPS), ApiKey.LIST_GROUPS

    async def list_groups(call: Any, request: Any) -> Any:
        return _listed(100)

    answer = await _guarded(key, list_groups)(tasks.call(key, 4), Fields(states_filter=()))

    assert answer == codec.encode(key, 4, _listed(0))
    assert tasks.threads and threading.main_thread() not in tasks.threads


async def test_answers_of_which_all_is_visible_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, key, listed = _Tasks(monkeypatch, ApiKey.LIST_GROUPS), ApiKey.LIST_GROUPS, _listed(100)

    async def list_groups(call: Any, request: Any) -> Any:
        return listed

    answer = await _guarded(key, list_groups, ResourceType.CLUSTER)(tasks.call(key, 4), Fields(states_filter=()))

    assert answer is listed
    assert not tasks.threads


@pytest.mark.parametrize(("topics", "in_thread"), _SIZES)
async def test_filtered_answers_of_inline_handlers_large_ones_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, topics: int, in_thread: bool
) -> None:
    """Small ones are answered at once."""
    tasks, key = _Tasks(monkeypatch, ApiKey.OFFSET_FETCH), ApiKey.OFFSET_FETCH

    def fetched(count: int) -> bytes:
        found = tuple(Fields(name=f"topic-{n}", partitions=()) for n in range(count))
        group = Fields(group_id="g", topics=found, error_code=ErrorCode.none)
        return codec.encode(key, 8, Fields(throttle_time=NO_TIME, groups=(group,)))

    handler = _guarded(key, lambda call, request: call.reply(fetched(topics)), ResourceType.GROUP)
    handler(tasks.call(key, 8), Fields(groups=(Fields(group_id="g", topics=None),), require_stable=False))

    assert len(tasks.replies) == (not in_thread)
    await asyncio.gather(*tasks.rest)
    assert tasks.replies == [fetched(0)]
    assert [one is not threading.main_thread() for one in tasks.threads] == [in_thread]


@pytest.mark.parametrize(("groups", "in_thread"), [(10, False), (500, True)])
async def test_refusals_of_inline_requests_large_ones_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, groups: int, in_thread: bool
) -> None:
    """Of which the handler gets nothing; the denied groups are one part, so that each answer is joined once."""
    tasks, key, encode = _Tasks(monkeypatch, ApiKey.OFFSET_FETCH), ApiKey.OFFSET_FETCH, codec.encode
    threads: list[threading.Thread] = []

    def encoded(*args: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(*args)

    monkeypatch.setattr(codec, "encode", encoded)
    call, asked = tasks.call(key, 8), tuple(Fields(group_id=f"g{n}", topics=()) for n in range(groups))
    call.end = 4 * groups
    _guarded(key, None)(call, Fields(groups=asked, require_stable=False, __version__=8))

    assert len(tasks.replies) == (not in_thread)
    await asyncio.gather(*tasks.rest)
    assert [one is not threading.main_thread() for one in threads] == [in_thread]
    [answer] = tasks.replies
    whole, _ = entity_reader(codec.response_class(key, 8))(answer, 0)
    assert [one.group_id for one in whole.groups] == [one.group_id for one in asked]
    assert {one.error_code for one in whole.groups} == {ErrorCode.group_authorization_failed}
