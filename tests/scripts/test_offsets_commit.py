"""OffsetCommit: who may commit, what is stored, and where each error goes (scenarios 84 to 89)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.kit.wire import request
from tests.support.clock import SteppedClock
from tests.support.consumers import ConsumerWorld
from tests.support.handlers import Broker, FakeCatalog, given_group, topic
from tidegate.apis import committed_offsets, slices
from tidegate.apis.call import Call
from tidegate.apis.queued_commits import QueuedCommit
from tidegate.groups.commits import Commit, commit_arguments, commit_times_ms, sent_again
from tidegate.groups.consumer.errors import OTHER_TYPE
from tidegate.groups.offsets import COMMIT_OFFSETS, Offsets, entry_json, offset_field
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

NONE, UNKNOWN_PARTITION, TOO_LARGE, NOT_AVAILABLE, UNKNOWN_ID = 0, 3, 12, 15, 100
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE, GROUP_NOT_FOUND, FENCED = 22, 25, 27, 69, 82
VERSIONS = range(2, 11)
T1 = topic("t1", number=1)
IDS = {"t1": UUID(int=1), "t2": UUID(int=2), "nowhere": UUID(int=99)}
NAMES = {topic_id: name for name, topic_id in IDS.items()}


def label(version: int, name: str) -> dict[str, Any]:
    """How a request names a topic: by id from v10 on."""
    return {"name": name} if version < 10 else {"topic_id": IDS[name]}


def name_of(topic: Any) -> str:
    """The name of a topic in an answer."""
    return NAMES[topic.topic_id] if hasattr(topic, "topic_id") else str(topic.name)


def commit_request(
    version: int,
    *,
    group_id: str = "orders",
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    topics: dict[str, dict[int, tuple[int, str | None]]] | None = None,
    retention_ms: int | None = None,
) -> Any:
    """OffsetCommit of topic -> partition -> (offset, metadata)."""
    wanted = {"t1": {0: (5, "")}} if topics is None else topics
    extra: dict[str, Any] = {"group_instance_id": instance_id} if version >= 7 else {}
    if retention_ms is not None:
        extra["retention_time"] = retention_ms
    return request(
        8, version, group_id=group_id, generation_id_or_member_epoch=generation, member_id=member_id,
        topics=[
            {
                **label(version, name),
                "partitions": [
                    {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
                    for index, (offset, metadata) in partitions.items()
                ],
            }
            for name, partitions in wanted.items()
        ],
        **extra,
    )  # fmt: skip


def codes(response: Any) -> dict[str, int]:
    """Field -> error code."""
    return {
        f"{name_of(one)}:{partition.partition_index}": partition.error_code.value
        for one in response.topics
        for partition in one.partitions
    }


async def stored(store: Store, keys: GroupKeys, name: str = "t1:0") -> dict[str, Any] | None:
    value = await store.command("HGET", keys.offsets, name)
    return None if value is None else json.loads(value)


# -- who may commit


@pytest.mark.parametrize("version", VERSIONS)
async def test_scenario_84_a_commit_without_generation_makes_a_simple_group(
    broker: Broker, keys: GroupKeys, version: int
) -> None:
    assert codes(await broker.ask(commit_request(version, generation=0))) == {
        "t1:0": GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
    }
    assert await broker.store.command("EXISTS", keys.group, keys.offsets) == 0

    assert codes(await broker.ask(commit_request(version))) == {"t1:0": NONE}
    assert await broker.store.command("HGET", keys.shard_keys.groups, keys.ref) == b"classic Empty "
    assert (await broker.store.command("HGET", keys.group, "id")).startswith(b"cgp_0")


async def test_scenario_85_a_group_with_members_takes_commits_of_its_members_only(
    broker: Broker, keys: GroupKeys
) -> None:
    async def ask(**request: Any) -> int:
        return codes(await broker.ask(commit_request(9, **request)))["t1:0"]

    await given_group(broker.store, keys, state="Stable", generation=3)
    assert await ask() == UNKNOWN_MEMBER
    assert await ask(generation=2, member_id="m-1") == ILLEGAL_GENERATION
    assert await ask(generation=-1, member_id="m-1") == ILLEGAL_GENERATION
    assert await ask(generation=3, member_id="m-2") == UNKNOWN_MEMBER
    assert await ask(generation=3, member_id="m-1", instance_id="i") == UNKNOWN_MEMBER
    assert await stored(broker.store, keys) is None

    await broker.store.command("HSET", keys.group, "state", "CompletingRebalance")
    assert await ask(generation=3, member_id="m-1") == REBALANCE
    assert await stored(broker.store, keys) is None

    await broker.store.command("HSET", keys.group, "state", "PreparingRebalance")
    assert await ask(generation=3, member_id="m-1") == NONE
    await broker.store.command("HSET", keys.group, "state", "Stable")
    assert await ask(generation=3, member_id="m-1") == NONE


async def test_scenario_86_an_empty_group_takes_any_commit_without_generation(broker: Broker, keys: GroupKeys) -> None:
    await given_group(broker.store, keys, state="Empty", generation=3, members=())

    assert codes(await broker.ask(commit_request(9, generation=3, member_id="m-1"))) == {"t1:0": UNKNOWN_MEMBER}
    assert codes(await broker.ask(commit_request(9, generation=3, member_id="", instance_id="i"))) == {
        "t1:0": UNKNOWN_MEMBER
    }
    assert codes(await broker.ask(commit_request(9, member_id="anyone", instance_id="i"))) == {"t1:0": NONE}


async def test_scenario_87_a_removed_member_overwrites_nothing(
    broker: Broker, settings: Settings, keys: GroupKeys
) -> None:
    """The old and the new owner commit at once through two brokers, again and again."""
    other_store = Store(settings)
    await other_store.start()
    try:
        other = Broker(other_store, FakeCatalog(T1))
        for generation in range(2, 12):
            await given_group(broker.store, keys, generation=generation, members=["new"])
            old, new = await asyncio.gather(
                other.ask(commit_request(9, generation=generation - 1, member_id="new", topics={"t1": {0: (1, "")}})),
                broker.ask(commit_request(9, generation=generation, member_id="new", topics={"t1": {0: (50, "")}})),
            )
            removed = await other.ask(commit_request(9, generation=generation - 1, member_id="old"))
            assert codes(old) == {"t1:0": ILLEGAL_GENERATION}
            assert codes(removed) == {"t1:0": UNKNOWN_MEMBER}
            assert codes(new) == {"t1:0": NONE}
            committed = await stored(broker.store, keys)
            assert committed is not None and committed["offset"] == 50
    finally:
        await other_store.close()


async def test_replaced_static_member_is_fenced(broker: Broker, keys: GroupKeys) -> None:
    await given_group(broker.store, keys, members=["new"], instances={"i": "new"})

    assert codes(await broker.ask(commit_request(9, generation=1, member_id="old", instance_id="i"))) == {
        "t1:0": FENCED
    }
    assert codes(await broker.ask(commit_request(9, generation=1, member_id="old"))) == {"t1:0": UNKNOWN_MEMBER}
    assert codes(await broker.ask(commit_request(9, generation=1, member_id="new", instance_id="i"))) == {"t1:0": NONE}


# -- sessions and deadlines


async def test_commit_extends_the_session_but_not_while_assignments_are_awaited(
    clock: SteppedClock, clock_store: Store
) -> None:
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    soon = clock.now_ms + 1_000
    for state, code, deadline in (
        ("Stable", NONE, clock.now_ms + 10_000),
        ("PreparingRebalance", NONE, clock.now_ms + 10_000),
        ("CompletingRebalance", REBALANCE, soon),
    ):
        await given_group(clock_store, keys, state=state, deadline=soon)
        assert codes(await broker.ask(commit_request(9, generation=1, member_id="m-1"))) == {"t1:0": code}
        assert int(await clock_store.command("ZSCORE", keys.sessions, "m-1")) == deadline, state


async def test_parked_members_lease_is_not_shortened(clock: SteppedClock, clock_store: Store) -> None:
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, state="PreparingRebalance", deadline=clock.now_ms + 30_000)

    assert codes(await broker.ask(commit_request(9, generation=1, member_id="m-1"))) == {"t1:0": NONE}
    assert int(await clock_store.command("ZSCORE", keys.sessions, "m-1")) == clock.now_ms + 30_000


async def test_commit_expired_member_is_removed_before_the_check(clock: SteppedClock, clock_store: Store) -> None:
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, deadline=clock.now_ms + 10_000)
    await clock.advance(10_000)

    assert codes(await broker.ask(commit_request(9, generation=1, member_id="m-1"))) == {"t1:0": UNKNOWN_MEMBER}
    assert await clock_store.command("HGET", keys.group, "state") == b"Empty"
    assert codes(await broker.ask(commit_request(9))) == {"t1:0": NONE}


async def test_commit_repeated_behind_an_expiry_has_the_times_of_its_first_sending(
    clock: SteppedClock, clock_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A higher offset may have been committed while the group was expired: the script recognises what is late."""
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, deadline=clock.now_ms + 10_000)
    await clock.advance(10_000)
    asked: list[str] = []

    def times(store: Store, group_key: str, ends_ms: Callable[[], int], arrived_s: float) -> tuple[int, int]:
        asked.append(group_key)
        return commit_times_ms(store, group_key, ends_ms, arrived_s)

    monkeypatch.setattr("tidegate.groups.offsets.commit_times_ms", times)

    assert codes(await broker.ask(commit_request(9))) == {"t1:0": NONE}
    assert await clock_store.command("HGET", keys.group, "state") == b"Empty"
    assert asked == [keys.group]


