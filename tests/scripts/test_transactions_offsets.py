"""Offsets in transactions, and what administrators ask: scenarios 81, 82, 84 and 143 to 146."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from time import perf_counter
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.apis import bounded_answers
from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups import offsets, staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import entry_json
from tidegate.log.partition import PartitionLog
from tidegate.records.control import MarkerType
from tidegate.settings import Settings
from tidegate.store.redis_clock import time_ms
from tidegate.store.store import Store
from tidegate.topics.model import Topic
from tidegate.transactions.errors import ConcurrentTransactions
from tidegate.transactions.records import Records

E = ErrorCode


@pytest.fixture(params=[1, 2], ids=["one broker", "two brokers"])
async def brokers(request: pytest.FixtureRequest, store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Brokers with the topic `t`."""
    async with brokers_of(settings, request.param) as opened:
        await opened.create("t")
        await opened.create("other")
        yield opened


async def made_again(brokers: Brokers) -> Topic:
    """Delete the topic `t` and make it again."""
    await brokers.all[0].context.catalog.delete("default", "t")
    return await brokers.all[0].create("t")


async def stored_offsets(brokers: Brokers, group: str) -> list[str]:
    """The fields of a group's committed offsets."""
    store = brokers.all[0].store
    return [name.decode() for name in await store.command("HKEYS", store.group_keys("default", group).offsets)]


async def _commands(store: Store) -> int:
    """Commands that the Redis has run, those of scripts included, without those of this count."""
    stats = (await store.command("INFO", "commandstats")).decode().splitlines()
    counts = [line.partition("calls=")[2].partition(",")[0] for line in stats if not line.startswith("cmdstat_info")]
    return sum(map(int, filter(None, counts)))


@pytest.mark.parametrize("version", [3, 5])
async def test_log_81_offsets_in_a_transaction(brokers: Brokers, version: int) -> None:
    client = brokers.clients[0]
    client.group_id = "g"
    assert await client.commit("t", 7) is NONE
    producer = await brokers.producer().init()
    assert await producer.commit_offset("g", 50, version=3) is E.invalid_txn_state
    assert await producer.commit_offset("g", 50, version=4) is E.transaction_abortable
    for is_commit, after in ((False, 7), (True, 50)):
        if version == 3:
            assert await producer.add_offsets("g") is NONE
        assert await producer.commit_offset("g", 50, version=version) is NONE
        assert await brokers.committed("g", stable=True) == (E.unstable_offset_commit, -1)
        assert await brokers.committed("g", stable=True, everything=True) == (E.unstable_offset_commit, -1)
        assert await brokers.committed("g", stable=False) == (NONE, 7)
        await producer.end(is_commit, version=version)
        assert await brokers.committed("g", stable=True) == (NONE, after)
        assert await brokers.committed("g", stable=False, everything=True) == (NONE, after)


async def test_log_81_pending_offset_without_a_commit(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert await producer.commit_offset("new", 5) is NONE
    assert await brokers.committed("new", stable=True) == (E.unstable_offset_commit, -1)
    assert await brokers.committed("new", stable=False) == (NONE, -1)
    assert await brokers.committed("new", stable=True, everything=True) is None
    await producer.end(True)
    assert await brokers.committed("new", stable=True, everything=True) == (NONE, 5)


async def test_log_82_kip_447_fencing(brokers: Brokers) -> None:
    member = brokers.all[0].client()
    member.group_id = "g"
    await member.own("t")
    producer = await brokers.producer().init()
    generation, me = member.generation, member.member_id
    assert await producer.commit_offset("g", 1, generation=generation + 1, member_id=me) is E.illegal_generation
    assert await producer.commit_offset("g", 1, generation=generation, member_id="x") is E.unknown_member_id
    assert await producer.commit_offset("g", 1) is NONE
    assert await producer.commit_offset("g", 1, member_id=me) is E.illegal_generation
    assert await producer.commit_offset("g", 1, generation=generation) is E.unknown_member_id
    code = await producer.commit_offset("g", 1, generation=generation, member_id=me, instance_id="i")
    assert code is E.unknown_member_id
    assert await producer.commit_offset("g", 2, generation=generation, member_id=me) is NONE
    assert await producer.commit_offset("g", 1, member_id="x") is E.unknown_member_id
    assert await producer.commit_offset("absent", 1, generation=3, member_id=me) is E.illegal_generation
    assert await producer.commit_offset("absent", 1, generation=3, instance_id="i") is E.illegal_generation
    assert await producer.commit_offset("absent", 1, member_id="x") is NONE
    assert await producer.commit_offset("absent", 1, member_id="x", instance_id="i") is NONE, "the group is empty"
    assert await producer.commit_offset("", 1) is E.invalid_group_id
    assert await producer.commit_offset("g", 1, topic="no") is E.unknown_topic_or_partition
    await producer.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, 2)


