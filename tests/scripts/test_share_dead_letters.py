"""Scenarios 46-48 of the specification's share groups, and dead letters when a broker ends (KIP-1191)."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tests.support.log_broker import LogBroker, produce_request
from tests.support.logs import batch_bytes
from tests.support.shares import LOCK_MS, REJECT, RELEASE, Member, ShareWorld
from tests.support.steps import sweep_expiry
from tidegate.apis.share_reading import read_log
from tidegate.errors import InvalidConfig, StoreUnavailable
from tidegate.groups import configs
from tidegate.groups.expiry import GroupExpiry
from tidegate.groups.share import dead_letters
from tidegate.groups.share.dead_letters import HOLD_MS, REMOVE_DEAD_LETTERS, TAKE_DEAD_LETTERS
from tidegate.groups.share.dead_records import source_records
from tidegate.groups.share.sessions import SharePartition
from tidegate.records.batch import Batch, iter_headers
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import Record, read_records
from tidegate.store.store import Store

TARGET = "dlq.jobs"
REJECTED = "Offset rejected by client."
EXHAUSTED = "Offset delivery count exceeded the threshold."


async def configured(shares: ShareWorld, partitions: int = 1, **target: str) -> None:
    """The group has a dead-letter topic, which takes its letters."""
    await shares.create(TARGET, partitions, **({"errors_deadletterqueue_group_enable": "true"} | target))
    await shares.configure(errors_deadletterqueue_topic_name=TARGET, share_delivery_count_limit=2)


async def holding(shares: ShareWorld, count: int = 5, topic: str = "t1", partition: int = 0) -> Member:
    """A member that has acquired one batch."""
    a = shares.member("a", topic)
    await shares.joined(a)
    await shares.produce(count, topic=topic, partition=partition)
    assert f"0-{count - 1}x1" in await a.fetch(0, partitions=(partition,))
    return a


async def drain(shares: ShareWorld, broker: int = 0) -> None:
    await shares.brokers[broker].context.shares.dead_letters.drain(shares.keys)


async def letters(shares: ShareWorld, partition: int = 0, topic: str = TARGET) -> list[Record]:
    """What the dead-letter topic has."""
    found = await shares.brokers[1].catalog.find("default", topic)
    assert found is not None
    log = shares.brokers[1].logs.partition(found, partition)
    await log.end_offset()
    read = await read_log(log, 0, 1 << 20, True, False)
    return [one for batch in iter_headers(b"".join(read.buffers)) for one in read_records(batch)]


def about(letter: Record) -> tuple[int, int, str]:
    """Offset, delivery count and message of its headers."""
    values = {name.removeprefix("__dlq.errors."): (value or b"").decode() for name, value in letter.headers}
    return int(values["offset"]), int(values["delivery.count"]), values["message"]


async def totals(shares: ShareWorld, topic: str = "t1") -> tuple[int, int, int]:
    """Records that failed, were written to the dead-letter topic, and were dropped."""
    one = SharePartition(shares.topics[topic].topic_id, 0)
    (found,) = await shares.brokers[0].context.shares.records.in_flight(shares.keys, [one])
    assert found is not None
    return found.failed_total, found.dead_lettered_total, found.dropped_total


async def queued(shares: ShareWorld) -> int:
    return int(await shares.brokers[0].store.command("XLEN", shares.keys.dead_letters))


# -- scenarios


async def test_scenario_46_rejected_and_released_at_the_limit(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares)
    assert await a.acknowledge({0: [(0, 0, (1,)), (1, 1, (REJECT,)), (2, 4, (RELEASE,))]}) == "NONE"
    assert await a.fetch() == "2-4x2"
    assert await a.ack(2, 4, RELEASE) == "NONE"
    assert await shares.start_offset() == 5

    await drain(shares)

    found = await letters(shares)
    assert list(map(about, found)) == [(1, 1, REJECTED), *((offset, 2, EXHAUSTED) for offset in (2, 3, 4))]
    assert [(one.key, one.value) for one in found] == [(None, None)] * 4
    assert found[0].headers == (
        ("__dlq.errors.topic", b"t1"),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"1"),
        ("__dlq.errors.group", b"jobs"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", REJECTED.encode()),
    )
    assert await totals(shares) == (4, 4, 0)


async def test_scenario_46_lock_expired_at_the_limit(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares, 1)
    await shares.clock.advance(LOCK_MS + 1)
    assert await a.fetch() == "0-0x2"
    await shares.clock.advance(LOCK_MS + 1)
    assert await a.fetch() == ""

    await drain(shares)

    assert list(map(about, await letters(shares))) == [(0, 2, EXHAUSTED)]


async def test_scenario_47_key_and_value_are_copied(shares: ShareWorld) -> None:
    await configured(shares)
    await shares.configure(errors_deadletterqueue_copy_record_enable="true")
    a = shares.member("a")
    await shares.joined(a)
    records = [NewRecord(b"v0", b"k0", 7, [("h", b"1")]), NewRecord(None, b"k1", 7), NewRecord(b"v2", None, 7)]
    await shares.brokers[0].connect().ask(produce_request([("t1", [(0, build_batch(records))])]))
    assert await a.fetch(0) == "0-2x1"
    await a.ack(0, 2, REJECT)

    await drain(shares)

    assert [(one.key, one.value) for one in await letters(shares)] == [(b"k0", b"v0"), (b"k1", None), (None, b"v2")]


async def test_scenario_47_partition_of_the_target(shares: ShareWorld) -> None:
    await configured(shares, 2)
    a = shares.member("a", "t4")
    await shares.joined(a)
    for partition in (0, 1, 2):
        await shares.produce(1, topic="t4", partition=partition)
    await a.fetch(0, partitions=(0, 1, 2))
    await a.acknowledge({partition: [(0, 0, (REJECT,))] for partition in (0, 1, 2)})

    await drain(shares)

    assert [len(await letters(shares, partition)) for partition in (0, 1)] == [2, 1]


@pytest.mark.parametrize("target", ["absent", "disabled", "not a name"])
async def test_scenario_48_target_that_takes_none(shares: ShareWorld, target: str) -> None:
    await shares.create("disabled", 1)
    await shares.configure(errors_deadletterqueue_topic_name=target)
    a = await holding(shares)
    assert await a.ack(0, 4, REJECT) == "NONE"

    await drain(shares)

    assert await shares.start_offset() == 5
    assert await totals(shares) == (5, 0, 5)
    assert await shares.brokers[0].catalog.find("default", "absent") is None
    assert await letters(shares, topic="disabled") == []
    assert await queued(shares) == 0


async def test_scenario_48_target_created_where_the_prefix_permits(shares: ShareWorld) -> None:
    changed = {"errors_deadletterqueue_auto_create_topics_enable": True}
    shares.brokers[0].context.shares.dead_letters._settings = shares.settings.model_copy(update=changed)
    a = await holding(shares)
    await shares.configure(errors_deadletterqueue_topic_name="dlq.new")
    await a.ack(0, 0, REJECT)
    await shares.configure(errors_deadletterqueue_topic_name="other")
    await a.ack(1, 1, REJECT)

    await drain(shares)

    made = await shares.brokers[0].catalog.find("default", "dlq.new")
    assert made is not None
    assert made.config.takes_dead_letters
    assert list(map(about, await letters(shares, topic="dlq.new"))) == [(0, 1, REJECTED)]
    assert await shares.brokers[0].catalog.find("default", "other") is None
    assert await totals(shares) == (2, 1, 1)


def test_config_of_an_internal_target_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        configs.plan([(configs.DEAD_LETTER_TOPIC, False, "__x")])
    assert configs.plan([(configs.DEAD_LETTER_TOPIC, False, "")]) == ({configs.DEAD_LETTER_TOPIC: ""}, [])


# -- what is written


async def test_group_without_a_target_queues_nothing(shares: ShareWorld) -> None:
    a = await holding(shares)
    await a.ack(0, 4, REJECT)

    assert await queued(shares) == 0
    assert await totals(shares) == (5, 0, 0)


async def test_session_close_at_the_limit(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares, 2)
    await a.ack(0, 1, RELEASE)
    assert await a.fetch() == "0-1x2"
    assert await a.acknowledge(epoch=-1) == "NONE"

    await drain(shares)

    assert list(map(about, await letters(shares))) == [(0, 2, EXHAUSTED), (1, 2, EXHAUSTED)]


async def test_record_deleted_from_the_log_has_no_value(shares: ShareWorld) -> None:
    await configured(shares)
    await shares.configure(errors_deadletterqueue_copy_record_enable="true")
    a = await holding(shares, 2)
    await shares.produce(2)
    assert await a.fetch() == "2-3x1"
    await a.ack(0, 3, REJECT)
    await shares.brokers[0].logs.partition(shares.topics["t1"], 0).delete_records(2)
    await shares.brokers[1].logs.partition(shares.topics["t1"], 0).end_offset()

    await drain(shares, broker=1)

    found = await letters(shares)
    assert [about(one)[0] for one in found] == [0, 1, 2, 3]
    assert [one.value is None for one in found] == [True, True, False, False]


async def test_source_topic_deleted_meanwhile(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares, 2)
    await a.ack(0, 1, REJECT)
    await shares.brokers[0].catalog.delete("default", "t1")

    await drain(shares)

    assert [(about(one)[0], one.headers[0][1]) for one in await letters(shares)] == [(0, b"t1"), (1, b"t1")]


async def test_large_record_loses_key_and_value(shares: ShareWorld) -> None:
    await configured(shares, max_message_bytes="1000")
    await shares.configure(errors_deadletterqueue_copy_record_enable="true")
    a = shares.member("a")
    await shares.joined(a)
    records = [NewRecord(b"x" * 2_000), NewRecord(b"small")]
    await shares.brokers[0].connect().ask(produce_request([("t1", [(0, build_batch(records))])]))
    await a.fetch(0)
    await a.ack(0, 1, REJECT)

    await drain(shares)

    assert [one.value for one in await letters(shares)] == [None, b"small"]


async def test_compacted_target_refuses_records_without_key(shares: ShareWorld) -> None:
    await configured(shares, cleanup_policy="compact")
    a = await holding(shares, 2)
    await a.ack(0, 1, REJECT)

    await drain(shares)

    assert await totals(shares) == (2, 0, 2)


async def test_long_range_is_several_entries(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares, 1_200)
    await a.ack(0, 1_199, REJECT)
    assert await queued(shares) == 3

    await drain(shares)

    assert [about(one)[0] for one in await letters(shares)] == list(range(1_200))


# -- brokers that end


async def test_target_not_writable_now_is_tried_again(shares: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await configured(shares)
    a = await holding(shares)
    await a.ack(0, 4, REJECT)

    async def refused(log: Any, batch: Any) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(dead_letters, "_appended", refused)
        await drain(shares)
    assert await queued(shares) == 1
    assert await totals(shares) == (5, 0, 0)

    await drain(shares)

    assert len(await letters(shares)) == 5
    assert await queued(shares) == 0


async def swept(broker: LogBroker) -> None:
    """A broker takes what is due, and finishes it."""
    expiry = GroupExpiry(broker.store, lambda shard: True, expire_others=broker.context.shares.expirers)
    await sweep_expiry(expiry)
    async with asyncio.timeout(30):
        while broker.context.shares.dead_letters.is_busy:
            await asyncio.sleep(0.01)


async def test_broker_killed_before_the_append(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares)
    await a.ack(0, 4, REJECT)
    first = shares.brokers[0]
    taken = shares.keys.dead_letters, shares.keys.shard_keys.deadlines
    assert len(await first.store.run(TAKE_DEAD_LETTERS, taken, shares.keys.ref, "-", 20, HOLD_MS)) == 1

    await swept(shares.brokers[1])
    assert await letters(shares) == []  # the first broker may be at work

    await shares.clock.advance(HOLD_MS + 1)
    await swept(shares.brokers[1])
    assert [about(one)[0] for one in await letters(shares)] == [0, 1, 2, 3, 4]
    assert await first.store.command("ZSCORE", taken[1], f"dead-letters|{shares.keys.ref}") is None


async def test_broker_killed_between_append_and_removal_repeats_its_letters(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configured(shares)
    a = await holding(shares, 2)
    await a.ack(0, 1, REJECT)
    dying = shares.brokers[0].context.shares.dead_letters

    async def killed(*_: Any) -> None:
        raise StoreUnavailable("closed")

    monkeypatch.setattr(dying, "_remove", killed)
    await swept(shares.brokers[0])
    assert len(await letters(shares)) == 2

    await shares.clock.advance(HOLD_MS + 1)
    await swept(shares.brokers[1])
    assert [about(one)[0] for one in await letters(shares)] == [0, 1, 0, 1]
    assert await totals(shares) == (2, 2, 0)
    assert await queued(shares) == 0


async def test_letters_outlive_their_group(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares, 2)
    await a.ack(0, 1, REJECT)
    await shares.brokers[0].store.command("UNLINK", shares.keys.group, shares.keys.shares, shares.keys.configs)

    await swept(shares.brokers[1])

    assert len(await letters(shares)) == 2


async def test_full_queue_stops_the_group(shares: ShareWorld) -> None:
    await configured(shares)
    a = await holding(shares, 2)
    store = shares.brokers[0].store
    for _ in range(10):
        await asyncio.gather(*(store.command("XADD", shares.keys.dead_letters, "*", "k", "v") for _ in range(1_000)))
    await shares.produce(1)

    assert await a.fetch() == ""

    await store.command("XTRIM", shares.keys.dead_letters, "MAXLEN", "9999")
    assert await a.fetch() == "2-2x1"


def test_batches_of_markers_are_no_letters() -> None:
    plain = Batch.parse(batch_bytes(2))
    marker = Batch.parse(build_batch([NewRecord(b"", b"\0\0\0\1")], base_offset=2, attributes=1 << 5))
    later = Batch.parse(build_batch([NewRecord(b"v")], base_offset=5))

    assert [offset for offset, _ in source_records([plain, marker, later], 1, 9, False)] == [1, 3, 4, 5]


async def test_letters_of_records_that_the_writing_broker_has_not_noticed_have_their_value(shares: ShareWorld) -> None:
    await configured(shares)
    await shares.configure(errors_deadletterqueue_copy_record_enable="true")
    log = shares.brokers[1].context.logs.partition(shares.topics["t1"], 0)
    await log.ensure()
    log.on_change(lambda: None)
    async with asyncio.timeout(20):
        while not log.subscription.is_subscribed:
            await asyncio.sleep(0.01)
    before = copy.deepcopy(log.state)
    a = await holding(shares, 1)
    async with asyncio.timeout(20):
        while log.state.end < 1:
            await asyncio.sleep(0.01)
    assert await a.ack(0, 0, REJECT) == "NONE"

    log.state = before  # as if no message of the append had come
    await drain(shares, broker=1)

    (letter,) = await letters(shares)
    assert letter.value is not None


async def test_remove_beside_a_damaged_partition_removes_every_letter(store: Store) -> None:
    """A script that stopped at the first would leave the others, which would be written again."""
    keys = store.group_keys("default", "g")
    partitions = [keys.share("ab" * 16, index)[0] for index in range(2)]
    await store.command("SET", partitions[0], "foreign")
    await store.command("HSET", partitions[1], "end", 5)
    for number in (1, 2):
        await store.command("XADD", keys.dead_letters, f"{number}-0", "letter", "")

    await store.run(REMOVE_DEAD_LETTERS, [keys.dead_letters, *partitions], "1-0", 1, 0, "2-0", 3, 1)

    assert await store.command("XLEN", keys.dead_letters) == 0
    assert await store.command("HMGET", partitions[1], "dead_lettered", "dropped") == [b"3", b"1"]
