"""Changes by operators that were under way when the process stood still, or whose broker's lease has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.whole_broker import WholeBroker
from tidegate.cluster import audit
from tidegate.cluster.audit import Actor
from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups.reset_plan import Choice
from tidegate.http import actions, late_requests, offset_actions, routes
from tidegate.http.access import Access
from tidegate.http.health import Health
from tidegate.http.late_requests import NotExecuted
from tidegate.http.offset_actions import Reset, reset
from tidegate.http.secrets import Secrets
from tidegate.http.stored_offsets import StoredOffsets
from tidegate.log.partition import PartitionLog
from tidegate.server import stalls
from tidegate.settings import Settings
from tidegate.store.store import Store

TOKEN = "t" * 16
ANN = Actor("ann", "operator", "10.0.0.9")
Change = Callable[[WholeBroker], Awaitable[Any]]


class Stalls:
    """A process that stands still before a change is checked for the `at`th time."""

    def __init__(self, at: int) -> None:
        self.left = at

    def is_late(self, received_s: float) -> bool:
        self.left -= 1
        return self.left <= 0

    def has_left(self, transport: Any) -> bool:
        return False


class StallClock:
    """The clock of stalls and of what they make late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(stalls, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(late_requests, "perf_counter", lambda: self.now_s)
        server: Any = SimpleNamespace(connections=(), extend_trust=lambda: None, stood_still=lambda: None)
        self.monitor = stalls.StallMonitor(server)

    def stand_still(self) -> None:
        """For longer than clients wait; then run until what is received is not late anymore."""
        self.now_s += 5
        self.monitor.check()
        self.now_s += stalls.ACCEPT_S + 1


@pytest.fixture
async def whole(settings: Settings, store: Store) -> AsyncIterator[WholeBroker]:
    """One broker with a topic of two partitions, ten records in each, and an empty group that committed 7."""
    opened = WholeBroker(settings.model_copy(update={"group_initial_rebalance_delay_ms": 0}))
    await opened.start()
    await opened.create("orders", 2)
    client = opened.client()
    for index in range(2):
        await client.produce("orders", 10, index=index)
    await client.own("orders", 0)
    await client.commit("orders", 7)
    yield opened
    await opened.close()


async def fenced_reset(whole: WholeBroker) -> None:
    await reset(whole.context, ANN, "default", Reset("orders", Choice(to_earliest=True), ("orders",), fence=True))


async def remove_member(whole: WholeBroker) -> None:
    members = await whole.store.command("HKEYS", whole.store.group_keys("default", "orders").members)
    await actions.remove_member(whole.context, ANN, "default", "orders", members[0].decode(), "for the test")


async def delete_group(whole: WholeBroker) -> None:
    await actions.delete_group(whole.context, ANN, "default", "orders")


async def delete_topic(whole: WholeBroker) -> None:
    await actions.delete_topic(whole.context, ANN, "default", "orders")


async def trim(whole: WholeBroker) -> None:
    await actions.trim_topic(whole.context, ANN, "default", "orders", {0: None, 1: None})


async def state_of(whole: WholeBroker) -> Any:
    """What a change would change."""
    context = whole.context
    await context.catalog.refresh()
    topic = await context.catalog.find("default", "orders")
    assert topic is not None
    starts = [(await context.logs.partition(topic, index).end_offset()).log_start_offset for index in range(2)]
    members = await whole.store.command("HKEYS", whole.store.group_keys("default", "orders").members)
    return starts, members, await StoredOffsets(context, "default").committed("orders")


async def last_outcome(whole: WholeBroker) -> str:
    found: str = (await audit.entries(whole.store, 1))[0]["outcome"]
    return found


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("change", [fenced_reset, remove_member, delete_topic, trim])
async def test_change_in_which_process_stood_still_is_refused(whole: WholeBroker, change: Change, at: int) -> None:
    """Before the intent was noted, or behind what the change reads."""
    before = await state_of(whole)
    whole.context.stalls = Stalls(at)
    with pytest.raises(NotExecuted):
        await change(whole)
    assert await state_of(whole) == before
    assert await last_outcome(whole) == audit.REFUSED


@pytest.mark.parametrize("at", [1, 2])
async def test_delete_of_group_in_which_process_stood_still_is_refused(whole: WholeBroker, at: int) -> None:
    await remove_member(whole)
    before = await state_of(whole)
    whole.context.stalls = Stalls(at)
    with pytest.raises(NotExecuted):
        await delete_group(whole)
    assert await state_of(whole) == before


async def test_trim_in_which_process_stood_still_ends_with_the_partition(whole: WholeBroker) -> None:
    whole.context.stalls = Stalls(3)
    with pytest.raises(NotExecuted):
        await trim(whole)
    assert (await state_of(whole))[0] == [10, 0]
    assert await last_outcome(whole) == audit.FAILED


async def test_trim_leaves_records_that_were_produced_since(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its offsets are found before the first partition is trimmed."""
    delete_records = PartitionLog.delete_records

    async def produce_to_others(log: PartitionLog, offset: int) -> int:
        if log.index == 0:
            await whole.client().produce("orders", 5, index=1)
        return await delete_records(log, offset)

    monkeypatch.setattr(PartitionLog, "delete_records", produce_to_others)
    await trim(whole)
    assert (await state_of(whole))[0] == [10, 10]


async def post(whole: WholeBroker, path: str, body: Any) -> int:
    """The status of the answer to a change by REST."""
    access = Access(Secrets(operator_token=TOKEN), "c1", "127.0.0.1")
    app = routes.application(Health(lambda: True, lambda: True), whole.context, access)
    async with (
        TestClient(TestServer(app), headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        http.post(f"/api/v1/{path}", json=body) as answer,
    ):
        return answer.status


async def test_trim_by_rest_stood_still_while_reading_ends_new_records_stay(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads on for long behind the stall, in which the operator trimmed through another broker."""
    clock = StallClock(monkeypatch)
    whole.context.stalls = clock.monitor
    end_offset, reads = PartitionLog.end_offset, []

    async def end_offset_after_stall(log: PartitionLog) -> Any:
        if not reads:
            clock.stand_still()
        reads.append(log)
        return await end_offset(log)

    trims = [{"partition": index, "before": None} for index in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "end_offset", end_offset_after_stall)
        assert await post(whole, "topics/orders/trim", {"partitions": trims}) == 503
    assert len(reads) == 2
    assert (await state_of(whole))[0] == [0, 0]
    assert await last_outcome(whole) == audit.REFUSED
    assert await post(whole, "topics/orders/trim", {"partitions": trims}) == 200
    assert (await state_of(whole))[0] == [10, 10]


async def test_reset_by_rest_stood_still_while_planning_newer_commit_stays(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, plan = StallClock(monkeypatch), offset_actions.plan
    whole.context.stalls = clock.monitor
    await remove_member(whole)
    client = whole.client()

    async def plan_before_stall(*args: Any) -> Any:
        planned = await plan(*args)
        clock.stand_still()
        await client.commit("orders", 9)
        return planned

    body = {"to_earliest": True, "topics": ["orders"]}
    with monkeypatch.context() as patched:
        patched.setattr(offset_actions, "plan", plan_before_stall)
        assert await post(whole, "groups/orders/offsets/reset", body) == 503
    assert await client.committed("orders") == 9
    assert await last_outcome(whole) == audit.REFUSED
    assert await post(whole, "groups/orders/offsets/reset", body) == 200
    assert await client.committed("orders") == 0


@pytest.mark.parametrize("change", [fenced_reset, remove_member])
async def test_script_after_end_of_lease_is_refused(whole: WholeBroker, change: Change) -> None:
    """By Redis's clock: the script was under way for as long."""
    before = await state_of(whole)
    whole.context.broker_lease.ends_ms = 1
    with pytest.raises(CoordinatorNotAvailable):
        await change(whole)
    assert await state_of(whole) == before


async def test_delete_of_group_after_end_of_lease_is_refused(whole: WholeBroker) -> None:
    await remove_member(whole)
    before = await state_of(whole)
    whole.context.broker_lease.ends_ms = 1
    with pytest.raises(CoordinatorNotAvailable):
        await delete_group(whole)
    assert await state_of(whole) == before


@pytest.mark.parametrize(
    ("change", "module", "read"),
    [(fenced_reset, offset_actions, "plan"), (remove_member, actions, "type_of"), (delete_group, actions, "type_of")],
)
async def test_change_reading_past_old_end_of_renewed_lease_is_executed(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch, change: Change, module: Any, read: str
) -> None:
    """The lease ends while it reads, and has been renewed before that."""
    if change is delete_group:
        await remove_member(whole)
    before, lease, original = await state_of(whole), whole.context.broker_lease, getattr(module, read)
    lease.ends_ms = 1

    async def read_while_renewed(*args: Any) -> Any:
        found = await original(*args)
        seconds, _ = await whole.store.command("TIME")
        lease.ends_ms = (int(seconds) + 600) * 1000
        return found

    monkeypatch.setattr(module, read, read_while_renewed)
    await change(whole)
    assert await state_of(whole) != before
