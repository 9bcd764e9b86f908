"""Sessions that are extended after a broker learned that they had ended, and before it stores the removal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.scripts.test_consumer_conversion import NONE, classic_group, listed, rejoin
from tests.scripts.test_streams_wire import Streams
from tests.support.consumer_wire import code, wire_of
from tests.support.consumers import SESSION_MS, ConsumerWorld
from tests.support.shares import ShareWorld
from tests.support.valkey import ValkeyServer
from tidegate.groups.expire_and_retry import EXPIRY_DUE, EXTEND_SESSIONS_AFTER_OUTAGE
from tidegate.groups.expiry import grant_session_grace
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

Extend = Callable[[], Awaitable[Any]]


def before_the_decision(monkeypatch: pytest.MonkeyPatch, groups: Any, extend: Extend) -> list[Any]:
    """Extend sessions once, as soon as a script of these groups reports that deadlines have passed; the reports."""
    run, reports = groups._run_script, list[Any]()

    async def reported(*call: Any) -> Any:
        reply = await run(*call)
        if reply[0] == EXPIRY_DUE:
            reports.append(reply)
            if len(reports) == 1:
                await extend()
        return reply

    monkeypatch.setattr(groups, "_run_script", reported)
    return reports


def grace(store: Store, keys: GroupKeys) -> Extend:
    """The broker that the members asked went silent."""
    return lambda: grant_session_grace(store, keys.shard_keys.shard)


def outage(store: Store, keys: GroupKeys) -> Extend:
    """Redis was away."""
    names = [keys.group, keys.consumers, keys.consumer_sessions]
    return lambda: store.run(EXTEND_SESSIONS_AFTER_OUTAGE, names)


async def let_session_end(store: Store, keys: GroupKeys, member_id: str) -> None:
    await store.command("ZADD", keys.consumer_sessions, 1, member_id)


@pytest.mark.parametrize("extension", [grace, outage])
async def test_consumer_session_extended_before_the_decision_keeps_the_member(
    consumers: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, extension: Callable[[Store, GroupKeys], Extend]
) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    epoch = b.epoch
    extend, reports = extension(consumers.store, consumers.keys), list[Any]()
    for broker in consumers.brokers:
        reports.append(before_the_decision(monkeypatch, broker.consumers.groups, extend))

    await consumers.advance(SESSION_MS, beating=[b])

    assert any(reports)
    group = await consumers.group()
    assert (set(group.members), group.epoch) == ({a.member_id, b.member_id}, epoch)
    assert (await a.heartbeat())[0] == epoch
    await consumers.advance(2 * SESSION_MS, beating=[b])
    await consumers.advance(1_000, beating=[b])
    assert set((await consumers.group()).members) == {b.member_id}, "who stays silent is removed"


async def test_consumer_other_session_ended_with_the_extended_one_is_removed(
    consumers: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = await consumers.joined(*(consumers.peer(name, "t4") for name in "abc"))
    keys = consumers.keys

    async def extend() -> None:
        later = consumers.clock.now_ms + SESSION_MS
        await consumers.store.command("ZADD", keys.consumer_sessions, later, a.member_id)

    for broker in consumers.brokers:
        before_the_decision(monkeypatch, broker.consumers.groups, extend)

    await consumers.advance(SESSION_MS, beating=[c])

    assert set((await consumers.group()).members) == {a.member_id, c.member_id}, b


async def test_share_session_extended_before_the_decision_keeps_the_member(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = shares.member("a")
    await shares.joined(a)
    store = shares.brokers[0].store
    reports = [
        before_the_decision(monkeypatch, broker.context.shares.groups, grace(store, shares.keys))
        for broker in shares.brokers
    ]

    await shares.clock.advance(SESSION_MS)

    assert (await shares.describe()).group_state == "Stable"
    assert any(reports)
    assert await a.heartbeat() == (a.epoch, None)


async def test_streams_session_extended_before_the_decision_keeps_the_member(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_of(valkey) as wire:
        streams, store = Streams(wire), wire.app.broker.store
        keys = store.group_keys("default", wire.group)
        joined = await streams.join("a")
        groups = wire.app.broker.context.streams
        reports = before_the_decision(monkeypatch, groups, grace(store, keys))
        await let_session_end(store, keys, "a")

        described = await streams.describe()

        assert reports
        assert [one.member_id for one in described.members] == ["a"]
        assert described.group_epoch == joined.member_epoch


async def test_downgrade_session_extended_before_the_decision_keeps_the_consumer(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last member of KIP-848: without it the group would be a classic one."""
    async with wire_of(valkey) as wire:
        store, groups = wire.app.broker.store, wire.app.broker.context.consumers.groups
        keys = store.group_keys("default", wire.group)
        a, _ = await classic_group(wire)
        joined = await wire.join("n", "t4")
        assert await rejoin(a) == (NONE, joined.member_epoch, [0, 1])
        reports = before_the_decision(monkeypatch, groups, grace(store, keys))
        await let_session_end(store, keys, "n")

        described = await wire.describe()

        assert reports
        assert "n" in {one.member_id for one in described.members}
        assert (await listed(wire))[0] == "consumer"
        assert code(await wire.heartbeat("n", joined.member_epoch)) == "NONE"
