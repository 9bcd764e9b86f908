"""Scenarios 11-35 of the specification's share groups: start offsets, share sessions, acquisition, delivery counts.

Where Kafka 4.4 answers otherwise, the test says so.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.support.log_broker import Asked
from tests.support.shares import ACCEPT, LOCK_MS, REJECT, RELEASE, RENEW, Member, ShareWorld
from tidegate.errors import StoreUnavailable
from tidegate.groups.share.acknowledgements import UNDO, Acknowledgement
from tidegate.groups.share.records import ACQUIRE_RECORDS
from tidegate.groups.share.sessions import Acquirer, SharePartition
from tidegate.groups.share.starting import INITIALIZE_PARTITIONS
from tidegate.records.batch import iter_headers
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

EPOCH, NOT_FOUND = "INVALID_SHARE_SESSION_EPOCH", "SHARE_SESSION_NOT_FOUND"
STORAGE = "KAFKA_STORAGE_ERROR"


async def reading(shares: ShareWorld, *names: str) -> list[Member]:
    """Members with their partitions; none has fetched yet."""
    members = [shares.member(name, broker=place % 2) for place, name in enumerate(names)]
    await shares.joined(*members)
    return members


def failing(shares: ShareWorld, monkeypatch: pytest.MonkeyPatch, step: str, after: int) -> None:
    """Let a step of the first broker's records fail, once it was done `after` times."""
    records, done = shares.brokers[0].context.shares.records, itertools.count()
    real = getattr(records, step)

    async def step_or_fail(*args: Any, **fields: Any) -> Any:
        if next(done) >= after:
            raise StoreUnavailable("no answer")
        return await real(*args, **fields)

    monkeypatch.setattr(records, step, step_or_fail)


# -- start offsets


