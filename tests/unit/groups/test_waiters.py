"""How a refresh of a group answers its waiting joins and syncs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tidegate.errors import FencedInstanceId, RebalanceInProgress, UnknownMemberId
from tidegate.groups.model import JoinRefused, Synced
from tidegate.groups.waiters import AGAIN, GroupStatus, Opened, Waiter

PREPARING = GroupStatus("PreparingRebalance", 4, 10, 7, "consumer", "range", "leader", 4, -1)
COMPLETING = GroupStatus("CompletingRebalance", 5, 11, 7, "consumer", "coop", "leader", 4, -1)
STABLE = replace(COMPLETING, state="Stable", version=12, assigned_generation=5)

JOINED = b'{"join_round":7,"sync_generation":4}'
SYNCED = b'{"join_round":7,"sync_generation":5}'


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def joining(loop: asyncio.AbstractEventLoop, member_id: str = "m", instance_id: str | None = None) -> Waiter:
    """A join parked at generation 4, in phase 7."""
    return Waiter(member_id, instance_id, 4, 7, loop.create_future())


def syncing(loop: asyncio.AbstractEventLoop) -> Waiter:
    """A sync parked in generation 5."""
    return Waiter("m", None, 5, -1, loop.create_future())


def reported(waiter: Waiter, status: GroupStatus, record: bytes | None = JOINED, **more: Any) -> Any:
    """The answer after one refresh; None while the request waits on."""
    waiter.judge(status, record, more.get("owner"), more.get("assignment"))
    assert waiter.checked_version == status.version
    if not waiter.answer.done():
        return None
    return waiter.answer.exception() or waiter.answer.result()


def test_join_waits_while_its_phase_lasts(loop: asyncio.AbstractEventLoop) -> None:
    assert reported(joining(loop), PREPARING) is None


def test_join_learns_the_generation_that_was_opened(loop: asyncio.AbstractEventLoop) -> None:
    assert reported(joining(loop), COMPLETING) == Opened(5, "consumer", "coop", "leader")
    assert reported(joining(loop), STABLE) == Opened(5, "consumer", "coop", "leader")


def test_join_is_entered_again_where_its_lease_was_lost(loop: asyncio.AbstractEventLoop) -> None:
    assert reported(joining(loop), PREPARING, b'{"join_round":0,"sync_generation":4}') is AGAIN
    assert reported(joining(loop), PREPARING, b'{"join_round":71,"sync_generation":4}') is AGAIN
    named_so = rb'{"join_round":0,"sync_generation":4,"client_id":"\"join_round\":7,"}'
    assert reported(joining(loop), PREPARING, named_so) is AGAIN


def test_waiters_group_in_another_phase_answers_followers_and_rejoins_the_leader(
    loop: asyncio.AbstractEventLoop,
) -> None:
    moved_on = replace(PREPARING, generation=5, round=8)

    assert reported(joining(loop), moved_on) == Opened(5, "consumer", "range", "leader")
    assert reported(joining(loop, "leader"), moved_on) is AGAIN


def test_waiters_removed_member_is_unknown_without_an_id(loop: asyncio.AbstractEventLoop) -> None:
    refusal = reported(joining(loop), PREPARING, None)

    assert isinstance(refusal, JoinRefused)
    assert (type(refusal.error), refusal.member_id) == (UnknownMemberId, "")


def test_waiters_replaced_member_is_fenced_with_its_old_id(loop: asyncio.AbstractEventLoop) -> None:
    refusal = reported(joining(loop, instance_id="i"), PREPARING, None, owner=b"other")

    assert isinstance(refusal, JoinRefused)
    assert (type(refusal.error), refusal.member_id) == (FencedInstanceId, "m")


def test_sync_waits_for_the_assignment(loop: asyncio.AbstractEventLoop) -> None:
    assert reported(syncing(loop), COMPLETING, SYNCED) is None
    assert reported(syncing(loop), STABLE, SYNCED, assignment=b"mine") == Synced(b"mine", "consumer", "coop")
    assert reported(syncing(loop), STABLE, SYNCED) == Synced(b"", "consumer", "coop")


def test_waiters_assignment_is_valid_although_the_next_phase_began(loop: asyncio.AbstractEventLoop) -> None:
    next_phase = replace(STABLE, state="PreparingRebalance")

    assert reported(syncing(loop), next_phase, SYNCED, assignment=b"mine") == Synced(b"mine", "consumer", "coop")


def test_sync_without_assignment_fails_with_its_generation(loop: asyncio.AbstractEventLoop) -> None:
    failed = replace(COMPLETING, state="PreparingRebalance")
    later = replace(STABLE, generation=6, assigned_generation=6)

    assert isinstance(reported(syncing(loop), failed, SYNCED), RebalanceInProgress)
    assert isinstance(reported(syncing(loop), later, SYNCED), RebalanceInProgress)
    assert isinstance(reported(syncing(loop), COMPLETING, None), UnknownMemberId)
    assert isinstance(reported(syncing(loop), COMPLETING, None, owner=b"other"), FencedInstanceId)


def test_sync_is_entered_again_where_its_lease_was_lost(loop: asyncio.AbstractEventLoop) -> None:
    assert reported(syncing(loop), COMPLETING, JOINED) is AGAIN


def test_answer_is_given_once(loop: asyncio.AbstractEventLoop) -> None:
    waiter = syncing(loop)
    reported(waiter, STABLE, SYNCED, assignment=b"mine")

    assert reported(waiter, replace(STABLE, version=13, generation=6), SYNCED) == Synced(b"mine", "consumer", "coop")


def test_waiters_of_a_converted_group_enter_again(loop: asyncio.AbstractEventLoop) -> None:
    converted = replace(STABLE, state="Converted", generation=6)

    refused = reported(joining(loop), converted, None)
    assert isinstance(refused, JoinRefused)
    assert isinstance(refused.error, RebalanceInProgress)
    assert isinstance(reported(syncing(loop), converted, None), RebalanceInProgress)
