"""Joins that Redis executes after their client, or the next process of its instance, has joined elsewhere."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.wire import request
from tests.scripts.test_classic_static import static
from tests.scripts.test_classic_together import send
from tests.support.built import build_broker
from tests.support.groups import Peer, World, answer, refused
from tests.support.whole_broker import WholeBroker
from tidegate.apis import classic_groups
from tidegate.errors import CoordinatorNotAvailable, StoreUnavailable
from tidegate.groups import classic
from tidegate.groups.model import JoinRequest
from tidegate.groups.waiting import JOIN_GROUP
from tidegate.settings import Settings
from tidegate.store.store import Store

NONE, NOT_AVAILABLE = 0, 15
LATE = pytest.mark.parametrize("late_ms", [501, 8_000])


class Delayed:
    """Joins that came to the first broker now, in one script that Redis has not executed yet."""

    def __init__(self, world: World, *requests: JoinRequest) -> None:
        self._world, self._waits = world, world.brokers[0].waits
        self._parts = [self._args(one) for one in requests]

    def _args(self, join: JoinRequest) -> list[Any]:
        clock = self._world.store.clock
        clock.is_known, clock.offset_s = True, self._world.clock.now_ms / 1000 - join.arrived_s
        return classic._join_args(self._world.store, self._world.keys, join)

    def add(self, join: JoinRequest) -> None:
        """One that comes now, in the same script."""
        self._parts.append(self._args(join))

    def send_again(self) -> None:
        """The first script's reply was lost."""
        self._parts = [self._waits.joins._sent_again(one) for one in self._parts]

    async def execute(self) -> list[list[Any]]:
        """The answer to each."""
        reply = await send(self._world, JOIN_GROUP, self._waits.joins.script_args(self._world.keys, self._parts))
        answers: list[list[Any]] = reply[2]
        return answers


async def elsewhere(world: World, peer: Peer) -> Peer:
    """The peer asks the second broker from now on; a moment has passed."""
    await world.clock.advance(10)
    peer.broker = world.brokers[1]
    return peer


async def alone(world: World) -> Peer:
    """The leader of a Stable group of one."""
    [a] = await world.stable("a")
    a.broker = world.brokers[0]
    return a


@LATE
async def test_late_static_join_does_not_replace_the_process_that_restarted_elsewhere(
    world: World, late_ms: int
) -> None:
    s1, s2 = await static(world, "s1", "s2")
    delayed = Delayed(world, s2.request(member_id=""))
    (await elsewhere(world, s2)).member_id = ""
    await s2.join()
    await world.clock.advance(late_ms)

    assert await delayed.execute() == [[NOT_AVAILABLE, b""]]

    assert (await s1.heartbeat(), await s2.heartbeat()) == (NONE, NONE)
    assert (await world.members(), await world.state()) == ({s1.member_id, s2.member_id}, ("Stable", 1))


async def test_late_static_join_does_not_replace_a_member_that_is_parked_elsewhere(world: World) -> None:
    s1, s2, s3 = await static(world, "s1", "s2", "s3")
    delayed = Delayed(world, s2.request(member_id=""))
    phase = await s1.start_join()
    (await elsewhere(world, s2)).member_id = ""
    parked = await s2.start_join()
    await world.clock.advance(4_000)

    assert await delayed.execute() == [[NOT_AVAILABLE, b""]]

    await s3.start_join()
    assert (await answer(parked)).generation == 2 == (await answer(phase)).generation


async def test_late_static_join_does_not_replace_a_member_that_was_added_since(world: World) -> None:
    s1 = world.peer("s1", instance_id="s1")
    delayed = Delayed(world, s1.request())
    await elsewhere(world, s1)
    await world.stable_of(s1)

    assert await delayed.execute() == [[NOT_AVAILABLE, b""]]

    assert (await world.members(), await s1.heartbeat()) == ({s1.member_id}, NONE)


