"""Planted bugs in the scripts of share groups: random members find all (order by key, starvation, lost records)."""

from __future__ import annotations

import pytest

from tests.model.mutations import InScript
from tests.scripts import test_share_ordering as random_members
from tests.support.clock import SteppedClock
from tests.support.shares import ShareWorld
from tidegate.settings import Settings

ROWS, ACQUIRE, ACKNOWLEDGE = "lib/share_rows", "share/acquire_records", "share/acknowledge_records"
ROUNDS = 400
BUGS = {
    "records of a key are delivered together": InScript(
        ACQUIRE,
        'if key ~= "-" and share_rows.chain(p, row, key) then',
        'if key ~= "-" and share_rows.chain(p, row, key) and false then',
    ),
    "the next record of a key waits forever": InScript(ROWS, "unchain(p, found[2])", "local _ = found[2]"),
    "a released record is finished": InScript(ROWS, "if row.count >= p.group.limit then", "if row.count >= 1 then"),
    "a lock never expires": InScript(
        ROWS,
        'if row.owner == "" then share_rows.make_available(p, row) else share_rows.end_delivery(p, row) end',
        'if row.owner == "" then share_rows.make_available(p, row) end',
    ),
    "an accepted record comes back": InScript(
        ACKNOWLEDGE,
        "    share_rows.finish(p, part)\n    if kind == REJECT",
        "    share_rows.end_delivery(p, part)\n    if kind == REJECT",
    ),
}


async def test_without_a_bug_nothing_is_found(shares: ShareWorld) -> None:
    await random_members.run_random_members(shares, seed=1, rounds=ROUNDS)


@pytest.mark.parametrize("bug", BUGS)
async def test_planted_bug_is_found(settings: Settings, clock: SteppedClock, bug: str) -> None:
    with BUGS[bug].planted():
        world = ShareWorld(settings, clock)
        await world.start()
        await world.configure(share_auto_offset_reset="earliest")
        try:
            with pytest.raises(AssertionError):
                await random_members.run_random_members(world, seed=1, rounds=ROUNDS)
        finally:
            await world.close()