async def test_scenario_52_offsets_of_a_consumer_group_member(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    join = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(seconds=5),
        "subscribed_topic_names": ("t",), "topic_partitions": (),
    }  # fmt: skip
    first = (await brokers.ask(request(68, 1, **join))).member_epoch
    joined = await brokers.ask(request(68, 1, **{**join, "member_epoch": first, "subscribed_topic_names": ("t", "u")}))
    epoch = joined.member_epoch
    assert (joined.error_code, epoch) == (NONE, first + 1)

    async def commit(offset: int, generation: int, member_id: str = "m", **traits: Any) -> ErrorCode:
        return await producer.commit_offset("g", offset, generation=generation, member_id=member_id, **traits)

    assert await commit(1, epoch + 1) is E.illegal_generation
    assert await commit(1, first - 1) is E.illegal_generation
    assert await commit(1, -1) is E.illegal_generation
    assert await commit(1, epoch, "x") is E.unknown_member_id
    assert await commit(2, first) is NONE  # the member has had the partition since then (KIP-1251)
    assert await commit(3, epoch, instance_id="i") is NONE
    assert await brokers.committed("g", stable=True) == (E.unstable_offset_commit, -1)
    await producer.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, 3)
    assert await commit(4, -1, "") is NONE
    await producer.end(False)
    assert await brokers.committed("g", stable=True) == (NONE, 3)


async def test_log_144_topics_by_id_and_codes_of_their_own(brokers: Brokers) -> None:
    topic = await brokers.all[0].context.catalog.find("default", "t")
    assert topic is not None
    member = brokers.all[0].client()
    member.group_id = "classic"
    await member.own("t")
    producer = await brokers.producer().init()

    async def commit(group: str, offset: int, generation: int = -1, member_id: str = "", **other: Any) -> ErrorCode:
        traits = {"version": 6, "topic": topic.topic_id, **other}
        return await producer.commit_offset(group, offset, generation=generation, member_id=member_id, **traits)

    assert await commit("g", 7) is NONE
    assert await commit("g", 8, topic=uuid4()) is E.unknown_topic_id
    assert await commit("g", 8, topic=None) is E.unknown_topic_id
    assert await commit("absent", 8, 3, "m") is E.group_id_not_found
    assert await commit("classic", 8, member.generation + 1, member.member_id) is E.illegal_generation
    join = {
        "group_id": "consumers", "member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(seconds=5),
        "subscribed_topic_names": ("t",), "topic_partitions": (),
    }  # fmt: skip
    epoch = (await brokers.ask(request(68, 1, **join))).member_epoch
    assert await commit("consumers", 9, epoch - 1, "m") is E.stale_member_epoch
    assert await commit("consumers", 9, epoch - 1, "m", version=5, topic="t") is E.illegal_generation
    assert await commit("consumers", 9, epoch, "m") is NONE
    await producer.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, 7)
    assert await brokers.committed("consumers", stable=True) == (NONE, 9)