async def test_scenario_11_latest_begins_at_the_assignment(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    await shares.produce(3)
    (a,) = await reading(shares, "a")
    await shares.produce(1)  # Kafka does not deliver records between the assignment and the first fetch

    assert await a.fetch(0) == "3-3x1"
    await shares.produce(1)
    assert await a.fetch() == "4-4x1"


async def test_scenario_12_partitions_added_later_begin_at_their_first_record(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    (a,) = await reading(shares, "a")
    await shares.brokers[0].catalog.add_partitions("default", "t1", 2)
    await shares.produce(4, partition=1)
    for broker in shares.brokers:
        await broker.catalog.refresh()

    assert await a.heartbeat() == (3, {"t1": [0, 1]})
    assert await a.fetch(0, partitions=(1,)) == "1: 0-3x1"


async def grown(shares: ShareWorld, count: int) -> None:
    """Let `t1` grow to so many partitions, each new one with four records."""
    before = shares.topics["t1"].partition_count
    await shares.brokers[0].catalog.add_partitions("default", "t1", count)
    for partition in range(before, count):
        await shares.produce(4, partition=partition)
    for broker in shares.brokers:
        await broker.catalog.refresh()


async def test_partitions_added_while_the_group_is_empty_begin_at_their_first_record(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    a, b = await reading(shares, "a"), shares.member("b", broker=1)
    assert await a[0].leave() == (-1, None)
    await grown(shares, 2)

    await shares.joined(b)

    assert await b.fetch(0, partitions=(0, 1)) == "1: 0-3x1"


async def test_partitions_added_without_a_subscription_begin_at_their_first_record(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    (a,) = await reading(shares, "a")
    await a.heartbeat(subscribed_topic_names=["t2"])
    await grown(shares, 2)

    await a.heartbeat(subscribed_topic_names=["t1"])

    assert await a.fetch(0, topic="t1", partitions=(0, 1)) == "1: 0-3x1"


async def test_partitions_beyond_the_first_hundred_begin_as_those_before_them(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    await shares.create("wide", 101)
    await shares.produce(3, topic="wide", partition=100)
    a = shares.member("a", "wide")

    await shares.joined(a)

    assert await shares.start_offset("wide", 100) == 3


async def test_interrupted_first_initialisation_is_no_growth(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shares.configure(share_auto_offset_reset="latest")
    await shares.create("wide", 101)
    await shares.produce(3, topic="wide")
    a, run, done = shares.member("a", "wide"), Store.run, itertools.count()

    async def run_once(store: Store, script: Script, *args: Any) -> Any:
        if script is INITIALIZE_PARTITIONS and next(done) == 1:
            raise StoreUnavailable("no answer")
        return await run(store, script, *args)

    monkeypatch.setattr(Store, "run", run_once)
    assert await a.join("wide") == "COORDINATOR_NOT_AVAILABLE"

    await shares.joined(a)

    assert await shares.start_offset("wide", 0) == 3


async def test_scenario_12_by_duration(shares: ShareWorld) -> None:
    await shares.configure(share_auto_offset_reset="by_duration:PT1H")
    await shares.produce(5)
    (a,) = await reading(shares, "a")

    assert await a.fetch(0) == "0-4x1"


async def test_scenario_13_partitions_without_members_and_strangers(shares: ShareWorld) -> None:
    await shares.produce(3)
    stranger = shares.member("stranger", broker=1)
    assert await stranger.fetch(0) == "UNKNOWN_SERVER_ERROR"

    await reading(shares, "a")

    assert await stranger.fetch(0) == "0-2x1"


# -- share sessions


async def test_scenario_14_epochs_without_a_session(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")

    assert await a.fetch(0, acks={0: [(0, 0, (ACCEPT,))]}) == "INVALID_REQUEST"
    assert await a.fetch(1) == await a.fetch(-1) == await a.ack(0, 0, epoch=1) == NOT_FOUND
    assert await a.ack(0, 0, epoch=-1) == NOT_FOUND
    assert await a.ack(0, 0, epoch=0) == EPOCH


async def test_scenario_14_members_that_must_be_named(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")

    for fields in ({"group_id": " "}, {"group_id": None}, {"member_id": ""}, {"member_id": None}):
        assert await a.fetch(0, **fields) == await a.acknowledge(epoch=1, **fields) == "INVALID_REQUEST"


async def test_scenario_15_open_a_session(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(4, 6)

    assert await a.fetch(0) == "0-9x1"
    assert a.lock_ms == 30_000
    assert await a.fetch(5) == EPOCH
    assert await a.fetch(0) == ""
    assert await a.ack(0, 9) == "NONE"


async def test_scenario_16_nothing_new_and_close(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    assert (await a.sending(0).answer).responses[0].partitions[0].records == b""
    assert (await a.sending().answer).responses == ()

    assert await a.fetch(-1) == ""
    assert await a.fetch(2) == NOT_FOUND


async def test_scenario_17_a_lost_connection_releases(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(6)
    assert await a.fetch(0) == "0-5x1"

    a.connection.close()

    assert await awaited(b, "0-5x2", 0) == "0-5x2"
    again = Member(shares, "a", ("t1",), shares.brokers[0].connect(), epoch=a.epoch)
    assert await again.fetch(1) == NOT_FOUND
    assert await again.heartbeat() == (a.epoch, None)


async def moved(shares: ShareWorld, member: Member) -> Member:
    """The same member at the other broker, where its client has found the partition's leader."""
    return Member(shares, member.name, member.topics, shares.brokers[1].connect(), epoch=member.epoch)


async def test_lost_connection_of_a_member_that_moved_releases_nothing_of_its_new_session(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(6, 4)
    assert await a.fetch(0, max_records=6) == "0-5x1"
    a_moved = await moved(shares, a)
    assert await a_moved.fetch(0) == "6-9x1"

    a.connection.close()

    assert await awaited(b, "0-5x2", 0) == "0-5x2"
    assert await a_moved.ack(6, 9) == "NONE"


async def test_renewed_locks_belong_to_the_session_that_renewed_them(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(6, 4)
    assert await a.fetch(0) == "0-9x1"
    a_moved = await moved(shares, a)
    assert await a_moved.fetch(0) == ""
    assert await a_moved.ack(0, 5, RENEW, is_renew_ack=True) == "NONE"

    a.connection.close()

    assert await awaited(b, "6-9x2", 0) == "6-9x2"
    assert await a_moved.ack(0, 5) == "NONE"


async def test_close_releases_what_the_member_acquired_in_another_session(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(6)
    assert await a.fetch(0) == "0-5x1"
    a_moved = await moved(shares, a)
    assert await a_moved.fetch(0) == ""

    assert await a_moved.acknowledge(epoch=-1) == "NONE"

    assert await b.fetch(0) == "0-5x2"


async def awaited(member: Member, wanted: str, epoch: int | None = None, **fields: object) -> str:
    """Fetch with a wait; the answer."""
    return member.text(await asyncio.wait_for(member.sending(epoch, max_wait_ms=60_000, **fields).answer, 40))


async def test_records_are_delivered_again_once_a_key_of_another_type_is_removed(
    shares: ShareWorld,
) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(6)
    assert await a.fetch(0) == "0-5x1"
    store, topic = shares.brokers[0].store, shares.topics["t1"]
    acquired = shares.keys.share(topic.topic_hex, 0)[2]
    await store.command("RENAME", acquired, f"{acquired}:aside")
    await store.command("RPUSH", acquired, "foreign")

    await shares.clock.advance(30_000)
    assert await b.fetch(0) == "KAFKA_STORAGE_ERROR"
    await store.command("RENAME", acquired, f"{acquired}:foreign")

    assert await b.fetch(0) == "0-5x2"


async def test_scenario_18_close_with_acknowledgements_releases_the_rest(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(6)
    await a.fetch(0)

    assert await a.ack(0, 1, epoch=-1) == "NONE"
    assert await b.fetch(0) == "2-5x2"

    assert await b.fetch(-1, acks={0: [(2, 3, (ACCEPT,))]}) == ""
    assert await a.fetch(0) == "4-5x3"


async def test_acknowledgements_are_answered_though_the_fetch_after_them_fails(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(5, 5)
    await a.fetch(0, max_records=5)
    failing(shares, monkeypatch, "acquire", after=0)

    assert await a.fetch(acks={0: [(0, 2, (ACCEPT,)), (7, 7, (ACCEPT,))]}) == f"{STORAGE} / INVALID_REQUEST"
    assert await a.fetch(acks={0: [(0, 4, (ACCEPT,))]}) == STORAGE
    assert await shares.start_offset() == 5


async def test_records_of_one_partition_are_answered_though_the_next_one_fails(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = shares.member("a", "t2")
    await shares.joined(a)
    for partition in (0, 1):
        await shares.produce(3, topic="t2", partition=partition)
    failing(shares, monkeypatch, "acquire", after=2)

    assert await a.fetch(0, partitions=(0, 1)) == f"0-2x1 1: {STORAGE}"


async def test_close_answers_its_acknowledgements_though_the_rest_is_not_released(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(5)
    await a.fetch(0)
    failing(shares, monkeypatch, "release", after=0)

    assert await a.ack(0, 2, epoch=-1) == "NONE"
    assert await b.fetch(0) == ""
    await shares.clock.advance(LOCK_MS + 1)
    assert await b.fetch() == "3-4x2"


async def test_waiting_fetch_is_resumed_when_a_full_window_may_grow(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.configure(share_partition_max_record_locks="100")
    await shares.produce(100, 100)
    assert await a.fetch(0) == "0-99x1"
    waiting = asyncio.ensure_future(awaited(b, "", epoch=0))
    await asyncio.sleep(0.1)
    assert not waiting.done()

    assert await a.ack(0, 99) == "NONE"

    assert await waiting == "100-199x1"


async def test_close_answers_the_lock_duration_of_the_group(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.configure(share_record_lock_duration_ms="2000")
    await shares.produce(1)

    assert await a.fetch(0) == "0-0x1"
    assert a.lock_ms == 2_000
    assert await a.fetch(-1) == ""
    assert a.lock_ms == 2_000


async def test_scenario_19_leaving_keeps_locks_and_session(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(3)
    await a.fetch(0)

    assert await a.leave() == (-1, None)

    assert await b.fetch(0) == ""
    assert await a.ack(0, 2) == "NONE"


async def test_scenario_20_another_connection_takes_the_session(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await a.fetch(0)
    second = Member(shares, "a", ("t1",), shares.brokers[0].connect(), session_epoch=1)

    assert await second.fetch() == ""
    assert await a.fetch() == EPOCH


def reconnected(shares: ShareWorld, member: Member) -> Member:
    """The same member on another connection to its broker, because nothing is answered on the first one."""
    connection = shares.brokers[0].connect()
    return Member(shares, member.name, member.topics, connection, member.epoch, member.session_epoch)


async def waiting(member: Member) -> Asked:
    """A fetch of the member that waits for records."""
    await member.fetch(0)
    asked = member.sending(max_wait_ms=60_000)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not asked.answer.done()
    return asked


async def ended(member: Member, asked: Asked) -> str:
    """The answer of a fetch that no longer waits."""
    return member.text(await asyncio.wait_for(asked.answer, 40))


async def test_waiting_fetch_of_a_replaced_session_ends_and_acquires_nothing(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    old, again = await waiting(a), reconnected(shares, a)

    assert await again.fetch(0) == ""

    assert await ended(a, old) == ""
    await shares.produce(3)
    assert await again.fetch() == "0-2x1"


async def test_waiting_fetch_of_a_closed_session_ends_and_acquires_nothing(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    old, again = await waiting(a), reconnected(shares, a)

    assert await again.acknowledge(epoch=-1) == "NONE"

    assert await ended(a, old) == ""
    await shares.produce(3)
    assert await b.fetch(0) == "0-2x1"


async def test_waiting_fetch_ends_when_its_session_continues_on_another_connection(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    old, again = await waiting(a), reconnected(shares, a)

    assert await again.fetch() == ""

    assert await ended(a, old) == ""
    await shares.produce(3)
    assert await again.fetch() == "0-2x1"


async def test_waiting_fetch_outlasts_acknowledgements_of_its_connection(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(3)
    await a.fetch(0)
    old = a.sending(max_wait_ms=60_000)

    assert await a.ack(0, 2) == "NONE"
    await shares.produce(2)

    assert await ended(a, old) == "3-4x1"


async def test_waiting_fetch_ends_when_another_connection_of_its_session_is_closed(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    old, again = await waiting(a), reconnected(shares, a)
    session = shares.brokers[0].context.shares.sessions.proceed(
        shares.keys, "member-a", again.session_epoch, a.connection.client.connection_id
    )
    session.connection_id = again.connection.client.connection_id
    shares.brokers[0].context.shares.sessions.close_connection(session.connection_id)

    assert await ended(a, old) == ""


async def test_reading_fetch_of_a_replaced_session_undoes_what_it_acquired(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await reading(shares, "a")
    await a.fetch(0)
    await shares.produce(3)
    records, again, opened = shares.brokers[0].context.shares.records, reconnected(shares, a), list[Asked]()
    acquire = records.acquire

    async def acquire_and_replace(*args: Any, **fields: Any) -> Any:
        acquired = await acquire(*args, **fields)
        if acquired.record_count and not opened:
            opened.append(again.sending(0, max_wait_ms=60_000))
        return acquired

    monkeypatch.setattr(records, "acquire", acquire_and_replace)

    assert await a.fetch() == ""
    assert await ended(again, opened[0]) == "0-2x1"


async def test_undo_of_what_another_session_of_the_member_acquired_is_refused(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(3)
    assert await a.fetch(0) == "0-2x1"
    partition = SharePartition(shares.topics["t1"].topic_id, 0)
    undone = [(partition, "", [Acknowledgement(0, 2, UNDO)])]

    records = shares.brokers[0].context.shares.records
    _, codes = await records.acknowledge(shares.keys, Acquirer("member-a", "0abc"), undone)

    assert codes == [ErrorCode.invalid_record_state.value]
    assert await a.ack(0, 2) == "NONE"


async def test_scenario_21_forgotten_partitions(shares: ShareWorld) -> None:
    a = shares.member("a", "t2")
    await shares.joined(a)
    await shares.produce(3, topic="t2")
    await shares.produce(2, topic="t2", partition=1)
    assert await a.fetch(0, partitions=(0, 1)) == "0-2x1 1: 0-1x1"
    await shares.produce(1, topic="t2")
    await shares.produce(1, topic="t2", partition=1)

    assert await a.fetch(forget=(0,)) == "1: 2-2x1"
    assert await a.ack(0, 2) == "NONE"
    assert await a.fetch(partitions=(0,)) == "3-3x1"


async def test_scenario_22_unknown_partitions_and_the_limit_of_sessions(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    unknown = UUID(int=99)
    assert await a.fetch(0, topic_id=unknown) == "UNKNOWN_TOPIC_ID"
    assert await a.fetch() == "UNKNOWN_TOPIC_ID"
    assert await a.fetch(topic_id=unknown, forget=(0,)) == ""
    assert await a.fetch(partitions=(9,)) == "9: UNKNOWN_TOPIC_OR_PARTITION"
    assert await a.fetch() == "9: UNKNOWN_TOPIC_OR_PARTITION"

    for broker in shares.brokers:
        broker.context.shares.sessions._max = 1
    third = shares.member("c")
    assert await third.fetch(0) == "SHARE_SESSION_LIMIT_REACHED"
    assert await b.fetch(0) == ""
    a.connection.close()
    assert await third.fetch(0) == ""


async def test_scenario_23_a_killed_broker_loses_sessions_only(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(6)
    await a.fetch(0)
    assert await a.ack(0, 0) == "NONE"

    shares.brokers[0].context.shares.sessions._sessions.clear()  # the process is gone, and with it only its memory

    assert await a.fetch() == NOT_FOUND
    assert await shares.start_offset() == 1
    assert await a.fetch(0) == ""  # in Kafka the locks are gone too; here they last until they expire
    await shares.clock.advance(30_000)
    assert await a.fetch() == "1-5x2"
    assert await a.heartbeat() == (a.epoch, None)


# -- acquisition


async def test_scenario_24_whole_batches_up_to_a_limit(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(10, 10, 10)

    assert await a.fetch(0, max_records=5) == "0-9x1"
    assert await a.fetch(max_records=12, batch_size=1) == "10-19x1 20-29x1"
    assert await a.fetch(max_records=0) == await a.fetch(max_records=-1) == ""


async def test_scenario_25_the_record_limit_mode(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(10, 10)

    answer = await a.sending(0, max_records=5, mode=1).answer
    assert a.text(answer) == "0-4x1"
    assert answer.responses[0].partitions[0].records[:8] == bytes(8)
    assert await b.fetch(0, max_records=7, mode=1) == "5-11x1"  # Kafka: 5-9, 10-11
    assert await b.fetch(mode=2) == "INVALID_REQUEST"  # Kafka: UNKNOWN_SERVER_ERROR


async def test_scenario_26_partitions_rotate(shares: ShareWorld) -> None:
    a = shares.member("a", "t4")
    await shares.joined(a)
    for partition in range(3):
        await shares.produce(4, 4, topic="t4", partition=partition)

    answers = [await a.fetch(0, partitions=(0, 1, 2), max_records=4)]
    answers += [await a.fetch(max_records=4) for _ in range(2)]

    assert answers == ["0-3x1", "1: 0-3x1", "2: 0-3x1"]


async def test_scenario_27_the_window(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.configure(share_partition_max_record_locks=100)
    await shares.produce(*[30] * 5)

    assert await a.fetch(0) == "0-119x1"
    assert await a.fetch() == ""
    assert await a.ack(50, 99) == "NONE"
    assert await a.fetch() == ""
    assert await a.ack(0, 29) == "NONE"
    assert await a.fetch() == "120-149x1"


async def deliveries(a: Member, count: int) -> list[str]:
    """Fetch and release everything, again and again."""
    found = []
    for epoch in range(count):
        found.append(await a.fetch(2 * epoch))
        for part in found[-1].split():
            first, _, rest = part.partition("-")
            assert await a.ack(int(first), int(rest.partition("x")[0]), RELEASE, epoch=2 * epoch + 1) == "NONE"
    return found


async def test_scenario_28_a_failing_batch_is_delivered_in_smaller_parts(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(20)

    found = await deliveries(a, 26)

    assert found[:4] == ["0-19x1", "0-19x2", "0-19x3", "0-9x4"]
    assert found[4:14] == [f"{offset}-{offset}x5" for offset in range(10)]
    assert found[14] == "10-19x4"
    assert found[15:25] == [f"{offset}-{offset}x5" for offset in range(10, 20)]
    assert found[25] == ""
    assert await shares.start_offset() == 20


async def test_scenario_28_parts_by_limit(shares: ShareWorld) -> None:
    for limit, count, sizes in (
        (3, 8, [8, 8, 1]),
        (4, 8, [8, 8, 4, 1]),
        (6, 32, [32, 32, 32, 16, 8, 1]),
        (10, 64, [64, 64, 64, 64, 64, 32, 16, 8, 4, 1]),
    ):
        topic = f"limit-{limit}"
        await shares.create(topic, 1)
        await shares.configure(share_delivery_count_limit=limit)
        a = shares.member(f"m{limit}", topic)
        await shares.joined(a)
        await shares.produce(count, topic=topic)

        found = await deliveries(a, len(sizes))

        assert found == [f"0-{size - 1}x{place + 1}" for place, size in enumerate(sizes)], limit


async def test_scenario_29_a_limit_of_two(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.configure(share_delivery_count_limit=2)
    await shares.produce(10)

    assert await deliveries(a, 3) == ["0-9x1", "0-9x2", ""]
    assert await shares.start_offset() == 10


async def test_scenario_30_a_lower_limit(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(4, 4)
    assert await deliveries(a, 2) == ["0-7x1", "0-7x2"]
    assert await a.fetch(0, max_records=4, mode=1) == "0-3x3"

    await shares.configure(share_delivery_count_limit=2)
    assert await a.ack(0, 3, RELEASE) == "NONE"

    assert await a.fetch() == "4-7x3"
    assert await a.ack(4, 7, RELEASE) == "NONE"
    assert await a.fetch() == ""


async def test_scenario_31_what_wakes_a_waiting_fetch(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    waiting = b.sending(0, max_wait_ms=60_000)
    await asyncio.sleep(0.2)
    assert not waiting.answer.done()
    await shares.produce(3)
    assert b.text(await asyncio.wait_for(waiting.answer, 40)) == "0-2x1"

    waiting = a.sending(0, max_wait_ms=60_000)
    await asyncio.sleep(0.2)
    assert not waiting.answer.done()
    assert await b.ack(0, 2, RELEASE) == "NONE"  # Kafka answers only after the whole wait
    assert a.text(await asyncio.wait_for(waiting.answer, 40)) == "0-2x2"
    assert await a.fetch(min_bytes=0, max_wait_ms=60_000) == ""


async def test_many_waiting_members_ask_a_few_times_for_one_record(shares: ShareWorld) -> None:
    members = await reading(shares, *map(str, range(30)))
    waiting = [member.sending(0, max_wait_ms=60_000) for member in members]
    asked = metrics.script(ACQUIRE_RECORDS.label)
    async with asyncio.timeout(20):
        count = -1
        while asked.count < len(members) or asked.count != count:  # each asks, and the first ones once more
            count = asked.count
            await asyncio.sleep(1)
    before = asked.count

    await shares.produce(1)
    done, others = await asyncio.wait([one.answer for one in waiting], return_when=asyncio.FIRST_COMPLETED, timeout=20)
    await asyncio.sleep(0.3)

    assert len(done) == 1
    assert asked.count - before <= 10, "the one that gets it, two at each broker that find nothing"
    for one in others:
        one.cancel()


async def test_released_records_are_read_by_a_broker_that_has_not_noticed_them(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(1)
    assert (await a.fetch(0), await a.ack(0, 0)) == ("0-0x1", "NONE")
    assert await b.fetch(0) == ""
    log = shares.brokers[1].context.logs.partition(shares.topics["t1"], 0)
    log.on_change(lambda: None)
    async with asyncio.timeout(20):
        while not log.subscription.is_subscribed:
            await asyncio.sleep(0.01)
    before = copy.deepcopy(log.state)
    await shares.produce(2)
    assert (await a.fetch(), await a.ack(1, 2, RELEASE)) == ("1-2x1", "NONE")
    async with asyncio.timeout(20):
        while log.state.end < 3:
            await asyncio.sleep(0.01)

    log.state = before  # as if no message of the append had come
    (topic,) = (await b.sending().answer).responses

    (one,) = topic.partitions
    assert [(got.first_offset, got.last_offset) for got in one.acquired_records] == [(1, 2)]
    assert [batch.base_offset for batch in iter_headers(one.records)] == [1], "clients finish what has no record"


async def test_scenario_31_an_expired_lock(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    await shares.produce(3)
    assert await a.fetch(0) == "0-2x1"
    await shares.clock.advance(29_999)
    assert await b.fetch(0) == ""

    await shares.clock.advance(1)

    assert await b.fetch() == "0-2x2"


async def test_scenario_32_deleted_records(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(5, 5, 10)
    assert await a.fetch(0, max_records=5) == "0-4x1"
    topic = shares.topics["t1"]
    for broker in shares.brokers:
        log = broker.logs.partition(topic, 0)
        await (log.delete_records(8) if broker is shares.brokers[0] else log.end_offset())

    assert await a.fetch() == "8-19x1"  # Kafka delivers the whole batch 5-9
    assert await a.ack(0, 4) == "NONE"
    assert await shares.start_offset() == 8


async def test_scenario_35_a_deleted_topic(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(1)
    assert await a.fetch(0) == "0-0x1"
    await shares.brokers[0].catalog.delete("default", "t1")
    for broker in shares.brokers:
        await broker.catalog.refresh()

    assert await a.fetch() == "UNKNOWN_TOPIC_OR_PARTITION"
    assert await a.ack(0, 0) == "UNKNOWN_TOPIC_ID"
    assert await a.heartbeat() == (3, {})


async def test_fetch_closed_while_it_waits_locks_nothing(shares: ShareWorld) -> None:
    a, b = await reading(shares, "a", "b")
    a.sending(0, max_wait_ms=60_000)
    await asyncio.sleep(0.2)

    a.connection.close()
    await shares.produce(3)

    assert await awaited(b, "0-2x1", 0) in ("0-2x1", "0-2x2")


async def test_fetch_records_beyond_the_answer_are_not_delivered(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(5, 5, 5)
    assert await a.fetch(0, batch_size=1) == "0-4x1 5-9x1 10-14x1"
    for first in (0, 5, 10):
        assert await a.ack(first, first + 4, RELEASE) == "NONE"

    assert await a.fetch(max_bytes=1, batch_size=1) == "0-4x2"
    assert await a.fetch(batch_size=1) == "5-9x2 10-14x2"


async def test_fetch_reads_more_than_one_piece_of_the_log(shares: ShareWorld) -> None:
    (a,) = await reading(shares, "a")
    await shares.produce(*[40] * 30)

    assert await a.fetch(0, max_records=1_000) == "0-519x1 520-999x1"
    assert await a.ack(0, 999, REJECT) == "NONE"
    assert await a.fetch() == "1000-1199x1"


async def test_topic_of_format_record_is_refused(shares: ShareWorld) -> None:
    await shares.create("r", 1, tidegate_format="record")
    await shares.produce(3, topic="r")
    await shares.produce(3)
    member = shares.member("a", "r", "t1")
    await shares.joined(member)

    assert await member.fetch(0) == "UNSUPPORTED_FOR_MESSAGE_FORMAT"
    assert await member.fetch(0, topic="t1") == "0-2x1"