@pytest.mark.parametrize("stored", ["no time", "of an older broker", "ahead of the clock"])
async def test_late_static_join_replaces_a_member_if_it_is_not_known_since_when_it_is_one(
    world: World, stored: str
) -> None:
    """A broker of an older version, which shares the Redis during an upgrade, stores no time."""
    _, s2 = await static(world, "s1", "s2")
    delayed = Delayed(world, s2.request(member_id=""))
    (await elsewhere(world, s2)).member_id = ""
    await s2.join()
    record = (await world.store.command("HGET", world.keys.members, s2.member_id)).decode()
    assert f'"replaced_at":{world.clock.now_ms}}}' in record
    later = f',"replaced_at":{world.clock.now_ms + 3_600_000}' if stored == "ahead of the clock" else ""
    await world.store.command("HSET", world.keys.members, s2.member_id, re.sub(r',"replaced_at":\d+', later, record))
    await world.clock.advance(4_000)

    [[code, *_]] = await delayed.execute()

    assert code == NONE
    assert s2.member_id not in await world.members()


@LATE
@pytest.mark.parametrize("is_synced", [True, False])
async def test_late_rejoin_of_the_leader_starts_no_rebalance(world: World, late_ms: int, is_synced: bool) -> None:
    """A group of one would complete at once into a generation that nobody syncs."""
    a = await alone(world)
    delayed = Delayed(world, a.request())
    await (await elsewhere(world, a)).join()
    if is_synced:
        await a.sync({a.member_id: b"all"})
    await world.clock.advance(late_ms)

    assert await delayed.execute() == [[NOT_AVAILABLE, a.member_id.encode()]]

    assert await world.state() == ("Stable" if is_synced else "CompletingRebalance", 2)
    assert await a.heartbeat() == NONE


async def test_late_rejoin_does_not_replace_the_subscription_of_the_join_that_is_parked(world: World) -> None:
    a, b = await world.stable("a", "b")
    delayed = Delayed(world, b.request(protocols=(("range", b"old"),)))
    await (await elsewhere(world, b)).parked(b.join_with(protocols=(("range", b"new"),)))
    await world.clock.advance(4_000)

    assert await delayed.execute() == [[NOT_AVAILABLE, b.member_id.encode()]]

    stored = await world.store.command("HGET", world.keys.subscriptions, b.member_id)
    assert stored.endswith(b"new"), a


async def test_late_joins_that_nothing_has_overtaken_are_executed(world: World) -> None:
    """Their clients still wait: Redis was slow."""
    s1, s2 = await static(world, "s1", "s2")
    await world.clock.advance(10)
    restarted = Delayed(world, s2.request(member_id=""))
    await world.clock.advance(4_000)
    [[code, member_id, how, *_]] = await restarted.execute()
    assert (code, how) == (NONE, b"now")
    s2.member_id = member_id.decode()

    leader = Delayed(world, s1.request())
    await world.clock.advance(4_000)
    [[code, _, how, *_]] = await leader.execute()
    assert (code, how) == (NONE, b"parked")

    await world.clock.advance(10)
    follower = Delayed(world, s2.request())
    await world.clock.advance(600)
    [[code, _, how, *_]] = await follower.execute()
    assert (code, how) == (NONE, b"parked")
    assert await world.state() == ("CompletingRebalance", 2)


async def test_late_joins_of_members_park_in_a_phase_that_one_of_them_began(world: World) -> None:
    """All of them came before it began, and wait for it."""
    a, b, c = await world.stable("a", "b", "c")
    await world.clock.advance(10)
    delayed = Delayed(world, a.request(), b.request())
    await world.clock.advance(600)
    delayed.add(c.request(protocols=(("range", b"new"),)))

    assert [one[0] for one in await delayed.execute()] == [NONE] * 3

    assert await world.state() == ("CompletingRebalance", 2)


