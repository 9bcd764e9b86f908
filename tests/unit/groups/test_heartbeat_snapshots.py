"""When heartbeats are answered from snapshots and when by the script, on a clock that the test steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.groups.heartbeat_snapshots import confirmed_for_s
from tidegate.groups.heartbeats import HEARTBEAT, Heartbeats
from tidegate.groups.model import MemberRef
from tidegate.groups.session_renewals import RENEWAL_INTERVAL_S, RENEWED_AGAIN_S
from tidegate.settings import Settings
from tidegate.store.keys import ClusterKeys, GroupKeys, ShardKeys
from tidegate.store.outcome import Faulty, Refused
from tidegate.store.subscription_proof import PROOF_S

NONE, COORDINATOR_NOT_AVAILABLE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 0, 15, 22, 25
KEYS = GroupKeys.of("t", 1, "default", "g")
OTHER = GroupKeys.of("t", 1, "default", "other")
MEMBER = MemberRef("m", 1)
CHANGE = b"default/g:2:PreparingRebalance:0"
BEFORE_RENEWAL_S = 0.01


class FakeLink:
    """A connection whose commands the test answers."""

    def __init__(self) -> None:
        self.connected = True
        self.on_down: list[Callable[[Any], None]] = []
        self.tokens: list[bytes] = []

    def send(self, args: Sequence[Any], on_reply: Any) -> None:
        assert args[0] == "PUBLISH"
        self.tokens.append(args[2])

    def drop(self) -> None:
        for listener in self.on_down:
            listener(self)


class FakeStore:
    """A store whose scripts, messages and connections are the test's."""

    def __init__(self, is_sharded: bool = False) -> None:
        self.is_sharded = is_sharded
        self.settings = Settings(coordinator_shards=1)
        self.cluster_keys = ClusterKeys("t")
        self.push, self.control = FakeLink(), FakeLink()
        self.metadata_node = SimpleNamespace(control=self.control)
        self.pubsub = self
        self.listeners: dict[str, Callable[[bytes | None], None]] = {}
        self.scripts: list[tuple[list[Any], Callable[[Any], None]]] = []

    def shard_keys(self, shard: int) -> ShardKeys:
        return ShardKeys("t", shard)

    def listen(self, channel: str, listener: Any) -> asyncio.Future[None]:
        self.listeners[channel] = listener
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def forget(self, channel: str, listener: Any) -> None:
        del self.listeners[channel]

    def send_script(self, script: Any, keys: Any, args: list[Any], on_reply: Any) -> None:
        assert script is HEARTBEAT
        self.scripts.append((args, on_reply))

    async def command(self, *args: Any) -> int:
        return 1


class Timers:
    """The loop's timers, which fire when the test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.pending.append((delay_s, callback))
        return SimpleNamespace(cancel=self.pending.clear)


class Bench:
    """One broker's heartbeats, started."""

    def __init__(self, *, is_sharded: bool = False) -> None:
        self.now_s = 100.0
        self.store = FakeStore(is_sharded)
        self.is_coordinator = True
        self.heartbeats = Heartbeats(
            self.store,  # type: ignore[arg-type]
            self.store.settings,
            clock=lambda: self.now_s,
            coordinates=lambda shard: self.is_coordinator,
        )
        self.timers: Any = Timers()
        self.heartbeats.renewals._loop = self.timers
        self.codes: list[int] = []

    async def started(self) -> Bench:
        await self.heartbeats.start()
        return self

    # -- Redis

    @property
    def wake(self) -> str:
        return ShardKeys("t", 0).wake

    def message(self, payload: bytes | None) -> None:
        self.store.listeners[self.wake](payload)

    def token_arrives(self, token: bytes | None = None) -> None:
        channel = next(name for name in self.store.listeners if name != self.wake)
        self.store.listeners[channel](self.store.control.tokens[-1] if token is None else token)

    def prove(self) -> None:
        """A token goes out and arrives."""
        self.heartbeats.snapshots.proof._send_token()
        self.token_arrives()

    def reply(self, *codes: int) -> None:
        """Redis answers the oldest script."""
        self.store.scripts.pop(0)[1]([NONE, *codes])

    # -- members

    async def heartbeat(self, member_ref: MemberRef = MEMBER, keys: GroupKeys = KEYS) -> bool:
        """A heartbeat arrives; whether it was answered at once."""
        before = len(self.codes)
        self.heartbeats.answer(keys, member_ref, self.codes.append)
        await asyncio.sleep(0)
        return len(self.codes) > before

    async def confirmed(self, member_ref: MemberRef = MEMBER, keys: GroupKeys = KEYS) -> None:
        """A heartbeat that the script answers with NONE."""
        assert not await self.heartbeat(member_ref, keys)
        self.reply(NONE)

    def renew(self, waits_s: float = RENEWED_AGAIN_S) -> list[Any]:
        """Time for a batch of renewals; its arguments, none if no member is due."""
        self.now_s += waits_s
        before = len(self.store.scripts)
        self.timers.pending.pop()[1]()
        return self.store.scripts[-1][0] if len(self.store.scripts) > before else []


