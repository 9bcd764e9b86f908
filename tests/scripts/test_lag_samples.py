"""Samples of lag: what one holds, which broker takes them, and what may change while they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.clock import SteppedClock
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.groups import offsets
from tidegate.log.retention import delete_records
from tidegate.monitoring import lag_sampler
from tidegate.monitoring.lag_reading import LOG_IDLE_MS
from tidegate.monitoring.lag_sampler import LagSampler
from tidegate.monitoring.resting_groups import IDLE_MS, WAITING_MS
from tidegate.protocol.consumer_blobs import assigned_partitions
from tidegate.settings import Settings
from tidegate.store.samples import add_samples
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.topics.catalog import Topic


@pytest.fixture
async def brokers(clock: SteppedClock, settings: Settings) -> AsyncIterator[list[WholeBroker]]:
    own = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})
    opened = [await WholeBroker(own, node_id, with_mirror=False).start() for node_id in (1, 2)]
    yield opened
    for broker in opened:
        await broker.close()


@pytest.fixture
def broker(brokers: list[WholeBroker]) -> WholeBroker:
    return brokers[0]


@pytest.fixture
async def topic(broker: WholeBroker) -> Topic:
    """Topic t, two partitions, both with entries of 3 and 2 records, from 10 s and from 20 and 21 s."""
    made = await broker.create("t", 2)
    for index in (0, 1):
        await produce(broker, index, [10_000] * 3)
        await produce(broker, index, [20_000, 21_000])
    return made


async def produce(broker: WholeBroker, index: int, timestamps: list[int]) -> None:
    batch = batch_bytes(count=len(timestamps), timestamps=timestamps)
    answer = await broker.client("producer").ask(produce_request([("t", [(index, batch)])]))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def sampler(broker: WholeBroker, **changes: Any) -> LagSampler:
    settings = broker.settings.model_copy(update=changes)
    find = broker.context.catalog.get
    return LagSampler(broker.store, settings, find, assigned_partitions, lambda: str(broker.node_id), handover_ms=0)


async def samples(store: Store) -> list[dict[str, str]]:
    entries = await store.command("XRANGE", store.cluster_keys.lag, "-", "+")
    return [{fields[i].decode(): fields[i + 1].decode() for i in range(0, len(fields), 2)} for _, fields in entries]


async def of_group(broker: WholeBroker, group_id: str) -> ClientOf:
    member = broker.client(f"app of {group_id}")
    member.group_id = group_id
    return member


async def test_sample_has_committed_offsets_ends_and_times(
    broker: WholeBroker, topic: Topic, clock: SteppedClock
) -> None:
    member = await of_group(broker, "or/ders")
    await member.own("t", 0, 1)
    await member.commit("t", 1, index=0)
    await clock.advance(5_000)
    await member.commit("t", 5, index=1)
    nobody = await of_group(broker, "tools")
    await nobody.commit("t", 4)
    assert await sampler(broker).sample()

    began = clock.now_ms - 5_000
    found = {entry.pop("group"): entry for entry in await samples(broker.store)}
    assert found == {
        "default/or%2Fders": {
            "time": str(clock.now_ms),
            "t:0": f"committed=1 start=0 end=5 lag=4 committed_at={began} next_time=10000 head_time=21000 "
            f"member={member.member_id}",
            "t:1": f"committed=5 start=0 end=5 lag=0 committed_at={began + 5_000} next_time=-1 head_time=21000 "
            f"member={member.member_id}",
        },
        "default/tools": {
            "time": str(clock.now_ms),
            "t:0": f"committed=4 start=0 end=5 lag=1 committed_at={began + 5_000} next_time=20000 head_time=21000 "
            "member=",
        },
    }


async def test_owners_follow_the_generation(broker: WholeBroker, topic: Topic) -> None:
    taking = sampler(broker)
    member = broker.client("first")
    await member.own("t", 0)
    await member.commit("t", 1)
    owners = []
    for _ in range(2):
        await taking.sample()
        owners.append((await samples(broker.store))[-1]["t:0"].partition("member=")[2])
    await member.leave()
    await taking.sample()
    owners.append((await samples(broker.store))[-1]["t:0"].partition("member=")[2])
    second = broker.client("second")
    await second.own("t", 0)
    await taking.sample()
    owners.append((await samples(broker.store))[-1]["t:0"].partition("member=")[2])

    assert owners[0] == owners[1] and owners[0].startswith("first-")  # the second time without reading assignments
    assert owners[2:] == ["", second.member_id]


async def test_one_broker_samples_and_another_takes_over(
    brokers: list[WholeBroker], topic: Topic, clock: SteppedClock
) -> None:
    member = brokers[0].client()
    await member.commit("t", 1)
    first, second = (sampler(broker) for broker in brokers)

    assert (await first.sample(), await second.sample()) == (True, False)
    await member.commit("t", 2)
    await brokers[0].noted()
    await clock.advance(9_000)
    assert (await second.sample(), await first.sample()) == (False, True)  # it renews the lease
    await clock.advance(10_000)  # and is gone
    assert await second.sample()
    assert not await first.sample()  # it only stood still
    assert (first.taken, second.taken, len(await samples(brokers[0].store))) == (2, 1, 3)


async def test_sampler_that_loses_the_lease_stops_within_its_round(
    brokers: list[WholeBroker], topic: Topic, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_sampler, "_GROUPS_AT_ONCE", 2)
    for number in range(5):
        await (await of_group(brokers[0], f"g{number}")).commit("t", number)
    first, second = (sampler(broker, lag_sample_interval_ms=50) for broker in brokers)
    during(monkeypatch, first, lambda: clock.advance(200), second.sample)

    assert not await first.sample()
    assert (first.taken, second.taken) == (2, 5)


async def test_commits_and_appends_meanwhile_never_make_a_lag_negative(
    broker: WholeBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = broker.client()
    await member.commit("t", 5)
    taking = sampler(broker)
    during(monkeypatch, taking, lambda: produce(broker, 0, [30_000] * 4), lambda: member.commit("t", 9))
    await taking.sample()
    await member.commit("t", 99)
    await broker.noted()
    await taking.sample()

    before, beyond = (entry["t:0"] for entry in await samples(broker.store))
    assert before.startswith("committed=5 start=0 end=9 lag=4 ") and " next_time=30000 " in before
    assert beyond.startswith("committed=99 start=0 end=9 lag=0 ")


async def test_sample_excludes_trimmed_records(broker: WholeBroker, topic: Topic) -> None:
    await broker.client().commit("t", 1)
    log = broker.context.logs.partition(topic, 0)
    assert await delete_records(log, 4) == 4
    await broker.store.command("XTRIM", log.keys.log, "MINID", "3-1")
    await sampler(broker).sample()

    [entry] = await samples(broker.store)
    assert entry["t:0"].startswith("committed=1 start=4 end=5 lag=1 ") and " next_time=20000 " in entry["t:0"]


async def test_sample_omits_deleted_and_new_topics(broker: WholeBroker, topic: Topic) -> None:
    group = broker.store.group_keys("default", "orders").offsets
    await broker.client().commit("t", 1)
    stored = {name: await broker.store.command("HGET", group, "t:0") for name in ("t:7", "gone:0")}
    again = await broker.create("again", 1)
    stored["again:0"] = stored["t:7"]  # with the id of another topic
    for name, value in stored.items():
        await broker.store.command("HSET", group, name, value)
    await sampler(broker).sample()
    [entry] = await samples(broker.store)
    assert sorted(entry) == ["group", "t:0", "time"] and again.topic_hex != topic.topic_hex

    await broker.store.command(
        "HSET", broker.store.log_keys("default", "t", 0, topic.topic_hex).meta, "state", "deleted"
    )
    await sampler(broker).sample()
    assert len(await samples(broker.store)) == 1


async def scripts_run(store: Store) -> int:
    info = (await store.command("INFO", "commandstats")).decode()
    return int(info.partition("cmdstat_evalsha:calls=")[2].partition(",")[0] or 0)


async def test_idle_logs_are_read_when_they_change_and_else_every_few_minutes(
    broker: WholeBroker, topic: Topic, clock: SteppedClock
) -> None:
    member = broker.client()
    await member.commit("t", 1, index=1)
    taking, read = sampler(broker), []

    async def round_reads() -> list[int]:
        """The log ends in the sample of a round, after which `read` has how many logs it read."""
        await member.commit("t", 1, index=0)
        await broker.noted()
        await clock.advance(1_000)
        before = await scripts_run(broker.store)
        assert await taking.sample()
        read.append(await scripts_run(broker.store) - before - 2)  # the lease, and the sample
        sample = (await samples(broker.store))[-1]
        return [int(sample[f"t:{index}"].partition(" end=")[2].split()[0]) for index in (0, 1)]

    assert [await round_reads() for _ in range(3)] == [[5, 5]] * 3
    assert read == [2, 0, 0]

    await produce(broker, 0, [30_000])
    assert await round_reads() == [6, 5] and read[3:] == [1]

    log = broker.store.log_keys("default", "t", 1, topic.topic_hex, topic.format).log
    await broker.store.command("XADD", log, "5-1", "w", "another:1", "b", batch_bytes(count=1, timestamps=[40_000]))
    ends = [await round_reads() for _ in range(LOG_IDLE_MS // broker.settings.lag_sample_interval_ms)]
    assert ends[0] == [6, 5] and ends[-1] == [6, 6], "no broker noted it"


async def test_groups_at_rest_cost_nothing_until_something_changes_them(
    broker: WholeBroker, topic: Topic, clock: SteppedClock
) -> None:
    tools, member = await of_group(broker, "tools"), await of_group(broker, "apps")
    await tools.commit("t", 5)
    await member.own("t", 1)
    await member.commit("t", 5, index=1)
    await broker.noted()
    taking = sampler(broker)

    async def sampled(after: Callable[[], Awaitable[Any]] | None = None) -> dict[str, dict[str, str]]:
        """The samples that a round adds."""
        if after is not None:
            await after()
        await broker.noted()
        await clock.advance(1_000)
        before = len(await samples(broker.store))
        assert await taking.sample()
        return {entry["group"].partition("/")[2]: entry for entry in (await samples(broker.store))[before:]}

    assert set(await sampled()) == {"tools", "apps"}
    assert await sampled() == await sampled() == {}

    assert set(await sampled(lambda: tools.commit("t", 3))) == {"tools"}
    assert set(await sampled(lambda: produce(broker, 1, [30_000]))) == {"apps"}
    assert (await sampled(member.leave))["apps"]["t:1"].endswith("member=")
    assert await sampled() == {}
    deleting = partial(offsets.delete, broker.store, broker.store.group_keys("default", "tools"), "1", {"t": [0]})
    assert await sampled(deleting) == {} and not taking._resting.get("default/tools").group.commits

    rounds = [set(await sampled()) for _ in range(WAITING_MS // broker.settings.lag_sample_interval_ms)]
    assert {"apps"} in rounds, "records wait for it"


async def test_groups_at_rest_are_read_again_in_time(broker: WholeBroker, topic: Topic, clock: SteppedClock) -> None:
    tools = await of_group(broker, "tools")
    await tools.commit("t", 5)
    await broker.noted()
    taking = sampler(broker)
    assert await taking.sample()
    keys = broker.store.group_keys("default", "tools")
    stored = await broker.store.command("HGET", keys.offsets, "t:0")
    await broker.store.command("HSET", keys.offsets, "t:0", stored.replace(b'"offset":5', b'"offset":4'))  # not noted

    lasts = []
    for _ in range(IDLE_MS // broker.settings.lag_sample_interval_ms):
        await clock.advance(1_000)
        assert await taking.sample()
        lasts.append((await samples(broker.store))[-1]["t:0"].partition(" ")[0])
    assert (lasts[0], lasts[-1]) == ("committed=5", "committed=4")


async def test_groups_are_read_again_after_messages_were_lost(
    broker: WholeBroker, topic: Topic, clock: SteppedClock
) -> None:
    await (await of_group(broker, "tools")).commit("t", 5)
    await broker.noted()
    taking = sampler(broker)
    assert await taking.sample() and await taking.sample()
    assert taking.taken == 1

    broker.store.push.reconnect("as after a fault")
    async with asyncio.timeout(30):
        while not taking._resting._lost:
            await asyncio.sleep(0.01)

    assert await taking.sample()
    assert taking.taken == 2

    taking.notes_lost()  # a broker was killed
    assert await taking.sample()
    assert taking.taken == 3


async def test_group_at_rest_is_read_once_its_topic_is_made_again(broker: WholeBroker, topic: Topic) -> None:
    await (await of_group(broker, "tools")).commit("t", 5)
    await broker.noted()
    taking = sampler(broker)
    assert await taking.sample()
    await broker.context.catalog.delete("default", "t")
    await broker.create("t", 1)

    assert await taking.sample()
    assert not taking._resting.get("default/tools").group.commits


async def test_samples_of_many_groups_are_added_by_few_scripts(
    broker: WholeBroker, topic: Topic, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(45):
        await (await of_group(broker, f"g{number:02}")).commit("t", 1)
    ran: list[str] = []
    run = broker.store.run

    async def noted(script: Script, *args: Any) -> list[Any]:
        ran.append(script.name)
        return await run(script, *args)

    monkeypatch.setattr(broker.store, "run", noted)

    await sampler(broker, lag_sample_interval_ms=10).sample()

    found = await samples(broker.store)
    assert sorted(entry["group"] for entry in found) == [f"default/g{number:02}" for number in range(45)]
    assert all(" end=5 " in entry["t:0"] and entry["time"] == str(clock.now_ms) for entry in found)
    assert ran.count("cluster/add_samples") == 3  # one for each 20 groups


async def test_samples_beyond_the_texts_of_one_script_are_added_by_several(store: Store) -> None:
    entries = [["n", str(number), *("f", "v") * 600] for number in range(4)]

    before = await scripts_run(store)
    await add_samples(store, store.cluster_keys.lag, 100, entries)

    assert [entry["n"] for entry in await samples(store)] == ["0", "1", "2", "3"]
    assert await scripts_run(store) - before == 4


async def test_idle_logs_of_a_sampler_that_had_lost_its_lease_are_read(
    brokers: list[WholeBroker], topic: Topic, clock: SteppedClock
) -> None:
    await brokers[0].client().commit("t", 1)
    first, second = (sampler(broker) for broker in brokers)
    assert await first.sample()
    await clock.advance(60_000)
    assert await second.sample() and not await first.sample()
    await produce(brokers[0], 0, [30_000])
    await brokers[0].context.logs._sweep()
    assert await second.sample()  # takes the note
    await clock.advance(60_000)

    assert await first.sample()
    assert " end=6 " in (await samples(brokers[0].store))[-1]["t:0"]


async def test_wide_groups_have_several_entries_and_the_stream_is_capped(
    broker: WholeBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_sampler, "_PARTITIONS_PER_ENTRY_MAX", 1)
    for index in (0, 1):
        await broker.client().commit("t", 1, index=index)
    await (await of_group(broker, "without")).own("t", 0)
    monkeypatch.setattr(lag_sampler, "SAMPLES_MAX", 100)
    taking = sampler(broker)
    for _ in range(150):
        taking._resting.forget()
        await taking.sample()

    found = await samples(broker.store)
    assert taking.taken == 300 and 100 <= len(found) < 300
    assert [sorted(entry) for entry in found[-2:]] in (
        [["group", "t:0", "time"], ["group", "t:1", "time"]],
        [["group", "t:1", "time"], ["group", "t:0", "time"]],
    )


async def test_time_of_a_record_is_the_brokers_where_it_stamps(broker: WholeBroker) -> None:
    await broker.create("t", 1, message_timestamp_type="LogAppendTime")
    await produce(broker, 0, [10_000, 11_000])
    await broker.client().commit("t", 0)
    await sampler(broker).sample()

    [entry] = await samples(broker.store)
    times = dict(pair.split("=", 1) for pair in entry["t:0"].split(" ") if "time=" in pair)
    assert times["next_time"] == times["head_time"] and int(times["head_time"]) > 1_600_000_000_000


@pytest.mark.parametrize(
    ("kind", "value"), [("group", b""), ("offsets", b""), ("offsets", b"foreign"), ("assignments", b"")]
)
async def test_sample_faulty_group_stops_no_other(
    broker: WholeBroker, topic: Topic, clock: SteppedClock, kind: str, value: bytes
) -> None:
    """A key of another type, or a field that no broker wrote."""
    for name in ("a-broken", "whole"):
        member = await of_group(broker, name)
        await member.own("t", 0)
        await member.commit("t", 1)
    keys = broker.store.group_keys("default", "a-broken")
    key = getattr(keys, kind)
    held = await broker.store.command("DUMP", key)
    if value:
        await broker.store.command("HSET", key, value, value)
    else:
        await broker.store.command("SET", key, "foreign")
    await broker.store.command("HSET", keys.shard_keys.groups, b"\xff", "foreign")
    taking = sampler(broker)
    await taking.sample()

    assert [entry["group"] for entry in await samples(broker.store)] == ["default/whole"]
    assert [*taking._reader.unreadable["unreadable_groups"]] == [keys.ref]
    await broker.store.command("RESTORE", key, 0, held, "REPLACE")
    await clock.advance(1_000)
    await taking.sample()
    assert (await samples(broker.store))[-1]["group"] == keys.ref
    assert not taking._reader.unreadable


async def test_sample_faulty_log_stops_no_other(broker: WholeBroker, topic: Topic) -> None:
    for index in (0, 1):
        await broker.client().commit("t", 1, index=index)
    keys = broker.store.log_keys("default", "t", 0, topic.topic_hex)
    await broker.store.command("SET", keys.log, "foreign")
    taking = sampler(broker)
    await taking.sample()

    [entry] = await samples(broker.store)
    assert {"t:0", "t:1"} & {*entry} == {"t:1"}
    assert [*taking._reader.unreadable["unreadable_partitions"]] == ["default/t:0"]


async def test_sample_faulty_index_of_a_shard_and_foreign_notes_stop_no_other(
    broker: WholeBroker, topic: Topic
) -> None:
    await broker.client().commit("t", 1)
    mine = broker.store.group_keys("default", "orders").shard_keys.shard
    index = broker.store.shard_keys((mine + 1) % 50).groups
    await broker.store.command("SET", index, "foreign")
    for notes in (broker.store.cluster_keys.changed_logs, broker.store.cluster_keys.changed_groups):
        await broker.store.command("ZADD", notes, 1, "foreign", 1, b"\xff")
    taking = sampler(broker)
    await taking.sample()

    assert len(await samples(broker.store)) == 1
    assert [*taking._reader.unreadable["unreadable_shards"]] == [index]


def during(monkeypatch: pytest.MonkeyPatch, taking: LagSampler, *happens: Callable[[], Awaitable[Any]]) -> None:
    """Let things happen once, after commits were read and before the logs are looked at."""
    reader = taking._reader
    read_ends_of = reader.read_ends_of

    async def after(found: Any) -> Any:
        monkeypatch.setattr(reader, "read_ends_of", read_ends_of)
        for one in happens:
            await one()
        return await read_ends_of(found)

    monkeypatch.setattr(reader, "read_ends_of", after)
