"""Scenarios 6, 44 and 45 of the specification's consumer groups: subscriptions by a regular expression of RE2."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.consumer_wire import Wire, code, wire_of
from tests.support.consumers import NO_NEWS, ConsumerWorld, Peer
from tests.support.valkey import ValkeyServer
from tidegate import regular_expressions
from tidegate.groups.consumer import topic_view
from tidegate.store.bounded_cache import BoundedCache


@pytest.fixture
async def wire(valkey: ValkeyServer) -> AsyncIterator[Wire]:
    async with wire_of(valkey) as opened:
        yield opened


def by_regex(world: ConsumerWorld, name: str, regex: str, *topics: str) -> Peer:
    return world.peer(name, *topics, regex=regex)


@pytest.mark.parametrize("regex", ["(", "[", "(?=a)", r"(a)\1", "((.?){30}){30}"])
async def test_scenario_6_patterns_that_re2_refuses(wire: Wire, regex: str) -> None:
    refused = await wire.join("m", subscribed_topic_regex=regex)
    assert (code(refused), refused.member_id, refused.member_epoch) == ("INVALID_REGULAR_EXPRESSION", None, 0)
    assert code(await wire.describe()) == "GROUP_ID_NOT_FOUND"

    joined = await wire.join("m", "t1")
    later = await wire.heartbeat("m", joined.member_epoch, subscribed_topic_regex=regex)

    assert code(later) == "INVALID_REGULAR_EXPRESSION"
    assert code(await wire.heartbeat("m", joined.member_epoch)) == "NONE"


async def test_scenario_44_a_pattern_is_resolved_in_the_join(consumers: ConsumerWorld) -> None:
    consumers.topics.put("rx-a", 1)
    consumers.topics.put("rx-b", 1)

    a = by_regex(consumers, "a", "rx-.*")
    assert await a.join() == (2, "rx-a:0 rx-b:0")  # Kafka: a later heartbeat brings them
    assert await a.heartbeat() == (2, NO_NEWS)
    b = by_regex(consumers, "b", "rx-.*")
    assert (await b.join())[0] == a.epoch + 1
    await consumers.reconcile(a, b)
    assert {consumers.topics.text(one.assigned) for one in (a, b)} == {"rx-a:0", "rx-b:0"}
    await b.leave()
    await a.leave()

    c = by_regex(consumers, "c", "rx-a", "t1")
    assert (await c.join())[1] == "rx-a:0 t1:0"


async def test_scenario_45_patterns_match_the_whole_name(consumers: ConsumerWorld) -> None:
    for name in ("rx-a", "rx-b", "__consumer_offsets"):
        consumers.topics.put(name, 1)

    for regex, found in (
        ("rx", ""),
        ("rx-[ab]|t1", "rx-a:0 rx-b:0 t1:0"),
        ("__consumer_off.*", "__consumer_offsets:0"),
        ("^rx-a$", "rx-a:0"),
    ):
        member = by_regex(consumers, "m", regex)
        assert (await member.join())[1] == found, regex
        await member.leave()


class _Watched:
    """A pattern that notes in which threads it matches."""

    def __init__(self, pattern: Any, threads: set[threading.Thread]) -> None:
        self._pattern, self._threads = pattern, threads

    def fullmatch(self, name: str) -> Any:
        self._threads.add(threading.current_thread())
        return self._pattern.fullmatch(name)


async def test_patterns_are_matched_beside_the_event_loop(
    consumers: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    compiled = topic_view.compile_regex
    monkeypatch.setattr(topic_view, "compile_regex", lambda regex: _Watched(compiled(regex), threads))
    consumers.topics.put("rx-a", 1)
    a = by_regex(consumers, "a", "rx-.*")

    assert await a.join() == (2, "rx-a:0")
    consumers.topics.put("rx-b", 1)
    assert await a.heartbeat() == (3, "rx-a:0 rx-b:0")

    assert threads
    assert threading.main_thread() not in threads


async def test_stored_pattern_that_is_refused_now_matches_nothing(
    consumers: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = by_regex(consumers, "a", "t4.*"), consumers.peer("b", "t1")
    await consumers.joined(a, b)
    monkeypatch.setattr(regular_expressions, "LENGTH_MAX", 3)
    consumers.topics.put("t1", 2)

    assert await b.heartbeat() == (b.epoch, "t1:0,1")


async def test_patterns_that_do_not_fit_in_the_cache_are_matched_beside_the_event_loop(
    consumers: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    compiled = topic_view.compile_regex
    monkeypatch.setattr(topic_view, "compile_regex", lambda regex: _Watched(compiled(regex), threads))
    for broker in consumers.brokers:
        broker.consumers.groups.topics._matched = BoundedCache(0)
    a, b, c = (by_regex(consumers, name, f"t{number}") for number, name in enumerate("abc", 1))

    await consumers.joined(a, b, c)

    assert [consumers.topics.text(one.assigned) for one in (a, b, c)] == ["t1:0", "t2:0,1", "t3:0,1,2"]
    assert threads
    assert threading.main_thread() not in threads