async def test_log_143_plain_commit_over_a_pending_one(brokers: Brokers) -> None:
    client = brokers.clients[0]
    client.group_id = "g"
    producer = await brokers.producer().init()
    assert await producer.commit_offset("g", 70) is NONE
    assert await client.commit("t", 99) is NONE
    assert await brokers.committed("g", stable=False) == (NONE, 99)
    await producer.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, 99)


async def test_staged_offsets_of_two_producers_apply_in_the_order_of_their_commits(brokers: Brokers) -> None:
    first, second = await brokers.producer("A").init(), await brokers.producer("B").init()
    assert await first.commit_offset("g", 1) is NONE
    assert await second.commit_offset("g", 2) is NONE
    await first.end(True)
    await second.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, 2)
    assert await first.commit_offset("g", 3) is NONE
    assert await second.commit_offset("g", 4) is NONE
    await second.end(True)
    await first.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, 4)


async def test_offset_delete_drops_what_is_pending_too(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert await producer.commit_offset("g", 5) is NONE
    assert await producer.commit_offset("g", 6, topic="other") is NONE
    topic = {"name": "t", "partitions": [
        {"partition_index": 0},
    ]}  # fmt: skip
    assert (await brokers.ask(request(47, 0, group_id="g", topics=[topic]))).error_code is NONE
    assert await brokers.committed("g", stable=True) == (NONE, -1)
    await producer.end(True)
    assert await brokers.committed("g", stable=True) == (NONE, -1)
    assert await stored_offsets(brokers, "g") == ["other:0"]


async def test_pending_offset_of_a_deleted_topic_is_dropped(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert await producer.commit_offset("g", 5) is NONE
    assert await producer.commit_offset("g", 6, topic="other") is NONE
    await made_again(brokers)
    assert await brokers.committed("g", stable=True) == (NONE, -1)
    await producer.end(True)
    assert await stored_offsets(brokers, "g") == ["other:0"]


@pytest.mark.parametrize("version", [5, 6])
async def test_pending_offset_belongs_to_the_topic_of_now(store: Store, settings: Settings, version: int) -> None:
    """Also if the topic was made again, and the broker was not notified yet."""
    async with brokers_of(settings, 2) as brokers:
        await brokers.create("t")
        late = brokers.all[1].context.catalog
        old = late.get("default", "t")
        assert old is not None
        await brokers.all[1].follow_no_topics()
        producer = await brokers.producer().init()
        new = await made_again(brokers)

        brokers.clients = [brokers.all[1].client()]
        if version == 6:
            assert await producer.commit_offset("g", 5, version=6, topic=old.topic_id) is E.unknown_topic_id
        topic = new.topic_id if version == 6 else "t"
        assert await producer.commit_offset("g", 5, version=version, topic=topic) is NONE
        brokers.clients = [brokers.all[0].client()]
        await producer.end(True)
        assert await brokers.committed("g", stable=True) == (NONE, 5)


async def test_stage_after_the_lease_is_refused(brokers: Brokers) -> None:
    """Of a broker that stood still: newer offsets of the transaction may have been staged through another one."""
    store = brokers.all[0].store
    keys, commit = store.group_keys("default", "g"), Commit(-1, "", None, ["t:0", entry_json(5, -1, "", "")])
    seconds, microseconds = await store.command("TIME")
    now_ms = int(seconds) * 1_000 + int(microseconds) // 1_000
    with pytest.raises(CoordinatorNotAvailable):
        await staged_offsets.stage(store, keys, commit, 9, -1, lambda: now_ms)
    assert await store.command("EXISTS", keys.staged, keys.group) == 0

    await staged_offsets.stage(store, keys, commit, 9, -1, lambda: now_ms + 600_000)
    assert await store.command("HKEYS", keys.staged) == [b"9:t:0"]


@pytest.mark.parametrize("late_offset", [5, 6, 7])
async def test_stage_delivered_late_does_not_undo_another_one(brokers: Brokers, late_offset: int) -> None:
    """Its broker gave it up, and the client staged twice through another one; the lease has not ended."""
    store = brokers.all[0].store
    keys, sent_s = store.group_keys("default", "g"), perf_counter()
    store.clock.observe(time_ms(await store.command("TIME")), 0.001)

    def commit(offset: int, arrived_s: float) -> Commit:
        return Commit(-1, "", None, ["t:0", entry_json(offset, -1, "", "")], arrived_s=arrived_s)

    for offset in (5, 6):
        await staged_offsets.stage(store, keys, commit(offset, perf_counter()), 9, -1)
    late = commit(late_offset, sent_s - 1)
    if late_offset != 6:
        with pytest.raises(CoordinatorNotAvailable):
            await staged_offsets.stage(store, keys, late, 9, -1)
    else:
        await staged_offsets.stage(store, keys, late, 9, -1)

    assert b'{"offset":6,' in await store.command("HGET", keys.staged, "9:t:0")


async def test_stage_delivered_late_does_not_undo_a_deletion(brokers: Brokers) -> None:
    store = brokers.all[0].store
    keys, sent_s = store.group_keys("default", "g"), perf_counter()
    store.clock.observe(time_ms(await store.command("TIME")), 0.001)
    entries = ["t:0", entry_json(5, -1, "", "")]
    await staged_offsets.stage(store, keys, Commit(-1, "", None, entries, arrived_s=sent_s), 9, -1)
    assert await offsets.delete(store, keys, "1", {"t": [0]}) == set()
    with pytest.raises(CoordinatorNotAvailable):
        await staged_offsets.stage(store, keys, Commit(-1, "", None, entries, arrived_s=sent_s - 1), 9, -1)
    assert await store.command("EXISTS", keys.staged) == 0


async def test_stage_after_the_end_is_refused_and_a_second_end_changes_nothing(brokers: Brokers) -> None:
    broker = brokers.all[0]
    keys = broker.store.group_keys("default", "g")
    entry = ["t:0", entry_json(5, -1, "ab", 'm"}')]
    commit = Commit(-1, "", None, entry)
    await staged_offsets.stage(broker.store, keys, commit, 9, -1)
    await staged_offsets.end(broker.store, keys, 9, 1_000, True)
    with pytest.raises(ConcurrentTransactions):
        await staged_offsets.stage(broker.store, keys, commit, 9, -1)
    await staged_offsets.stage(broker.store, keys, commit, 9, 1_000)
    await staged_offsets.end(broker.store, keys, 9, 1_000, True)  # of a broker that is late: not of this transaction
    assert await broker.store.command("HKEYS", keys.staged) == [b"9:t:0"]
    await staged_offsets.end(broker.store, keys, 9, 1_001, False)
    assert await broker.store.command("EXISTS", keys.staged) == 0
    assert await broker.store.command("HEXISTS", keys.offsets, ":-1") == 0


async def test_end_in_a_group_that_does_not_exist_leaves_no_key_of_it(brokers: Brokers) -> None:
    store, producer = brokers.all[0].store, await brokers.producer().init()
    assert await producer.add_offsets("absent") is NONE
    await producer.end(False)
    assert await store.command("KEYS", f"{store.group_keys('default', 'absent').group}*") == []


async def test_stage_in_a_group_that_does_not_exist_after_the_end_is_refused(store: Store) -> None:
    keys = store.group_keys("default", "absent")
    commit = Commit(-1, "", None, ["t:0", entry_json(5, -1, "ab", "")])
    await staged_offsets.end(store, keys, 9, store.clock.now_ms(), False)
    with pytest.raises(ConcurrentTransactions):
        await staged_offsets.stage(store, keys, commit, 9, -1)
    await staged_offsets.stage(store, store.group_keys("default", "other"), commit, 9, -1)


async def test_end_costs_the_same_whatever_other_producers_ended(store: Store) -> None:
    keys, now = store.group_keys("default", "g"), store.clock.now_ms()

    async def cost(producer_id: int) -> int:
        """Commands that staging one offset and committing it take in Redis."""
        before = await _commands(store)
        await staged_offsets.stage(
            store, keys, Commit(-1, "", None, ["t:0", entry_json(5, -1, "ab", "")]), producer_id, -1
        )
        await staged_offsets.end(store, keys, producer_id, now, True)
        return await _commands(store) - before

    first, second, *_, last = [await cost(producer_id) for producer_id in range(1, 40)]
    assert last == second <= first, "the first one makes the group"
    for producer_id in range(40, 80):
        other = [f"other:{producer_id}", entry_json(5, -1, "ab", "")]
        await staged_offsets.stage(store, keys, Commit(-1, "", None, other), producer_id, -1)
    assert await cost(80) <= last


async def test_ends_are_forgotten_after_a_day(store: Store) -> None:
    keys, now = store.group_keys("default", "g"), store.clock.now_ms()
    ended = keys.shard_keys.ended_transactions
    for producer_id, days in ((1, 2), (2, 0.5), (3, 0)):
        await staged_offsets.end(store, keys, producer_id, now - int(days * 86_400_000), True)
    assert await store.command("ZRANGE", ended, 0, -1) == [b"2 default/g", b"3 default/g"]


async def test_ends_stored_by_an_older_broker_count_for_a_day(store: Store) -> None:
    """It stored them among the staged offsets."""
    keys, now = store.group_keys("default", "g"), store.clock.now_ms()
    commit = Commit(-1, "", None, ["t:0", entry_json(5, -1, "ab", "")])
    await store.command("HSET", keys.staged, "9", f"1000 {now}", "8", f"1000 {now - 90_000_000}")
    with pytest.raises(ConcurrentTransactions):
        await staged_offsets.stage(store, keys, commit, 9, -1)
    await staged_offsets.stage(store, keys, commit, 9, 1_000)
    await staged_offsets.end(store, keys, 9, 1_000, True)
    assert set(await store.command("HKEYS", keys.staged)) == {b"9", b"8", b"9:t:0"}
    await staged_offsets.end(store, keys, 9, 1_001, True)
    assert await store.command("HKEYS", keys.staged) == [b"9"]


async def test_producer_is_checked_before_the_metadata(brokers: Brokers) -> None:
    producer = await brokers.producer("T").init()
    assert await producer.commit_offset("g", 1, metadata="x" * 5_000) is E.offset_metadata_too_large
    producer.epoch = 7
    assert await producer.commit_offset("g", 1, metadata="x" * 5_000) is E.invalid_producer_epoch


async def test_log_84_inspection(brokers: Brokers) -> None:
    producer, idle = await brokers.producer("T").init(), await brokers.producer("U").init()
    await producer.write("t")
    assert await producer.commit_offset("g", 1) is NONE

    async def listed(**filters: Any) -> Any:
        values = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, **filters}
        answers = [await one.ask(request(66, 2, transactional_id_pattern=None, **values)) for one in brokers.clients]
        return {str(one.transactional_id) for answer in answers for one in answer.transaction_states}, answers[0]

    names, answer = await listed(state_filters=("Ongoing", "Bogus"))
    assert (names, answer.unknown_state_filters) == ({"T"}, ("Bogus",))
    assert (await listed())[0] == {"T", "U"}
    assert (await listed(producer_id_filters=(idle.id,)))[0] == {"U"}
    described = await brokers.ask(request(65, 0, transactional_ids=("T", "zzz", "")))
    found, absent, empty = described.transaction_states
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == ("Ongoing", producer.id, 0)
    assert [topic.topic for topic in found.topics] == ["t", "__consumer_offsets"]
    assert absent.error_code is E.transactional_id_not_found
    assert empty.error_code is E.invalid_request
    asked = DescribeProducersRequest(topics=(TopicRequest(name=TopicName("t"), partition_indexes=(i32(0), i32(5))),))
    partitions = (await brokers.ask(asked)).topics[0].partitions
    [active] = partitions[0].active_producers
    assert (active.producer_id, active.current_txn_start_offset, active.last_sequence) == (producer.id, 0, 0)
    assert partitions[1].error_code is E.unknown_topic_or_partition
    assert (await listed(duration_filter=10**8))[0] == {"U"}
    await producer.end(True)
    assert (await listed(duration_filter=10**8))[0] == {"U"}  # one that is complete has the time of its begin
    described = await brokers.ask(request(65, 0, transactional_ids=("T",)))
    assert described.transaction_states[0].topics == ()


async def test_described_elements_that_are_repeated_are_read_once(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await brokers.producer("T").init()
    await producer.write("t")
    read_producers, read, asked = PartitionLog.read_producers, Records.read, list[str]()

    async def counted_producers(log: PartitionLog) -> Any:
        asked.append("producers")
        return await read_producers(log)

    async def counted(records: Records, keys: Any) -> Any:
        asked.append("transaction")
        return await read(records, keys)

    monkeypatch.setattr(PartitionLog, "read_producers", counted_producers)
    monkeypatch.setattr(Records, "read", counted)
    indexes = (i32(0),) * 300
    topics = tuple(TopicRequest(name=TopicName(name), partition_indexes=indexes) for name in ("t", "t"))
    answered = (await brokers.ask(DescribeProducersRequest(topics=topics))).topics
    states = (await brokers.ask(request(65, 0, transactional_ids=("T",) * 300))).transaction_states

    assert [[len(one.active_producers) for one in topic.partitions] for topic in answered] == [[1] * 300] * 2
    assert [one.transaction_state for one in states] == ["Ongoing"] * 300
    assert asked == ["producers", "transaction"]

    monkeypatch.setattr(bounded_answers, "ANSWER_BYTES_MAX", 1)
    answered = (await brokers.ask(DescribeProducersRequest(topics=topics))).topics
    assert {one.error_code for one in answered[1].partitions} == {E.not_leader_or_follower}
    states = (await brokers.ask(request(65, 0, transactional_ids=("T",) * 2))).transaction_states
    assert [one.error_code for one in states] == [NONE, E.coordinator_load_in_progress]


async def test_list_transactions_behind_one_address_lists_all_at_every_broker(brokers: Brokers) -> None:
    ids = {f"T{number}" for number in range(8)}
    for transactional_id in sorted(ids):
        await brokers.producer(transactional_id).init()
    leases = [broker.context.broker_lease for broker in brokers.all]
    for lease in leases:
        lease._live = lease._preferred = [one for other in leases for one in other.live()]
        lease._single = frozenset(lease._endpoints)

    for client in brokers.clients:
        asked = request(
            66, 2, transactional_id_pattern=None, state_filters=(), producer_id_filters=(), duration_filter=-1
        )
        assert {str(one.transactional_id) for one in (await client.ask(asked)).transaction_states} == ids


async def test_producer_of_a_marker_alone_has_its_time(brokers: Brokers) -> None:
    began_ms = int(time.time() * 1_000)
    producer = await brokers.producer().init()
    assert await producer.add(("t", 0)) == [NONE]  # and nothing is written
    await producer.end(False)
    await brokers.until_marked("t", 1)
    asked = DescribeProducersRequest(topics=(TopicRequest(name=TopicName("t"), partition_indexes=(i32(0),)),))
    [active] = (await brokers.ask(asked)).topics[0].partitions[0].active_producers
    assert (active.last_sequence, active.current_txn_start_offset) == (-1, -1)
    assert began_ms - 60_000 < active.last_timestamp < began_ms + 600_000


async def test_log_145_write_txn_markers(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")

    async def mark(producer_id: int, epoch: int, coordinator_epoch: int, version: int = 1) -> ErrorCode:
        marker: dict[str, Any] = {
            "producer_id": producer_id, "producer_epoch": epoch,
            "transaction_result": False, "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": "t", "partition_indexes": (0,)}],
        }  # fmt: skip
        if version == 2:
            marker["transaction_version"] = 2
        answer = await brokers.ask(request(27, version, markers=[marker]))
        code: ErrorCode = answer.markers[0].topics[0].partitions[0].error_code
        return code

    assert await mark(producer.id, 0, 0, version=2) is E.invalid_producer_epoch
    assert await mark(producer.id, 1, 5, version=2) is NONE
    assert await mark(producer.id, 0, 5) is E.invalid_producer_epoch
    assert await mark(producer.id, 1, 0) is E.transaction_coordinator_fenced
    assert await mark(77_777, 0, 0) is NONE
    found = await brokers.fetch("t", committed=True, end=3)
    assert [(at, one.type) for at, one in found.markers] == [(1, MarkerType.ABORT), (2, MarkerType.ABORT)]
    assert (found.aborted, found.last_stable_offset) == ([(producer.id, 0)], 3)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 2_000), (2_000, 1)])