async def test_joins_of_one_script_are_late_each_by_itself(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2")
    delayed = Delayed(world, s1.request(member_id=""))
    (await elsewhere(world, s1)).member_id = ""
    await s1.join()
    await world.clock.advance(4_000)
    delayed.add(s2.request(member_id=""))

    late, prompt = await delayed.execute()

    assert (late, prompt[0]) == ([NOT_AVAILABLE, b""], NONE)
    assert await s1.heartbeat() == NONE


@pytest.mark.parametrize(("again", "code"), [(True, NOT_AVAILABLE), (False, NONE)])
async def test_join_sent_again_is_late_however_soon(world: World, again: bool, code: int) -> None:
    _, s2 = await static(world, "s1", "s2")
    delayed = Delayed(world, s2.request(member_id=""))
    (await elsewhere(world, s2)).member_id = ""
    await s2.join()
    if again:
        delayed.send_again()

    assert [one[0] for one in await delayed.execute()] == [code]


async def test_late_repeat_of_an_executed_join_gets_the_same_answer(world: World) -> None:
    """Its reply was lost."""
    a = await alone(world)
    await world.clock.advance(10)
    delayed = Delayed(world, a.request())
    [first] = await delayed.execute()
    delayed.send_again()
    await world.clock.advance(4_000)

    [second] = await delayed.execute()

    assert first[:4] == second[:4] == [NONE, a.member_id.encode(), b"parked", 1]
    assert await world.state() == ("CompletingRebalance", 2)


async def test_join_after_the_end_of_the_lease_changes_nothing(world: World) -> None:
    """As when the broker stood still with the script on its way; the next renewal lets it serve again."""
    a = await alone(world)
    built = build_broker(world.store, 1)

    async def join() -> Any:
        return await classic.join(world.store, built.context.waits, world.keys, a.request())

    built.lease.ends_ms = world.clock.now_ms
    assert await refused(join(), CoordinatorNotAvailable) == a.member_id
    new = Delayed(world, world.peer("b").request(id_required=False))
    new._waits = built.context.waits
    assert await new.execute() == [[NOT_AVAILABLE, b""]]
    assert (await world.state(), await world.members()) == (("Stable", 1), {a.member_id})

    built.lease.ends_ms = world.clock.now_ms + 1
    assert (await join()).generation == 2


async def test_leave_after_the_end_of_the_lease_is_refused(settings: Settings, store: Store) -> None:
    """By its instance id it would remove the member that has the instance since."""
    whole = WholeBroker(settings.model_copy(update={"group_initial_rebalance_delay_ms": 0}))
    await whole.start()
    member = whole.client()
    await member.own("orders")
    whole.context.broker_lease.ends_ms = 1

    answered = await member.ask(member.leave_request())
    members = await store.command("HKEYS", store.group_keys("default", "orders").members)
    await whole.close()
    assert answered.error_code == NOT_AVAILABLE
    assert members == [member.member_id.encode()]


async def test_join_in_a_script_that_failed_is_marked_when_it_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins, sent = world.brokers[0].waits.joins, list[str]()

    async def ask(keys: Any, args: Any, trailing_args: Any) -> Any:
        sent.append(args[-1])
        if len(sent) == 1:
            raise StoreUnavailable("cut")

    monkeypatch.setattr(joins, "_ask", ask)
    await joins.submit(world.keys, ["m", "10000 20000 1 1 123"])

    assert sent == ["10000 20000 1 1 123", "10000 20000 1 1 -123"]


async def test_join_arrives_with_its_request(world: World) -> None:
    """However long it waited for others on its connection; one that waited in the group enters again as a new one."""
    client = SimpleNamespace(host="127.0.0.1", called_itself="")
    call: Any = SimpleNamespace(arrived_s=1.5, client=client, client_id="a", version=9)
    asked = request(
        11, 9, group_id="orders", member_id="m", group_instance_id=None, protocol_type="consumer", protocols=(),
        session_timeout=10_000, rebalance_timeout=20_000, reason=None,
    )  # fmt: skip

    join = classic_groups._join_request(call, asked)

    assert join.arrived_s == 1.5
    assert join.again("m").arrived_s > 1.5
