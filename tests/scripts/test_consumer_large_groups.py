"""Consumer groups of many partitions or topic names: where their decisions are written and read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.consumers import ConsumerWorld
from tidegate.groups import offsets
from tidegate.groups.consumer import stored
from tidegate.groups.offsets import entry_json


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[bool]]:
    """By function: whether it ran in the main thread."""
    found: dict[str, set[bool]] = {}

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(stored, name)

        def run(*args: Any) -> Any:
            found.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return original(*args)

        return run

    for name in ("dump_fields", "dump_target", "dump_member", "load_group"):
        monkeypatch.setattr(stored, name, watched(name))
    return found


@pytest.mark.parametrize(("partitions", "inline"), [(6, True), (8_000, False)])
async def test_group_of_many_partitions_is_written_and_read_beside_the_event_loop(
    consumers: ConsumerWorld, threads: dict[str, set[bool]], partitions: int, inline: bool
) -> None:
    consumers.topics.put("t", partitions)
    a, b = await consumers.joined(consumers.peer("a", "t"), consumers.peer("b", "t"))
    assert len(a.assigned | b.assigned) == partitions
    threads.clear()

    assert len((await consumers.group()).members) == 2
    await consumers.joined(a, b, consumers.peer("c", "t"))

    assert [name for name in ("dump_target", "dump_member", "load_group") if inline not in threads[name]] == []
    assert not inline or threads["dump_target"] == {True}


@pytest.mark.parametrize(("count", "inline"), [(1_000, True), (4_000, False)])
async def test_fields_of_many_names_are_written_beside_the_event_loop(
    consumers: ConsumerWorld, threads: dict[str, set[bool]], count: int, inline: bool
) -> None:
    names = [f"topic-{number}" for number in range(count)]
    member = consumers.peer("b", "t1")
    await consumers.joined(consumers.peer("a", "t1", *names), member)
    threads.clear()

    await member.join("t1", "t2")

    assert threads["dump_fields"] == {inline}


@pytest.mark.parametrize(
    "names",
    [[f"topic-{number}" for number in range(50_000)], [f"{number}".ljust(1 << 20, "n") for number in range(4)]],
    ids=["many", "long"],
)
async def test_too_many_subscribed_names_protect_every_offset(consumers: ConsumerWorld, names: list[str]) -> None:
    store, keys, entry = consumers.store, consumers.keys, entry_json(5, -1, "0" * 32, "")
    await store.command("HSET", keys.offsets, "t1:0", entry, "t2:0", entry, "t3:0", entry)
    a, b = consumers.peer("a", "t1", *names[::2]), consumers.peer("b", "t2", *names[1::2])
    await consumers.joined(a, b)

    assert await store.command("HSTRLEN", keys.group, "subscribed") == len("[]")
    asked = {"t1": [0], "t2": [0], "t3": [0]}
    assert await offsets.delete(store, keys, "1", asked) == {"t1", "t2", "t3"}

    a.topics = frozenset(["t1"])
    await a.full(own="t1:0")
    assert await offsets.delete(store, keys, "1", asked) == {"t1", "t2"}
