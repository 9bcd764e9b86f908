"""ListGroups of many, with many filters: each filter is read once, and all is done in slices."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.rounds import Rounds, counted_rounds
from tidegate.apis import group_admin, registry
from tidegate.apis.slices import SLICE
from tidegate.groups import directory
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.settings import Settings
from tidegate.store.store import Store

MANY = 5 * SLICE
MOST = 2 * SLICE
"""Of one kind between two rounds of the event loop: the end of a slice, and the next one."""


class Walked(tuple[Any, ...]):
    """A filter of a request; `rounds` notes each element that is compared or read."""

    rounds: Rounds

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            self.rounds.note()
            yield one

    def __contains__(self, wanted: object) -> bool:
        return any(one == wanted for one in self)


def walked(rounds: Rounds, *values: Any) -> Walked:
    found = Walked(values)
    found.rounds = rounds
    return found


def noted(monkeypatch: pytest.MonkeyPatch, rounds: Rounds, module: Any, name: str) -> None:
    """Count the calls of a function of a module."""
    work = getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        rounds.note()
        return work(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)


def called(hashes: dict[str, dict[bytes, bytes]], **context: Any) -> Any:
    """A call of a broker that is alone, at a store with these hashes."""
    store = Store(Settings())

    async def command(verb: str, key: str) -> Any:
        found = hashes.get(key, {})
        return list(found) if verb == "HKEYS" else dict(found)

    store.command = store.read = command  # type: ignore[assignment]
    lease = SimpleNamespace(shown_node_id=lambda _: 1, nameable=lambda _: [SimpleNamespace(node_id=1)])
    given: dict[str, Any] = {"broker_lease": lease, "settings": store.settings, "security": None}
    client = SimpleNamespace(listener="", principal="User:alice", host="127.0.0.1")
    return SimpleNamespace(context=SimpleNamespace(**given | context), client=client, store=store, org="default")


def given_groups(count: int, *, shards: int = 1) -> Any:
    """A call at groups in this many shards; each seventh is Empty."""
    hashes: dict[str, dict[bytes, bytes]] = {}
    keys = Store(Settings()).shard_keys
    for number in range(count):
        state = b"Stable" if number % 7 else b"Empty"
        hashes.setdefault(keys(number % shards).groups, {})[b"default/g-%d" % number] = b"classic %s consumer" % state
    return called(hashes)


async def listed(call: Any, states: Any = (), types: Any = ()) -> list[str]:
    handler = registry.load_all()[ApiKey.LIST_GROUPS].handler
    answer = await handler(call, Fields(states_filter=states, types_filter=types))
    return [one.group_id for one in answer.groups]


@pytest.mark.parametrize("shards", [1, 50])
async def test_list_groups_of_many_is_done_in_slices(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    call = given_groups(MANY, shards=shards)
    with counted_rounds() as parsed, counted_rounds() as ordered, counted_rounds() as made:
        noted(monkeypatch, parsed, directory, "unquote")
        noted(monkeypatch, ordered, directory, "_GROUP_ID")
        noted(monkeypatch, made, group_admin, "ListedGroup")
        found = await listed(call)

    assert found == sorted(f"g-{number}" for number in range(MANY))
    assert parsed.total == made.total == MANY
    assert max(parsed.most, ordered.most, made.most) <= MOST


@pytest.mark.parametrize("kind", ["states", "types"])
async def test_list_groups_reads_its_filters_once_and_in_slices(kind: str) -> None:
    call = given_groups(70)
    with counted_rounds() as rounds:
        named = " eMpty " if kind == "states" else "Classic"
        found = await listed(call, **{kind: walked(rounds, *map(str, range(MANY)), named)})

    assert len(found) == (10 if kind == "states" else 70)
    assert rounds.total == MANY + 1
    assert rounds.most <= MOST
