"""Streams groups of many tasks or topics: where their requests are read, decided on, stored and answered."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.scripts.test_streams_wire import Streams, active, code, statuses, subtopology, topic, topology_of
from tests.support.consumer_wire import wire_of
from tests.support.valkey import ValkeyServer
from tidegate.apis import streams_groups
from tidegate.groups.streams import coordinator, stored

WATCHED = (
    (streams_groups, "_topology"),
    (streams_groups, "_owned"),
    (streams_groups, "_task_ids"),
    (streams_groups, "_described_topology"),
    (coordinator, "_apply"),
    (stored, "dump_fields"),
    (stored, "dump_member"),
)


@pytest.fixture
async def streams(valkey: ValkeyServer) -> AsyncIterator[Streams]:
    async with wire_of(valkey) as wire:
        yield Streams(wire)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[bool]]:
    """By function: whether it ran in the event loop's thread."""
    found: dict[str, set[bool]] = {}

    def watched(module: Any, name: str) -> Callable[..., Any]:
        original = getattr(module, name)

        def run(*args: Any) -> Any:
            found.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return original(*args)

        return run

    for module, name in WATCHED:
        monkeypatch.setattr(module, name, watched(module, name))
    return found


@pytest.mark.parametrize(("partitions", "is_inline"), [(100, True), (4_000, False)])
async def test_tasks_of_one_member_are_assigned_and_written_beside_the_event_loop(
    streams: Streams, inline: dict[str, set[bool]], partitions: int, is_inline: bool
) -> None:
    await streams.wire.app.broker.context.catalog.create("default", "many", partitions)

    joined = await streams.join("a", topology_of(subtopology(sources=("many",))))

    assert active(joined) == list(range(partitions))
    for name in ("_apply", "dump_member", "_task_ids"):
        assert inline[name] == {is_inline}, name


@pytest.mark.parametrize(("partitions", "is_inline"), [(100, True), (4_000, False)])
async def test_owned_tasks_are_read_beside_the_event_loop(
    streams: Streams, inline: dict[str, set[bool]], partitions: int, is_inline: bool
) -> None:
    await streams.wire.app.broker.context.catalog.create("default", "many", partitions)
    joined = await streams.join("a", topology_of(subtopology(sources=("many",))))
    inline.clear()

    owning = await streams.own("a", joined.member_epoch, *range(partitions))

    assert (code(owning), active(owning)) == ("NONE", None)
    assert inline["_owned"] == {is_inline}


@pytest.mark.parametrize(("count", "is_inline"), [(20, True), (4_000, False)])
async def test_topology_of_many_topics_is_read_and_compared_beside_the_event_loop(
    streams: Streams, inline: dict[str, set[bool]], count: int, is_inline: bool
) -> None:
    topology = topology_of(subtopology(sources=tuple(f"absent-{number}" for number in range(count))))

    joined = await streams.join("a", topology)
    later = await streams.heartbeat("a", joined.member_epoch)

    assert (statuses(joined), statuses(later)) == ([1], [1])
    for name in ("_topology", "_apply"):
        assert inline[name] == {is_inline}, name


@pytest.mark.parametrize(("count", "is_inline"), [(20, True), (4_000, False)])
async def test_fields_of_many_topics_are_written_beside_the_event_loop(
    streams: Streams, inline: dict[str, set[bool]], count: int, is_inline: bool
) -> None:
    await streams.join("a", topology_of(subtopology(sources=tuple(f"absent-{number}" for number in range(count)))))

    assert inline["dump_fields"] == {is_inline}


@pytest.mark.parametrize(("members", "is_inline"), [(3, True), (30, False)])
async def test_standby_tasks_of_many_members_are_assigned_beside_the_event_loop(
    streams: Streams, inline: dict[str, set[bool]], members: int, is_inline: bool
) -> None:
    """Each is compared with every member."""
    await streams.wire.app.broker.context.catalog.create("default", "many", 1_000)
    await streams.configure(num_standby_replicas="1")
    topology = topology_of(subtopology(sources=("many",)))
    for number in range(members):
        inline.clear()
        await streams.join(f"m{number}", topology)

    assert inline["_apply"] == {is_inline}


@pytest.mark.parametrize(("count", "is_inline"), [(20, True), (500, False)])
async def test_topology_of_many_changelogs_is_described_beside_the_event_loop(
    streams: Streams, inline: dict[str, set[bool]], count: int, is_inline: bool
) -> None:
    changelogs = tuple(topic(f"changelog-{number}") for number in range(count))
    joined = await streams.join("a", topology_of(subtopology(sources=("absent",), state_changelog_topics=changelogs)))
    assert statuses(joined) == [1]

    (described,) = (await streams.describe()).topology.subtopologies

    assert [one.name for one in described.state_changelog_topics] == [one.name for one in changelogs]
    assert inline["_described_topology"] == {is_inline}