async def proven() -> Bench:
    bench = await Bench().started()
    bench.prove()
    return bench


async def test_snapshot_answers_after_the_script_did() -> None:
    bench = await proven()
    await bench.confirmed()

    assert await bench.heartbeat()
    assert bench.codes == [NONE, NONE]
    assert bench.store.scripts == []


async def test_snapshot_not_started_or_not_proven_the_script_answers() -> None:
    for bench in (Bench(), await Bench().started()):
        await bench.confirmed()

        assert not await bench.heartbeat()


async def test_snapshot_in_redis_cluster_the_script_answers() -> None:
    bench = await Bench(is_sharded=True).started()
    await bench.confirmed()

    assert not await bench.heartbeat()
    assert bench.store.control.tokens == []
    await bench.heartbeats.close()


@pytest.mark.parametrize(
    "member_ref", [MemberRef("m", 2), MemberRef("m", 1, "i"), MemberRef("n", 1)], ids=["generation", "instance", "id"]
)
async def test_snapshot_of_another_member_the_script_answers(member_ref: MemberRef) -> None:
    bench = await proven()
    await bench.confirmed()

    assert not await bench.heartbeat(member_ref)


async def test_message_discards_the_snapshot_of_its_group_alone() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.confirmed(keys=OTHER)

    bench.message(CHANGE)

    assert not await bench.heartbeat()
    assert await bench.heartbeat(keys=OTHER)


async def test_message_between_script_and_reply_the_reply_confirms_nothing() -> None:
    bench = await proven()
    assert not await bench.heartbeat()

    bench.message(CHANGE)
    bench.reply(NONE)

    assert not await bench.heartbeat()


async def test_message_between_renewal_and_reply_the_reply_confirms_nothing() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat()
    bench.renew()

    bench.message(CHANGE)
    bench.reply(NONE)

    assert not await bench.heartbeat()


async def test_pause_longer_than_the_proof_the_script_answers_until_the_next_token() -> None:
    bench = await proven()
    await bench.confirmed()

    bench.now_s += PROOF_S
    assert not await bench.heartbeat()
    bench.reply(NONE)
    bench.prove()
    bench.now_s += PROOF_S / 2
    assert await bench.heartbeat()


async def test_pause_with_a_token_on_the_way_it_proves_from_when_it_was_sent() -> None:
    bench = await proven()
    await bench.confirmed()
    bench.heartbeats.snapshots.proof._send_token()

    bench.now_s += PROOF_S
    bench.token_arrives()

    assert not await bench.heartbeat()


async def test_token_that_this_broker_did_not_send_proves_nothing() -> None:
    bench = await Bench().started()
    bench.token_arrives(b"77")
    await bench.confirmed()

    assert not await bench.heartbeat()


@pytest.mark.parametrize("lane", ["push", "control"])
async def test_connection_lost_no_earlier_snapshot_is_used_again(lane: str) -> None:
    bench = await proven()
    await bench.confirmed()
    bench.heartbeats.snapshots.proof._send_token()

    getattr(bench.store, lane).drop()
    bench.token_arrives()  # from before
    assert not await bench.heartbeat()
    bench.reply(NONE)
    assert not await bench.heartbeat()
    bench.prove()
    bench.reply(NONE)  # of a script that was sent before the proof
    assert not await bench.heartbeat()
    bench.reply(NONE)
    assert await bench.heartbeat()


