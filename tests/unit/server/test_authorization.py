"""Every served API has a rule of access; one without would be refused to all but super users."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.apis import registry
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.server.authorization.access import Access
from tidegate.server.authorization.filters import FILTERS
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