async def test_write_txn_markers_of_many_partitions_in_slices(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, topics: int, partitions: int
) -> None:
    """Other work runs in between, also where no partition is known and nothing is waited for."""

    async def refresh() -> None:
        """Turns of the loop that wait for Redis would count."""

    for broker in brokers.all:
        monkeypatch.setattr(broker.context.catalog, "refresh", refresh)

    async def pauses(topics: int, partitions: int) -> int:
        marker = {
            "producer_id": 1, "producer_epoch": 0, "transaction_result": True,
            "coordinator_epoch": 0,
            "topics": [
                {"name": "t", "partition_indexes": tuple(range(9, 9 + partitions))}
            ] * topics,
        }  # fmt: skip
        asking, count = asyncio.ensure_future(brokers.ask(request(27, 1, markers=[marker]))), 0
        while not asking.done():
            await asyncio.sleep(0)
            count += 1
        [answered] = asking.result().markers
        assert [len(one.partitions) for one in answered.topics] == [partitions] * topics
        codes = {one.error_code for topic in answered.topics for one in topic.partitions}
        assert codes == {E.unknown_topic_or_partition}
        return count

    assert await pauses(topics, partitions) >= await pauses(1, 1) + 4


async def test_log_146_list_filters(brokers: Brokers) -> None:
    await brokers.producer("84-a").init()
    for state, pattern, duration, expected in (
        (("ongoing",), None, -1, 0), ((), "84", -1, 0), ((), "84.*", -1, 1), ((), None, -5, 1),
    ):  # fmt: skip
        values = {"state_filters": state, "producer_id_filters": (), "duration_filter": duration}
        asked = request(66, 2, transactional_id_pattern=pattern, **values)
        answers = [await one.ask(asked) for one in brokers.clients]
        assert sum(len(answer.transaction_states) for answer in answers) == (expected * len(brokers.clients))
        assert answers[0].unknown_state_filters == (("ongoing",) if state else ())
    for refused in ("(", r"(a)\1", "a" * 5_000):  # RE2 has no references back
        values["state_filters"] = ()
        asked = request(66, 2, transactional_id_pattern=refused, **values)
        assert (await brokers.ask(asked)).error_code is E.invalid_regular_expression


async def test_pattern_that_python_matches_for_minutes_stops_no_broker(brokers: Brokers) -> None:
    await brokers.producer("a" * 40).init()
    values = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}

    answer = await brokers.ask(request(66, 2, transactional_id_pattern="(a+)+b", **values))

    assert (answer.error_code, answer.transaction_states) == (NONE, ())
