"""ListGroups and ListTransactions of many, with many filters: each filter is read once or twice, all in slices."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.rounds import Rounds, counted_rounds
from tidegate.apis import cluster_admin, group_admin, registry, transaction_admin
from tidegate.apis.slices import SLICE
from tidegate.groups import directory
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.settings import Settings
from tidegate.store.keys import TransactionKeys
from tidegate.store.store import Store
from tidegate.transactions import listing

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


def given_transactions(count: int, **context: Any) -> Any:
    """A call at transactional ids of one shard; each seventh is Ongoing. Their producer ids are their numbers."""
    call = called({}, **context)
    transactions, _ = TransactionKeys.of_shard(call.store.prefix, 0)
    states = [b"Empty" if number % 7 else b"Ongoing" for number in range(count)]
    stored = {b"default/t-%d" % number: b"%s %d 5" % (state, number) for number, state in enumerate(states)}
    call.store = called({transactions: stored, call.store.cluster_keys.transaction_shards: {b"0": b""}}).store
    call.store.clock = SimpleNamespace(now_ms=lambda: 10)
    return call


async def listed_transactions(call: Any, states: Any = (), producer_ids: Any = ()) -> Any:
    handler = registry.load_all()[ApiKey.LIST_TRANSACTIONS].handler
    filters = {"state_filters": states, "producer_id_filters": producer_ids}
    return await handler(call, Fields(**filters, duration_filter=-1, transactional_id_pattern=None))


async def test_list_transactions_of_many_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_rounds() as parsed, counted_rounds() as allowed, counted_rounds() as made:
        security = SimpleNamespace(authorizer=SimpleNamespace(allows=lambda *_: allowed.note() or True))
        call = given_transactions(MANY, security=security)
        noted(monkeypatch, parsed, listing, "unquote")
        noted(monkeypatch, made, transaction_admin, "Fields")
        answer = await listed_transactions(call)

    assert len(answer.transaction_states) == parsed.total == allowed.total == MANY
    assert max(parsed.most, allowed.most, made.most) <= MOST


@pytest.mark.parametrize("kind", ["states", "producer_ids"])
async def test_list_transactions_reads_its_filters_in_slices(kind: str) -> None:
    call = given_transactions(70)
    with counted_rounds() as rounds:
        others: list[Any] = [f"s-{n}" for n in range(MANY)] if kind == "states" else list(range(1_000, 1_000 + MANY))
        named = ["Ongoing"] if kind == "states" else list(range(0, 70, 7))
        answer = await listed_transactions(call, **{kind: walked(rounds, *others, *named)})

    assert [one.producer_id for one in answer.transaction_states] == list(range(0, 70, 7))
    assert answer.unknown_state_filters == tuple(others if kind == "states" else ())
    assert rounds.total <= 2 * (MANY + len(named))  # once for what is selected, once for the unknown states
    assert rounds.most <= MOST


async def test_list_config_resources_of_many_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [SimpleNamespace(name=f"t-{number}") for number in range(MANY)]
    call = called({}, catalog=SimpleNamespace(topics=lambda org: topics))
    call.version = 1
    api = registry.load_all()[ApiKey.LIST_CONFIG_RESOURCES]
    with counted_rounds() as rounds:
        noted(monkeypatch, rounds, cluster_admin, "ConfigResource")
        answer = await api.handler(call, Fields(resource_types=(2,)))

    assert [one.resource_name for one in answer.config_resources] == sorted(one.name for one in topics)
    assert rounds.total == MANY
    assert rounds.most <= MOST
    assert api.answers_large
