"""An entry that no broker wrote (`XADD <key> * a b`) in a stream that is no log: left out, and logged once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.scripts.test_share_dead_letters import configured, drain, holding, letters, queued
from tests.support.groups import World
from tests.support.shares import REJECT, ShareWorld
from tidegate.audit import ocsf, reading
from tidegate.audit.ocsf import AccountActivity, Origin
from tidegate.cli.commands.audit import _events
from tidegate.cluster import audit
from tidegate.cluster.audit import Actor, Audit
from tidegate.diagnosis.group_events import read_events, read_shard
from tidegate.http.console.lag_trend import LagTrend, read_partitions
from tidegate.monitoring.lag_reading import LogEndsReading
from tidegate.monitoring.lag_sampler import sample_text
from tidegate.monitoring.rebalance_counts import RebalanceCounts
from tidegate.store.store import Store

REF = "default/orders"
FOREIGN: Sequence[Sequence[str]] = (("a", "b"), ("event", "[]"), ("time", "late", "action_id", "7", "outcome", "done"))
ORIGIN = Origin("User:anna", "default", "10.0.0.1", 9092, "PLAINTEXT")
EVENT = ocsf.account_change(ORIGIN, "ben", AccountActivity.CREATE) | {"time": 1}


async def add_foreign(store: Store, stream: str) -> None:
    for fields in FOREIGN:
        await store.command("XADD", stream, "*", *fields)


def reported(lines: Sequence[Any]) -> list[str]:
    """The streams that the log names."""
    return [line["stream"] for line in lines if line["event"] == "foreign_entry_left_out"]


async def test_foreign_dead_letters_stop_no_other(shares: ShareWorld) -> None:
    await configured(shares)
    store, stream = shares.brokers[0].store, shares.keys.dead_letters
    await add_foreign(store, stream)
    a = await holding(shares, 1)
    assert await a.ack(0, 0, REJECT) == "NONE"

    with capture_logs() as lines:
        await drain(shares)
        await drain(shares)

    assert len(await letters(shares)) == 1
    assert await queued(shares) == len(FOREIGN)
    assert reported(lines) == [stream]


async def test_foreign_event_is_of_no_group(world: World) -> None:
    await world.stable("a")
    own, stream = await world.events(), world.keys.shard_keys.events
    await add_foreign(world.store, stream)

    with capture_logs() as lines:
        assert [one.kind for one in await read_events(world.store, world.keys)] == own
        assert len(await read_shard(world.store, stream)) == len(own)
        await RebalanceCounts(world.store, 60_000).count(60_000)
    assert reported(lines) == [stream]


async def test_foreign_action_is_not_in_the_audit(store: Store) -> None:
    await add_foreign(store, store.cluster_keys.audit)
    async with Audit(store, 1, Actor("anna", "admin", "10.0.0.1"), "group.reset", {"group": "orders"}) as entry:
        await add_foreign(store, store.cluster_keys.audit)

    with capture_logs() as lines:
        (action,) = await audit.entries(store, 10)
        assert (action["action_id"], action["outcome"]) == (entry.action_id, audit.DONE)
        assert await audit.find(store, entry.action_id) is not None
        assert await audit.find(store, "7") is None
    assert reported(lines) == [store.cluster_keys.audit]


async def test_foreign_event_is_not_in_the_security_audit(store: Store) -> None:
    stream = store.cluster_keys.audit_events
    await add_foreign(store, stream)
    await store.command("XADD", stream, "*", "event", json.dumps(EVENT))
    await add_foreign(store, stream)

    with capture_logs() as lines:
        found = await reading.newest(store, reading.EventFilter(), 10)
    assert [reading.row(one)["resources"] for one in found] == [["User:ben"]]
    assert reported(lines) == [stream]


def test_foreign_event_is_named_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [(b"1-0", {b"a": b"b"}), (b"2-0", {b"event": json.dumps(EVENT).encode()})]
    assert list(_events(entries)) == [EVENT]
    assert "the entry 1-0" in capsys.readouterr().err


async def test_foreign_lag_samples_are_of_no_group(store: Store) -> None:
    now_ms, stream = store.clock.now_ms(), store.cluster_keys.lag
    ends = LogEndsReading(log_start=0, log_end=14, head_time=now_ms, times={10: now_ms}, size=1, now_ms=now_ms)
    own = ("time", str(now_ms), "group", REF, "t:0", sample_text(10, now_ms, ends, 4, ""))
    await add_foreign(store, stream)
    for fields in (own[:2], (*own[:4], "t:0", "late"), own):
        await store.command("XADD", stream, "*", *fields)

    with capture_logs() as lines:
        trend = LagTrend()
        await trend.read(store)
        parts = await read_partitions(store, REF)

    assert [lag.records for lag in trend.of(REF)] == [4]
    assert {place: [lag.records for lag in lags] for place, lags in parts.items()} == {("t", 0): [4]}
    assert reported(lines) == [stream]
