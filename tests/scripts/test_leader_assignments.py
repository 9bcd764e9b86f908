"""SyncGroup of a leader that names members, partitions and topics repeatedly, or too many of them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.rounds import counted_rounds
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.apis.slices import SLICE
from tidegate.groups import classic
from tidegate.protocol import consumer_blobs
from tidegate.protocol.consumer_blobs import write_assignment
from tidegate.settings import Settings
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog

TIMES = 1_000
UNKNOWN = 4_000


@pytest.fixture
async def broker(store: Store, settings: Settings) -> AsyncIterator[WholeBroker]:
    own = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})
    opened = await WholeBroker(own, 1).start()
    yield opened
    await opened.close()


@pytest.fixture(params=["batch", "record"])
async def leader(broker: WholeBroker, request: pytest.FixtureRequest) -> ClientOf:
    """A member that has joined alone; the topic `t` has two partitions."""
    await broker.create("t", 2, tidegate_format=request.param)
    client = broker.client()
    await client.join("t")
    return client


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs of which an owner is noted."""
    found: list[str] = []
    run = Store.run

    async def counted(self: Store, script: Script, keys: Sequence[str], *args: Any) -> Any:
        if script.name == "log/note_owner":
            found.append(keys[0])
        return await run(self, script, keys, *args)

    monkeypatch.setattr(Store, "run", counted)
    return found


async def sync(leader: ClientOf, *assignments: tuple[str, bytes]) -> Any:
    """SyncGroup with these assignments, after which the mirror is written."""
    asked = leader.sync_request({str(place): blob for place, (_, blob) in enumerate(assignments)})
    for one, (member_id, _) in zip(asked.assignments, assignments, strict=True):
        object.__setattr__(one, "member_id", member_id)
    answer = await leader.ask(asked)
    await leader.broker.mirrored()
    return answer


async def test_partition_named_repeatedly_has_its_owner_noted_once(leader: ClientOf, noted: list[str]) -> None:
    everything = write_assignment({"t": [0, 1] * TIMES})
    answer = await sync(leader, *[(leader.member_id, everything)] * 3)

    assert answer.error_code is ErrorCode.none
    assert sorted(noted) == sorted(set(noted))
    assert len(noted) == 2


async def test_repeated_sync_of_a_stable_leader_is_no_more(leader: ClientOf, noted: list[str]) -> None:
    for _ in range(2):
        await sync(leader, *[(leader.member_id, write_assignment({"t": [0] * TIMES}))] * 3)

    assert len(noted) == 2


async def test_member_named_repeatedly_has_its_last_assignment(leader: ClientOf, noted: list[str]) -> None:
    first, last = write_assignment({"t": [0]}), write_assignment({"t": [1]})

    answer = await sync(leader, (leader.member_id, first), ("nobody", first), (leader.member_id, last))

    assert answer.assignment == last
    topic = leader.broker.context.catalog.get("default", "t")
    assert topic is not None
    assert noted == [leader.broker.context.logs.partition(topic, 1).keys.log]


async def test_topics_that_do_not_exist_take_one_refresh(leader: ClientOf, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshes, refresh = [], Catalog.refresh

    async def counted(self: Catalog) -> None:
        refreshes.append(1)
        await refresh(self)

    monkeypatch.setattr(Catalog, "refresh", counted)
    await sync(leader, (leader.member_id, write_assignment({f"absent-{n}": [0] for n in range(UNKNOWN)})))

    assert len(refreshes) <= 2  # for the mirror, and for topics of format record


async def test_large_assignment_is_not_decoded_on_the_event_loop(
    leader: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_string, threads = consumer_blobs._string, set()
    with counted_rounds() as rounds:

        def counted(*args: Any) -> Any:
            threads.add(threading.current_thread())
            if threading.current_thread() is threading.main_thread():
                rounds.note()
            return read_string(*args)

        monkeypatch.setattr(consumer_blobs, "_string", counted)
        await sync(leader, (leader.member_id, write_assignment({f"absent-{n}": [0] for n in range(UNKNOWN)})))

    assert threads
    assert rounds.most <= SLICE


@pytest.mark.parametrize(("limit", "most"), [("ASSIGNMENTS_BYTES_MAX", 100), ("ASSIGNED_MAX", 10)])
async def test_assignments_beyond_a_limit_are_refused_before_owners_are_noted(
    leader: ClientOf, noted: list[str], monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(classic, limit, most, raising=False)
    mine = leader.member_id, write_assignment({"t": [0, 1]})

    answer = await sync(leader, mine, *((f"nobody-{n}", bytes(10)) for n in range(most)))

    assert answer.error_code is ErrorCode.unknown_server_error
    assert noted == []
    assert (await sync(leader, mine)).error_code is ErrorCode.none