# -- what is stored


async def test_commit_is_stored_as_text_with_rediss_time(clock: SteppedClock, clock_store: Store) -> None:
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    await broker.ask(commit_request(9, topics={"t1": {0: (7, 'a "quoted" ünïcode \n'), 1: (1 << 62, None)}}))

    assert await stored(clock_store, keys) == {
        "offset": 7,
        "leader_epoch": -1,
        "topic_id": T1.topic_hex,
        "metadata": 'a "quoted" ünïcode \n',
        "commit_time": clock.now_ms,
    }
    second = await stored(clock_store, keys, "t1:1")
    assert second is not None and second["offset"] == 1 << 62 and second["metadata"] == ""


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_commit_retention_of_an_old_client_is_stored_with_the_offset(
    clock: SteppedClock, clock_store: Store, version: int
) -> None:
    broker, keys = Broker(clock_store, FakeCatalog(T1)), clock_store.group_keys("default", "orders")
    await broker.ask(commit_request(version, retention_ms=60_000))
    committed = await stored(clock_store, keys)
    assert committed is not None and committed["expire_time"] == clock.now_ms + 60_000

    await broker.ask(commit_request(version, retention_ms=-1))
    committed = await stored(clock_store, keys)
    assert committed is not None and "expire_time" not in committed


