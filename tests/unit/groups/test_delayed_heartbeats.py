"""The ends of holds on the loop that brokers run on: uvloop's timers differ from asyncio's where they are late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import uvloop

from tidegate.groups.delayed_heartbeats import DelayedHeartbeat, DelayedHeartbeats
from tidegate.groups.model import MemberRef
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys


def test_delayed_heartbeats_past_their_end_are_released_at_once() -> None:
    async def scenario() -> None:
        store: Any = SimpleNamespace(shard_keys=lambda shard: SimpleNamespace(wake="wake"))
        delayed_heartbeats, codes = DelayedHeartbeats(store, Settings(), heartbeats=Answering()), []  # type: ignore[arg-type, var-annotated]
        for number, ago_s in enumerate((1.0, 2.0, 0.5)):
            delayed_heartbeat = DelayedHeartbeat(delayed_heartbeats)
            delayed_heartbeat.member_ref = MemberRef(f"m-{number}", 1)
            delayed_heartbeat.interval_estimator.session_s = 45.0
            now_s = delayed_heartbeats.now_s()
            for before_s in (6.0, 3.0):
                delayed_heartbeat.interval_estimator.arrived(now_s - before_s)
                delayed_heartbeat.interval_estimator.answered(now_s - before_s)
            delayed_heartbeat.heartbeat(KEYS, delayed_heartbeat.member_ref, codes.append)
            assert delayed_heartbeat.until_s > now_s
            delayed_heartbeat.until_s = now_s - ago_s  # as on a machine that was busy meanwhile
            delayed_heartbeat._judged(0)
        async with asyncio.timeout(30):
            while len(codes) < 3:
                await asyncio.sleep(0.001)
        assert delayed_heartbeats.held == 0

    uvloop.run(scenario())


async def test_delayed_heartbeats_behind_one_that_raises_are_released() -> None:
    store: Any = SimpleNamespace(send_in_order=lambda *commands: None)
    heartbeats: Any = Answering()
    delayed_heartbeats, codes, failed = DelayedHeartbeats(store, Settings(), heartbeats), list[int](), list[int]()

    def failing(code: int) -> None:
        failed.append(code)
        if len(failed) == 1:
            raise MemoryError

    for on_code in (codes.append, failing, codes.append):
        delayed_heartbeat = DelayedHeartbeat(delayed_heartbeats)
        delayed_heartbeat.heartbeat(KEYS, MemberRef("m", 1), on_code)
        delayed_heartbeats.subscribe(delayed_heartbeat)
        delayed_heartbeat.until_s = delayed_heartbeats.now_s() + 60.0
        delayed_heartbeat._judged(0)
    delayed_heartbeats.release_all()

    assert (codes, failed) == ([0, 0], [0, 15])


KEYS = GroupKeys.of("t", 50, "default", "g")


class Answering:
    """Heartbeats whose script the test answers."""

    def answer(self, keys: GroupKeys, member_ref: MemberRef, on_code: Any) -> None:
        """File it."""
