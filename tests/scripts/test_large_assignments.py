"""Members of consumer and share groups with many partitions: where their targets and answers are written."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.scripts.test_streams_wire import Streams, subtopology, topology_of
from tests.support.consumer_wire import Wire, code, wire_of
from tests.support.valkey import ValkeyServer
from tidegate.apis import consumer_groups, epoch_groups, share_groups, streams_groups
from tidegate.groups.share import coordinator

SHARE_HEARTBEAT, SHARE_DESCRIBE = 76, 77
SIZES = pytest.mark.parametrize(("partitions", "is_inline"), [(100, True), (4_000, False)])


@pytest.fixture
async def wire(valkey: ValkeyServer) -> AsyncIterator[Wire]:
    async with wire_of(valkey) as wire:
        yield wire


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """By function: whether each call ran in the event loop's thread."""
    found: dict[str, list[bool]] = {}

    def watched(module: Any, name: str) -> Callable[..., Any]:
        original = getattr(module, name)

        def run(*args: Any) -> Any:
            found.setdefault(name, []).append(threading.current_thread() is threading.main_thread())
            return original(*args)

        return run

    for module, name in (
        (epoch_groups, "consumer_group_heartbeat"),
        (coordinator, "dump_target"),
        (consumer_groups, "_assignment"),
        (share_groups, "_assignment"),
        (streams_groups, "_assignment"),
    ):
        monkeypatch.setattr(module, name, watched(module, name))
    return found


async def join_share_group(wire: Wire, member: str, *topics: str) -> Any:
    return await wire.ask(
        SHARE_HEARTBEAT, 1, group_id=wire.group, member_id=member, member_epoch=0, rack_id=None,
        subscribed_topic_names=topics,
    )  # fmt: skip


def assigned(answer: Any) -> list[int]:
    assert code(answer) == "NONE"
    (topic,) = answer.assignment.topic_partitions
    return list(topic.partitions)


@SIZES
async def test_consumer_group_assignment_is_answered_beside_the_event_loop(
    wire: Wire, inline: dict[str, list[bool]], partitions: int, is_inline: bool
) -> None:
    await wire.app.broker.context.catalog.create("default", "many", partitions)

    joined = await wire.join("a", "many")
    assert assigned(joined) == list(range(partitions))
    assert code(await wire.heartbeat("a", joined.member_epoch, rebalance_timeout_ms=1_000)) == "NONE"

    assert inline["consumer_group_heartbeat"] == [is_inline, True]


@SIZES
async def test_share_group_assignment_is_written_and_answered_beside_the_event_loop(
    wire: Wire, inline: dict[str, list[bool]], partitions: int, is_inline: bool
) -> None:
    await wire.app.broker.context.catalog.create("default", "many", partitions)

    assert assigned(await join_share_group(wire, "a", "many")) == list(range(partitions))

    assert inline == {"consumer_group_heartbeat": [is_inline], "dump_target": [is_inline]}


@SIZES
async def test_members_of_many_partitions_are_described_beside_the_event_loop(
    wire: Wire, inline: dict[str, list[bool]], partitions: int, is_inline: bool
) -> None:
    await wire.app.broker.context.catalog.create("default", "many", partitions)
    await wire.join("a", "many")
    described = [await wire.describe()]
    wire.group = f"{wire.group}-share"
    await join_share_group(wire, "a", "many")
    described += (
        await wire.ask(SHARE_DESCRIBE, 1, group_ids=(wire.group,), include_authorized_operations=False)
    ).groups
    for group in described:
        assert [len(one.assignment.topic_partitions[0].partitions) for one in group.members] == [partitions]
    wire.group = f"{wire.group}-streams"
    streams = Streams(wire)
    await streams.join("a", topology_of(subtopology(sources=("many",))))
    (member,) = (await streams.describe()).members
    assert [len(one.partitions) for one in member.assignment.active_tasks] == [partitions]

    assert inline["_assignment"] == [is_inline] * 5
