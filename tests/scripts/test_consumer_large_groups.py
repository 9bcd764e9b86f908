"""Consumer groups of many partitions: where their decisions are written and read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.consumers import ConsumerWorld
from tidegate.groups.consumer import stored


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

    for name in ("dump_target", "dump_member", "load_group"):
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
