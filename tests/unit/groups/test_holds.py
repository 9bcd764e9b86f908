"""The ends of holds on the loop that brokers run on: uvloop's timers differ from asyncio's where they are late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import uvloop

from tidegate.groups.holds import Holder, Holds
from tidegate.groups.model import Membership
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys


def test_holds_whose_end_has_passed_already_end_at_once() -> None:
    async def scenario() -> None:
        store: Any = SimpleNamespace(shard_keys=lambda shard: SimpleNamespace(wake="wake"))
        holds, codes = Holds(store, Settings(), heartbeats=Answering()), []  # type: ignore[arg-type, var-annotated]
        for number, ago_s in enumerate((1.0, 2.0, 0.5)):
            holder = Holder(holds)
            holder.membership = Membership(f"m-{number}", 1)
            holder.pace.session_s = 45.0
            now_s = holds.now_s()
            for before_s in (6.0, 3.0):
                holder.pace.arrived(now_s - before_s)
                holder.pace.answered(now_s - before_s)
            holder.beat(KEYS, holder.membership, codes.append)
            assert holder.until_s > now_s
            holder.until_s = now_s - ago_s  # as on a machine that was busy meanwhile
            holder._judged(0)
        async with asyncio.timeout(5):
            while len(codes) < 3:
                await asyncio.sleep(0.001)
        assert holds.held == 0

    uvloop.run(scenario())


KEYS = GroupKeys.of("t", 50, "default", "g")


class Answering:
    """Heartbeats whose script the test answers."""

    def add(self, keys: GroupKeys, membership: Membership, on_code: Any) -> None:
        """File it."""