async def test_resubscription_discards_every_snapshot() -> None:
    bench = await proven()
    await bench.confirmed()

    bench.message(None)

    assert not await bench.heartbeat()


async def test_token_is_not_sent_without_both_connections() -> None:
    bench = await proven()
    sent = len(bench.store.control.tokens)

    bench.store.push.connected = False
    bench.heartbeats.snapshots.proof._send_token()

    assert len(bench.store.control.tokens) == sent


async def test_session_confirmed_long_ago_the_script_answers() -> None:
    bench = await proven()
    await bench.confirmed()
    shortest_s = bench.store.settings.group_min_session_timeout_ms / 1000

    bench.now_s += confirmed_for_s(shortest_s) - 0.1
    bench.prove()
    assert await bench.heartbeat()
    bench.now_s += 0.2
    bench.prove()
    assert not await bench.heartbeat()


@pytest.mark.parametrize("timeout_s", [0.2, 0.3, 0.6, 6.0])
async def test_last_heartbeat_that_a_snapshot_answers_is_renewed_before_its_session_expires(timeout_s: float) -> None:
    bench = await proven()
    bench.heartbeats.snapshots._confirmed_for_s = confirmed_for_s(timeout_s)
    await bench.confirmed()
    expires_s = bench.now_s + timeout_s
    bench.now_s += confirmed_for_s(timeout_s) - 0.001
    bench.prove()
    assert await bench.heartbeat()

    assert bench.renew(RENEWAL_INTERVAL_S) == [1, "m", 1, ""]
    assert bench.now_s < expires_s - 0.05


async def test_session_too_short_for_a_renewal_the_script_answers() -> None:
    bench = await proven()
    bench.heartbeats.snapshots._confirmed_for_s = confirmed_for_s(0.1)
    await bench.confirmed()

    assert not await bench.heartbeat()


async def test_renewals_of_an_interval_are_one_script_with_each_member_once() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.confirmed(keys=OTHER)

    for keys in (KEYS, OTHER, KEYS, KEYS):
        assert await bench.heartbeat(keys=keys)
    assert [delay_s for delay_s, _ in bench.timers.pending] == [RENEWAL_INTERVAL_S]
    args = bench.renew()

    assert args == [1, "m", 1, "", 1, "m", 1, ""]
    assert len(bench.store.scripts) == 1


async def test_heartbeat_while_a_renewal_is_under_way_is_renewed_again() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat()
    bench.renew()

    await bench.heartbeat()

    assert bench.renew() == [1, "m", 1, ""]


async def test_renewals_of_a_group_from_before_and_after_a_change_name_the_group_once() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat()
    bench.message(CHANGE)
    await bench.confirmed(MemberRef("n", 2))
    await bench.heartbeat(MemberRef("n", 2))

    assert bench.renew() == [2, "m", 1, "", "n", 2, ""]


async def test_member_that_was_not_renewed_for_a_while_takes_part_in_the_next_batch() -> None:
    bench = await proven()
    await bench.confirmed()
    bench.now_s += RENEWED_AGAIN_S

    assert await bench.heartbeat()

    assert bench.renew(RENEWAL_INTERVAL_S) == [1, "m", 1, ""]
    assert bench.timers.pending == []


async def test_member_that_sends_heartbeats_often_is_renewed_now_and_then() -> None:
    bench = await proven()
    await bench.confirmed()
    renewed_s = [bench.now_s]
    for _ in range(100):
        bench.prove()
        assert await bench.heartbeat()
        if bench.renew(RENEWAL_INTERVAL_S):
            renewed_s.append(bench.now_s)
            bench.reply(NONE)

    pauses_s = [after - before for before, after in pairwise(renewed_s)]
    assert len(pauses_s) > 10
    assert all(RENEWED_AGAIN_S <= one <= RENEWED_AGAIN_S + RENEWAL_INTERVAL_S + 1e-9 for one in pauses_s), pauses_s