async def test_commit_last_one_wins_and_may_be_lower(broker: Broker, keys: GroupKeys) -> None:
    for offset in (9, 3):
        await broker.ask(commit_request(9, topics={"t1": {0: (offset, "")}}))
    committed = await stored(broker.store, keys)
    assert committed is not None and committed["offset"] == 3


async def test_commit_of_thousands_of_partitions_is_stored_whole(store: Store, keys: GroupKeys) -> None:
    broker = Broker(store, FakeCatalog(topic("wide", 5_000)))
    wanted = {"wide": {index: (index, "") for index in range(5_000)}}

    assert set(codes(await broker.ask(commit_request(9, topics=wanted))).values()) == {NONE}
    assert await store.command("HLEN", keys.offsets) == 5_000
    last = await stored(store, keys, "wide:4999")
    assert last is not None and last["offset"] == 4_999


# -- errors of partitions


@pytest.mark.parametrize("version", VERSIONS)
async def test_scenario_88_metadata_is_counted_in_utf_16_units(broker: Broker, keys: GroupKeys, version: int) -> None:
    wanted = {"t1": {0: (5, "x" * 4_097), 1: (6, "x" * 4_096), 2: (7, "é" * 4_096), 3: (8, "\U0001f600" * 2_049)}}
    assert codes(await broker.ask(commit_request(version, topics=wanted))) == {
        "t1:0": TOO_LARGE,
        "t1:1": NONE,
        "t1:2": NONE,
        "t1:3": TOO_LARGE,
    }
    assert sorted(await broker.store.command("HKEYS", keys.offsets)) == [b"t1:1", b"t1:2"]


