"""Which topics of DescribeTopicPartitions a client may see, page by page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.server.authorization.access import Access
from tidegate.server.authorization.rules import RULES, TOPIC_DENIED


class _AccessTo:
    """A client that may describe some of the topics `a` to `d`."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.call = SimpleNamespace(org="default")
        topics = [SimpleNamespace(name=name) for name in "abcd"]
        self.catalog = SimpleNamespace(topics=lambda org: topics)

    def topic(self, operation: object, name: str) -> bool:
        return name in self._names


def _judged(access: _AccessTo, *names: str, cursor: tuple[str, int] | None = None) -> tuple[Any, list[str]]:
    """The request that is left, and the names that are denied."""
    at = cursor and Fields(topic_name=cursor[0], partition_index=cursor[1])
    asked = Fields(topics=tuple(Fields(name=name) for name in names), cursor=at)
    verdict = RULES[ApiKey.DESCRIBE_TOPIC_PARTITIONS](cast(Access, access), asked)
    assert verdict is not None
    assert {code for _, code in verdict.denied} <= {TOPIC_DENIED}
    return verdict.allowed, [topic.name for part, _ in verdict.denied for topic in part.topics]


def _names(request: Any) -> list[str]:
    return [topic.name for topic in request.topics]


def test_all_topics_leave_out_the_denied() -> None:
    request, denied = _judged(_AccessTo("a", "c"))
    assert (_names(request), denied) == (["a", "c"], [])


def test_named_topics_are_denied_one_by_one() -> None:
    request, denied = _judged(_AccessTo("a"), "a", "b")
    assert (_names(request), denied) == (["a"], ["b"])


def test_nothing_allowed_is_not_all_topics() -> None:
    request, _ = _judged(_AccessTo())
    assert request.topics and not list(request.topics)


def test_topics_before_the_cursor_are_not_denied_again() -> None:
    request, denied = _judged(_AccessTo("c"), "a", "c", "d", cursor=("c", 1))
    assert (_names(request), denied) == (["c"], ["d"])
    assert request.cursor.partition_index == 1


def test_cursor_at_a_denied_topic_continues_behind_it() -> None:
    for names in (("b", "c"), ()):
        request, _ = _judged(_AccessTo("c"), *names, cursor=("b", 1))
        assert (_names(request), request.cursor) == (["c"], None)


def test_invalid_cursor_is_left_for_the_handler_to_refuse() -> None:
    request, _ = _judged(_AccessTo("c"), cursor=("b", -1))
    assert request.cursor.partition_index == -1
    request, _ = _judged(_AccessTo("c"), "c", cursor=("b", 1))
    assert request.cursor.topic_name == "b"