async def test_renewal_takes_along_what_waits_of_its_group_alone() -> None:
    bench = await proven()
    await bench.confirmed()
    bench.now_s += RENEWED_AGAIN_S / 2
    bench.prove()
    await bench.confirmed(MemberRef("n", 1))
    await bench.confirmed(keys=OTHER)
    for member_ref, keys in ((MEMBER, KEYS), (MemberRef("n", 1), KEYS), (MEMBER, OTHER)):
        assert await bench.heartbeat(member_ref, keys)

    assert bench.renew(RENEWED_AGAIN_S / 2) == [2, "m", 1, "", "n", 1, ""]
    assert bench.renew(RENEWED_AGAIN_S / 2) == [1, "m", 1, ""]


async def test_members_with_short_sessions_wait_for_a_share_of_them() -> None:
    bench = await proven()
    await bench.confirmed()
    (group,) = bench.heartbeats.snapshots._groups.values()
    group.confirmed_for_s = 0.8
    await bench.heartbeat()

    assert bench.renew(0.075) == []
    assert bench.renew(0.03) == [1, "m", 1, ""]


async def test_close_sends_renewals_that_are_not_due() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat()

    await bench.heartbeats.close()

    assert [args for args, _ in bench.store.scripts] == [[1, "m", 1, ""]]


async def test_renewal_confirms_the_session() -> None:
    bench = await proven()
    await bench.confirmed()
    for _ in range(10):
        bench.now_s += 3.0
        bench.prove()
        assert await bench.heartbeat()
        bench.renew()
        bench.reply(NONE)


async def test_renewal_refused_the_script_answers_the_next_heartbeat() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat()
    bench.renew()

    bench.reply(UNKNOWN_MEMBER_ID)

    assert not await bench.heartbeat()
    bench.reply(UNKNOWN_MEMBER_ID)
    assert bench.codes[-1] == UNKNOWN_MEMBER_ID


async def test_refusal_of_another_generation_leaves_the_member_in_the_snapshot() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat(MemberRef("m", 0))
    bench.reply(ILLEGAL_GENERATION)

    assert await bench.heartbeat()


async def test_script_failed_every_snapshot_is_discarded() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.confirmed(keys=OTHER)
    await bench.heartbeat()
    bench.renew()

    bench.store.scripts.pop()[1](Refused("READONLY You can't write against a read only replica."))

    assert not await bench.heartbeat(keys=OTHER)


async def test_script_failed_by_a_key_of_one_group_its_snapshot_alone_is_discarded() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.confirmed(keys=OTHER)
    await bench.heartbeat()
    bench.renew()

    bench.store.scripts.pop()[1](Faulty("WRONGTYPE Operation against a key"))

    assert not await bench.heartbeat()
    assert await bench.heartbeat(keys=OTHER)


async def test_snapshots_are_bounded_by_bytes_and_the_oldest_is_discarded() -> None:
    bench = await proven()
    third = GroupKeys.of("t", 1, "default", "third")
    bench.heartbeats.snapshots._bytes_max = 2 * (third.held_bytes + 700)
    for keys in (KEYS, OTHER, third):
        await bench.confirmed(keys=keys)

    assert await bench.heartbeat(keys=third)
    assert await bench.heartbeat(keys=OTHER)
    assert not await bench.heartbeat()


async def test_heartbeats_of_unknown_groups_leave_no_snapshots() -> None:
    bench = await proven()
    for number in range(5):
        await bench.heartbeat(keys=GroupKeys.of("t", 1, "default", f"g{number}"))
        bench.reply(UNKNOWN_MEMBER_ID)

    assert bench.heartbeats.snapshots._groups == {}


async def test_close_sends_the_renewals_that_wait() -> None:
    bench = await proven()
    await bench.confirmed()
    await bench.heartbeat()

    await bench.heartbeats.close()

    assert [args for args, _ in bench.store.scripts] == [[1, "m", 1, ""]]
    assert not await bench.heartbeat()


async def test_group_of_another_coordinator_is_answered_by_the_script() -> None:
    """The session grace that replaces lost renewals is granted for a dead broker's own groups only."""
    bench = await proven()
    bench.is_coordinator = False
    await bench.confirmed()

    assert not await bench.heartbeat()


async def test_group_that_another_broker_coordinates_now_loses_its_snapshot() -> None:
    bench = await proven()
    await bench.confirmed()
    assert await bench.heartbeat()
    bench.is_coordinator = False
    bench.renew()
    bench.reply(NONE)

    assert not await bench.heartbeat()