async def test_groups_error_replaces_the_metadatas_but_not_the_unknown_partitions(
    broker: Broker, keys: GroupKeys
) -> None:
    await given_group(broker.store, keys)
    wanted = {"t1": {0: (5, "x" * 4_097), 1: (5, ""), 9: (5, "")}, "nowhere": {0: (5, "")}}
    assert codes(await broker.ask(commit_request(9, topics=wanted))) == {
        "t1:0": UNKNOWN_MEMBER,
        "t1:1": UNKNOWN_MEMBER,
        "t1:9": UNKNOWN_PARTITION,
        "nowhere:0": UNKNOWN_PARTITION,
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_scenario_89_unknown_topics_are_refused_before_the_member_is_checked(
    broker: Broker, keys: GroupKeys, version: int
) -> None:
    await given_group(broker.store, keys)
    wanted = {"nowhere": {0: (5, "")}, "t1": {4: (5, "")}}
    assert codes(await broker.ask(commit_request(version, member_id="nobody", generation=7, topics=wanted))) == {
        "nowhere:0": UNKNOWN_ID if version >= 10 else UNKNOWN_PARTITION,
        "t1:4": UNKNOWN_PARTITION,
    }
    assert codes(await broker.ask(commit_request(version, member_id="nobody", topics={}))) == {}


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_without_partitions_is_answered_only_if_unknown(broker: Broker, version: int) -> None:
    wanted: dict[str, dict[int, tuple[int, str | None]]] = {"t1": {}, "nowhere": {}}
    response = await broker.ask(commit_request(version, topics=wanted))
    assert [(name_of(one), one.partitions) for one in response.topics] == [("nowhere", ())]

    response = await broker.ask(commit_request(version, topics=wanted | {"t1": {0: (5, "")}}))
    assert [(name_of(one), len(one.partitions)) for one in response.topics] == [("t1", 1), ("nowhere", 0)]


async def test_commit_topic_unknown_to_this_broker_is_refreshed(store: Store, keys: GroupKeys) -> None:
    catalog = FakeCatalog()
    catalog.stored = {"t1": topic("t1", 8)}
    broker = Broker(store, catalog)
    assert codes(await broker.ask(commit_request(9))) == {"t1:0": NONE}

    catalog.known, catalog.observations = {"t1": topic("t1", 4)}, 0
    assert codes(await broker.ask(commit_request(9, topics={"t1": {7: (5, "")}}))) == {"t1:7": NONE}
    assert codes(await broker.ask(commit_request(9, topics={"t1": {0: (5, "")}}))) == {"t1:0": NONE}
    assert catalog.observations == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_store_that_is_away_is_retriable_on_every_partition(broker: Broker, version: int) -> None:
    await broker.store.close()
    assert codes(await broker.ask(commit_request(version, topics={"t1": {0: (5, ""), 1: (5, "")}}))) == {
        "t1:0": NOT_AVAILABLE,
        "t1:1": NOT_AVAILABLE,
    }


# -- the tick


async def test_commits_of_a_tick_are_judged_one_by_one_in_order(
    store: Store, settings: Settings, keys: GroupKeys
) -> None:
    await given_group(store, keys, generation=2, members=["a", "b"])
    offsets, answers = Offsets(store), []
    done = asyncio.Event()

    def entry(offset: int) -> list[str]:
        return [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]

    def commit(number: int, generation: int, member_id: str) -> None:
        def on_code(code: int) -> None:
            answers.append((number, code))
            if len(answers) == 4:
                done.set()

        offsets.commit(keys, Commit(generation, member_id, None, entry(number)), on_code)

    commit(1, 2, "a")
    commit(2, 1, "a")
    commit(3, 2, "b")
    commit(4, 2, "c")
    await asyncio.wait_for(done.wait(), 30)

    assert answers == [(1, NONE), (2, ILLEGAL_GENERATION), (3, NONE), (4, UNKNOWN_MEMBER)]
    committed = await stored(store, keys)
    assert committed is not None and committed["offset"] == 3


async def test_commit_lease_ended_refused(clock: SteppedClock, clock_store: Store) -> None:
    """As when the broker stood still with the script on its way; the next renewal lets it commit again."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])
    lease_ends_ms = clock.now_ms + 10_000
    offsets = Offsets(clock_store, lease_ends_ms=lambda: lease_ends_ms)

    async def commit(offset: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entries = [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]
        offsets.commit(keys, Commit(2, "a", None, entries), answer.set_result)
        return await asyncio.wait_for(answer, 30)

    assert await commit(1) == NONE
    lease_ends_ms = clock.now_ms
    assert await commit(2) == NOT_AVAILABLE
    committed = await stored(clock_store, keys)
    assert committed is not None and committed["offset"] == 1
    lease_ends_ms = clock.now_ms + 1
    assert await commit(3) == NONE


async def test_commit_of_consumer_group_member_lease_ended_refused(consumers: ConsumerWorld) -> None:
    (member,) = await consumers.joined(consumers.peer("a", "t1"))
    commits, lease_ends_ms = consumers.broker.consumers.commits, consumers.clock.now_ms + 10_000
    commits.lease_ends_ms = lambda: lease_ends_ms

    async def commit(offset: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entries = [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]
        commits.commit(consumers.keys, Commit(member.epoch, member.member_id, None, entries), True, answer.set_result)
        return await asyncio.wait_for(answer, 30)

    assert await commit(1) == NONE
    lease_ends_ms = consumers.clock.now_ms
    assert await commit(2) == NOT_AVAILABLE
    committed = await stored(consumers.store, consumers.keys)
    assert committed is not None and committed["offset"] == 1


@pytest.mark.parametrize("newer", [9, 4])
@pytest.mark.parametrize("late_ms", [501, 8_000])
async def test_commit_delivered_late_does_not_undo_a_newer_one(
    clock: SteppedClock, clock_store: Store, late_ms: int, newer: int
) -> None:
    """The link of a broker lost packets; it gave the commit up, and the client committed through another broker.

    The lease of the first has not ended when the packets arrive. The client may have sought back meanwhile.
    """
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])

    def call(offset: int, sent_ms: int) -> tuple[list[str], list[Any]]:
        entries = [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]
        return commit_arguments([(keys, [(Commit(2, "a", None, entries), print)])], 0, "1", (1 << 50, sent_ms))

    async def run(arguments: tuple[list[str], list[Any]]) -> int:
        key_names, args = arguments
        code: int = (await clock_store.run(COMMIT_OFFSETS, key_names, *args))[0]
        return code

    assert await run(call(3, clock.now_ms)) == NONE
    await clock.advance(10)
    late = call(5, clock.now_ms)
    await clock.advance(late_ms)
    assert await run(call(newer, clock.now_ms)) == NONE
    assert await run(late) == NOT_AVAILABLE
    committed = await stored(clock_store, keys)
    assert committed is not None and committed["offset"] == newer
    assert await run(call(7, clock.now_ms)) == NONE, "who seeks back may commit a lower offset"


@pytest.mark.parametrize(
    ("after_ms", "offset", "code"),
    [
        (10, 9, NOT_AVAILABLE),
        (10, 3, NOT_AVAILABLE),
        (10, 5, NONE),
        (-90, 9, NONE),
        (-2, 9, NOT_AVAILABLE),
        (-2, 3, NONE),
    ],
)
async def test_commit_sent_again_does_not_undo_the_one_behind_it(
    clock: SteppedClock, clock_store: Store, after_ms: int, offset: int, code: int
) -> None:
    """Another broker may have expired the group meanwhile, so that the client's next commit was stored first."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])

    async def run(offset: int, sent_ms: int) -> int:
        entries = [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]
        key_names, args = commit_arguments(
            [(keys, [(Commit(2, "a", None, entries), print)])], 0, "1", (1 << 50, sent_ms)
        )
        found: int = (await clock_store.run(COMMIT_OFFSETS, key_names, *args))[0]
        return found

    first_ms = clock.now_ms + 100
    await clock.advance(100 + after_ms)
    assert await run(offset, clock.now_ms) == NONE
    await clock.advance(100)
    _, again_ms = sent_again((1 << 50, first_ms))
    assert await run(5, again_ms) == code
    committed = await stored(clock_store, keys)
    assert committed is not None and committed["offset"] == (offset if code == NOT_AVAILABLE else 5)


@pytest.mark.parametrize(("waited_s", "code"), [(1.0, NOT_AVAILABLE), (0.0, NONE)])
async def test_commit_that_waited_in_its_broker_does_not_undo_a_newer_one(
    clock: SteppedClock, clock_store: Store, waited_s: float, code: int
) -> None:
    """For the catalogue, a quota, or its turn among large requests."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])
    offsets = Offsets(clock_store)

    async def commit(offset: int, arrived_s: float) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entries = [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]
        offsets.commit(keys, Commit(2, "a", None, entries, arrived_s=arrived_s), answer.set_result)
        return await asyncio.wait_for(answer, 30)

    clock_store.clock.observe(clock.now_ms, 0.0)
    assert await commit(9, perf_counter()) == NONE
    await clock.advance(600)
    clock_store.clock.observe(clock.now_ms, 0.0)
    assert await commit(5, perf_counter() - waited_s) == code


@pytest.mark.parametrize(("behind", "code"), [(20, NOT_AVAILABLE), (None, NONE)], ids=["a commit behind it", "none"])
async def test_commit_sent_again_to_a_downgraded_group_does_not_undo_the_one_behind_it(
    clock: SteppedClock, clock_store: Store, monkeypatch: pytest.MonkeyPatch, behind: int | None, code: int
) -> None:
    """The broker took the group for one with member epochs; the next commit was stored before it learned otherwise."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])
    clock_store.clock.observe(clock.now_ms, 0.0)
    broker = Broker(clock_store, FakeCatalog(T1))
    types: Any = broker.context.consumers.known
    held: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    on_error = QueuedCommit._on_error

    def hold(queued: QueuedCommit, answer: int) -> None:
        if answer == OTHER_TYPE:
            clock_store.clock.offset_s = clock.now_ms / 1000 - queued._commit.arrived_s  # it came now
            held.put_nowait(lambda: on_error(queued, answer))
        else:
            on_error(queued, answer)

    def commit(offset: int) -> asyncio.Task[Any]:
        wanted = commit_request(8, generation=2, member_id="a", topics={"t1": {0: (offset, "")}})
        return asyncio.ensure_future(broker.ask(wanted))

    monkeypatch.setattr(QueuedCommit, "_on_error", hold)
    monkeypatch.setattr(broker.context.consumers, "known", {keys.group: object()})
    first = commit(10)
    go_on = await asyncio.wait_for(held.get(), 30)
    monkeypatch.setattr(broker.context.consumers, "known", types)
    await clock.advance(200)
    if behind is not None:
        assert (await asyncio.wait_for(commit(behind), 30)).topics[0].partitions[0].error_code == NONE
    go_on()
    answer = await asyncio.wait_for(first, 30)

    committed = await stored(clock_store, keys)
    assert answer.topics[0].partitions[0].error_code == code
    assert committed is not None and committed["offset"] == (10 if behind is None else behind)


async def test_commit_in_parts_ends_when_its_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have committed elsewhere what is left."""
    client, replies, begun = SimpleNamespace(closed=False), list[Any](), list[str]()
    given = {"client": client, "version": 9, "reply": replies.append}
    call: Any = SimpleNamespace(**{**dict.fromkeys(Call.__slots__), **given})

    def commit_part(part: Any, request: Any) -> None:
        begun.extend(one.name for one in request.topics)
        part.future.set_result([(one.name, [(0, NONE)]) for one in request.topics])
        client.closed = True

    monkeypatch.setattr(committed_offsets, "offset_commit", commit_part)
    monkeypatch.setattr(slices, "PARTITIONS", 1)
    await committed_offsets._commit_in_parts(
        call, commit_request(9, topics={name: {0: (1, "")} for name in ("t1", "t2", "t3")})
    )

    assert begun == ["t1"] and len(replies) == 1


async def test_commit_delivered_late_without_a_newer_one_is_stored(clock: SteppedClock, clock_store: Store) -> None:
    """As after a pause of Redis: nobody has committed meanwhile."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])
    for offset in (8, 5):
        entries = [offset_field("t1", 0), entry_json(offset, -1, T1.topic_hex, "")]
        sent_ms = clock.now_ms
        await clock.advance(3_000)
        key_names, args = commit_arguments(
            [(keys, [(Commit(2, "a", None, entries), print)])], 0, "1", (1 << 50, sent_ms)
        )
        assert await clock_store.run(COMMIT_OFFSETS, key_names, *args) == [NONE]


async def test_repeated_script_changes_nothing_more(clock: SteppedClock, clock_store: Store) -> None:
    keys = clock_store.group_keys("default", "orders")
    shard = keys.shard_keys
    key_names = [shard.groups, shard.events, keys.group, keys.members, keys.instances, keys.sessions, keys.offsets]
    commit = [-1, "", "", -1, 1, "t1:0", entry_json(5, 2, T1.topic_hex, "x")]
    args = [100, "1", 0, 0, keys.ref, "cgp_a default/consumer-groups/orders", "/h c", 1, *commit]
    snapshots = []
    for _ in range(2):
        assert await clock_store.run(COMMIT_OFFSETS, key_names, *args) == [NONE]
        snapshots.append(
            [await clock_store.command("HGETALL", key) for key in (keys.group, keys.offsets, keys.shard_keys.groups)]
        )
    assert snapshots[0] == snapshots[1]


async def test_commits_behind_one_that_waits_for_the_catalog_stay_in_order(store: Store, keys: GroupKeys) -> None:
    catalog = FakeCatalog(topic("t1", 4))
    catalog.stored = {"t1": topic("t1", 8)}
    broker = Broker(store, catalog)
    requests = [commit_request(9, topics={"t1": {0: (1, ""), 7: (1, "")}})]
    requests += [commit_request(9, topics={"t1": {0: (offset, "")}}) for offset in (2, 3)]

    found = await asyncio.gather(*(broker.ask(request) for request in requests))
    assert [set(codes(one).values()) for one in found] == [{NONE}] * 3
    committed = await stored(store, keys)
    assert committed is not None and committed["offset"] == 3


async def test_commits_of_a_tick_to_groups_of_one_shard_are_judged_each_by_its_group(
    clock: SteppedClock, clock_store: Store
) -> None:
    offsets, answers = Offsets(clock_store), {}
    names = [f"group-{number}" for number in range(600)]
    one_shard = [name for name in names if clock_store.group_keys("default", name).shard_keys.shard == 7]
    assert len(one_shard) > 4
    await clock_store.command("HSET", clock_store.group_keys("default", one_shard[1]).group, "state", "Stable")
    done = asyncio.Event()

    for name in one_shard:

        def on_code(code: int, name: str = name) -> None:
            answers[name] = code
            if len(answers) == len(one_shard):
                done.set()

        entries = [offset_field("t1", 0), entry_json(5, 2, T1.topic_hex, name)]
        offsets.commit(clock_store.group_keys("default", name), Commit(-1, "", None, entries), on_code)
    await asyncio.wait_for(done.wait(), 30)

    assert answers == {name: UNKNOWN_MEMBER if name == one_shard[1] else NONE for name in one_shard}
    for name in one_shard:
        value = await clock_store.command("HGET", clock_store.group_keys("default", name).offsets, "t1:0")
        assert (value is None) == (name == one_shard[1])
        assert value is None or f'"metadata":"{name}"'.encode() in value
