"""What the admin HTTP reports, with one broker's services and a real Redis."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.transactions import Brokers
from tests.support.whole_broker import WholeBroker
from tidegate.cluster import audit
from tidegate.cluster.audit import Actor, Audit
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.figures import FigureReports, Figures
from tidegate.errors import NonEmptyGroup, OffsetOutOfRange, StoreUnavailable, UnknownTopicOrPartition
from tidegate.groups.reset_plan import Choice
from tidegate.http import (
    actions,
    broker_views,
    group_views,
    offset_actions,
    overview_views,
    producer_views,
    redis_views,
    topic_views,
)
from tidegate.http.offset_actions import Reset
from tidegate.log import retention
from tidegate.log.record_format.record_log import RecordLog
from tidegate.settings import Settings
from tidegate.store.store import Store

ANNA = Actor("anna", "operator", "10.1.2.3")
FIGURES = Figures("f00", 12.5, 7, 1.5, 0.25, 100 << 20)


@pytest.fixture
async def whole(settings: Settings, store: Store) -> AsyncIterator[WholeBroker]:
    """One broker of two that are known, one of them suspect."""
    opened = WholeBroker(settings.model_copy(update={"group_initial_rebalance_delay_ms": 0}))
    await opened.start()
    live = [
        BrokerInfo(1, {"PLAINTEXT": ("a", 9092)}, "r1", "1.0", "serving", process=FIGURES.process),
        BrokerInfo(2, {"PLAINTEXT": ("b", 9092)}, None, "1.0", "serving", suspect=True, process="f01"),
    ]
    broker_lease: Any = opened.context.broker_lease
    broker_lease.live, broker_lease.preferred, broker_lease.cluster_id = lambda: live, lambda: live[:1], "c1"
    broker_lease.nameable = broker_lease.preferred
    yield opened
    await opened.close()


async def _read_and_behind(whole: WholeBroker) -> None:
    """Ten records in the second partition of `orders`; the group `orders` has read four of them and left."""
    await whole.create("orders", 2, retention_ms="1000000")
    client = whole.client()
    await client.produce("orders", 10, index=1)
    await client.own("orders", 0, 1)
    await client.commit("orders", 4, index=1)
    await client.leave()


async def test_brokers_are_shown_with_their_figures(whole: WholeBroker) -> None:
    await whole.create("orders", 3)
    await FigureReports(whole.store, lambda: 1, lambda: FIGURES).report()
    await FigureReports(whole.store, lambda: 2, lambda: FIGURES).report()  # of the process before, at this address

    first, second = await broker_views.brokers(whole.context)

    assert first["listeners"] == [{"name": "PLAINTEXT", "host": "a", "port": 9092}]
    assert (first["state"], first["connections"], first["partitions"], first["answers"]) == ("serving", 7, 3, True)
    assert first["shards"] == whole.settings.coordinator_shards
    assert (second["state"], second["connections"], second["partitions"]) == ("suspect", None, 0)
    assert 0 < await whole.store.command("PTTL", whole.store.cluster_keys.figures(1)) <= 20_000


async def test_topic_is_shown_with_partitions_configs_and_groups(whole: WholeBroker) -> None:
    await _read_and_behind(whole)

    reported = await topic_views.topic(whole.context, "default", "orders")

    assert [(one["log_start"], one["high_watermark"], one["leader"]) for one in reported["partitions"]] == [
        (0, 0, 1),
        (0, 10, 1),
    ]
    assert {one["name"]: (one["value"], one["source"]) for one in reported["configs"]}["retention.ms"] == (
        "1000000",
        "topic",
    )
    assert [(one["group"], one["lag"], one["subscribed"]) for one in reported["groups"]] == [("orders", 6, False)]
    assert (await topic_views.topics(whole.context, "default"))[0]["configs_set"] == 1
    assert await topic_views.topics(whole.context, "default", after="orders") == []
    assert await topic_views.topics(whole.context, "other") == []
    with pytest.raises(UnknownTopicOrPartition):
        await topic_views.topic(whole.context, "other", "orders")


async def test_groups_of_an_earlier_topic_of_that_name_do_not_read_it(whole: WholeBroker) -> None:
    await _read_and_behind(whole)
    fields = await whole.store.command("HGETALL", whole.store.group_keys("default", "orders").offsets)
    await whole.context.catalog.delete("default", "orders")
    await whole.create("orders", 2)
    flat = [text for pair in fields.items() for text in pair]
    await whole.store.command("HSET", whole.store.group_keys("default", "orders").offsets, *flat)

    assert (await topic_views.topic(whole.context, "default", "orders"))["groups"] == []


async def test_lag_of_format_record_is_counted_or_unknown(whole: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await whole.create("r", tidegate_format="record")
    client = whole.client()
    await client.produce("r", 3)
    await client.own("r", 0)
    await client.commit("r", 0)
    await client.leave()

    async def lags() -> tuple[int | None, int | None]:
        (of_topic,) = (await topic_views.topic(whole.context, "default", "r"))["groups"]
        (of_group,) = (await group_views.view(whole.context, "default", of_topic["group"])).partitions
        assert of_group.log_end is not None
        return of_topic["lag"], of_group.lag

    async def fail(_: RecordLog, offset: int) -> int:
        raise StoreUnavailable(f"no count from {offset}")

    assert await lags() == (3, 3)
    monkeypatch.setattr(RecordLog, "count_from", fail)
    assert await lags() == (None, None)


async def test_redis_is_shown_with_its_largest_users(whole: WholeBroker) -> None:
    await _read_and_behind(whole)
    await whole.create("large", 1, org="acme")
    await whole.client(org="acme").produce("large", *[1_000] * 20)

    reported = await redis_views.redis(whole.context)

    flavour = "valkey" if b"valkey_version" in await whole.context.store.command("INFO", "server") else "redis"
    assert (reported["flavour"], reported["role"], reported["replicas"]) == (flavour, "master", [])
    assert reported["memory"]["used_bytes"] > 0
    orgs = {one["org"]: one for one in reported["memory"]["orgs"]}
    assert orgs["acme"]["topics_bytes"] > orgs["default"]["topics_bytes"] > 0
    assert orgs["default"]["groups_bytes"] > 0 == orgs["acme"]["groups_bytes"]
    assert [one["topic"] for one in reported["memory"]["topics"]] == ["large", "orders"]
    assert any(one["script"] == "groups_join_group" and one["p99_ms"] for one in reported["scripts"])


async def test_producers_are_shown_by_partition(whole: WholeBroker) -> None:
    await _read_and_behind(whole)

    reported = await producer_views.producers(whole.context, "default", "orders", first=1)

    assert [(one["partition"], one["log_end"]) for one in reported["partitions"]] == [(1, 10)]


async def test_transactions_in_progress_are_first(whole: WholeBroker) -> None:
    await whole.create("orders", 1)
    brokers = Brokers([whole])
    done = await brokers.producer("done").init()
    await done.write("orders", 1)
    await done.end(True)
    await brokers.until_marked("orders", 1)
    ongoing = await brokers.producer("ongoing").init()
    await ongoing.write("orders", 3)

    reported = await producer_views.transactions(whole.context, "default")
    [partition] = (await producer_views.producers(whole.context, "default", "orders"))["partitions"]
    starts = {one["producer_id"]: one["transaction_start_offset"] for one in partition["producers"]}

    assert [one["transactional_id"] for one in reported["transactions"]] == ["ongoing", "done"]
    assert (reported["total"], reported["transactions"][0]["state"]) == (2, "Ongoing")
    assert reported["transactions"][0]["started_ms"] > 1_600_000_000_000
    assert starts[ongoing.id] == 2 and starts[done.id] is None
    assert (await producer_views.transactions(whole.context, "acme"))["total"] == 0


async def test_overview_begins_with_trouble(whole: WholeBroker) -> None:
    await _read_and_behind(whole)

    lost = whole.client()
    lost.group_id = "lost"
    await lost.own("missing")

    reported = await overview_views.overview(whole.context, "default")

    assert reported["totals"] | {"groups": 2, "lag": 6, "topics": 1, "members": 1} == reported["totals"]
    assert [(one["group"], one["trouble"]) for one in reported["groups"]] == [("lost", "topic_missing"), ("orders", "")]
    assert "missing" in reported["groups"][0]["sentence"]
    assert {"broker_suspect", "redis_without_limit"} <= {one["kind"] for one in reported["troubles"]}
    assert [one["node_id"] for one in reported["brokers"]] == [2, 1]


@pytest.mark.parametrize("damaged", ["group", "members", "offsets"])
async def test_groups_are_shown_beside_one_that_cannot_be_read(whole: WholeBroker, damaged: str) -> None:
    await _read_and_behind(whole)
    client = whole.client()
    client.group_id = "other"
    await client.commit("orders", 1, index=0)
    key = getattr(whole.store.group_keys("default", "other"), damaged)
    await whole.store.command("DEL", key)
    await whole.store.command("SET", key, "by hand")

    found, left_out = await group_views.view_first(whole.context, "default", 10)
    page, after = await group_views.view_page(whole.context, "default", "", 10)

    shown = {one.snapshot.group_id for one in found}
    assert (shown, left_out) == ({"orders"}, 1)
    assert ({one.snapshot.group_id for one in page}, after) == (shown, None)


async def test_overview_of_many_groups_evaluates_the_rebalancing_ones(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _read_and_behind(whole)
    busy = whole.client()
    busy.group_id = "z-busy"
    await busy.join("orders")
    monkeypatch.setattr(overview_views, "GROUPS_MAX", 1)

    reported = await overview_views.overview(whole.context, "default")

    assert [one["group"] for one in reported["groups"]] == ["z-busy"]
    assert (reported["totals"]["groups"], reported["totals"]["groups_left_out"]) == (2, 1)


async def test_full_redis_takes_the_audit_and_lets_topics_be_deleted(whole: WholeBroker) -> None:
    await whole.create("large", 1)
    used = dict(
        line.split(":") for line in (await whole.store.command("INFO", "memory")).decode().splitlines() if ":" in line
    )
    await whole.store.command("CONFIG", "SET", "maxmemory", int(used["used_memory"]) // 2)
    try:
        with pytest.raises(StoreUnavailable):
            await actions.create_topic(whole.context, ANNA, "default", "more", 1, {})
        await actions.delete_topic(whole.context, ANNA, "default", "large")
    finally:
        await whole.store.command("CONFIG", "SET", "maxmemory", 0)

    done = [(one["action"], one["outcome"]) for one in await audit.entries(whole.store, 10)]
    assert done == [("topic.delete", "done"), ("topic.create", "failed")]


async def test_nothing_is_changed_where_the_audit_cannot_be_written(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole.create("orders", 1)

    async def away(*_: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(audit, "_add", away)
    with pytest.raises(StoreUnavailable):
        await actions.delete_topic(whole.context, ANNA, "default", "orders")

    assert whole.context.catalog.get("default", "orders") is not None


async def test_action_outcome_not_written_is_still_reported_done(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole.create("orders", 1)
    write, calls = audit._add, 0

    async def once(store: Store, fields: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("gone")
        await write(store, fields)

    monkeypatch.setattr(audit, "_add", once)
    await actions.delete_topic(whole.context, ANNA, "default", "orders")

    assert [one["outcome"] for one in await audit.entries(whole.store, 10)] == [audit.OPEN]


async def test_action_is_recorded_before_it_is_done_and_with_its_outcome(store: Store) -> None:
    async with Audit(store, 1, ANNA, "group.reset", {"group": "orders"}, undo=[["orders", 0, 7]]) as entry:
        [under_way] = await audit.entries(store, 10)
        assert (under_way["outcome"], under_way["action_id"]) == (audit.OPEN, entry.action_id)
        entry.result["moved"] = 1
    with pytest.raises(NonEmptyGroup):
        async with Audit(store, 1, ANNA, "group.delete", {"group": "orders"}):
            raise NonEmptyGroup
    with pytest.raises(ZeroDivisionError):
        async with Audit(store, 1, ANNA, "topic.delete", {"topic": "orders"}):
            raise ZeroDivisionError

    died, refused, done = await audit.entries(store, 10)

    assert (died["action"], died["outcome"], died["undoable"]) == ("topic.delete", audit.OPEN, False)
    assert (refused["action"], refused["outcome"], refused["remote"]) == ("group.delete", audit.REFUSED, "10.1.2.3")
    assert (done["outcome"], done["result"], done["undoable"]) == (audit.DONE, {"moved": 1}, True)
    found = await audit.find(store, done["action_id"])
    assert found is not None and found["undo"] == [["orders", 0, 7]]
    assert await audit.find(store, "none") is None
    assert await audit.find(store, ANNA.name) is None and await audit.find(store, "group.reset") is None
    assert await audit.entries(store, 1) == [died]


async def test_reset_broker_dies_before_the_outcome_is_open_in_the_audit_and_can_be_undone(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _read_and_behind(whole)

    async def die(*_: object) -> None:
        """The process ends before it writes the outcome."""

    with monkeypatch.context() as dying:
        dying.setattr(Audit, "__aexit__", die)
        wanted = Reset("orders", Choice(to_earliest=True), all_topics=True)
        await offset_actions.reset(whole.context, ANNA, "default", wanted)
    assert await _committed(whole) == 0
    (action,) = await audit.entries(whole.store, 1)
    assert (action["action"], action["outcome"], action["undoable"]) == ("group.reset", audit.OPEN, True)

    await offset_actions.undo(whole.context, ANNA, action["action_id"], False)

    assert await _committed(whole) == 4


async def _committed(whole: WholeBroker) -> int:
    keys = whole.store.group_keys("default", "orders")
    offset: int = json.loads(await whole.store.command("HGET", keys.offsets, "orders:1"))["offset"]
    return offset


async def test_undo_of_a_large_action_is_stored_compressed_and_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = [["orders", partition, 7 * partition, 0] for partition in range(1_000)]
    arguments = {"group": "orders"}
    async with Audit(store, 1, ANNA, "group.reset", arguments, undo={"moves": moves}) as kept:
        pass
    monkeypatch.setattr(audit, "UNDO_BYTES_MAX", 1_024)
    async with Audit(store, 1, ANNA, "group.reset", arguments, undo={"moves": moves}) as left_out:
        pass

    found, without = await audit.find(store, kept.action_id), await audit.find(store, left_out.action_id)

    assert kept.undoable and found is not None and found["undo"] == {"moves": moves}
    assert not left_out.undoable and without is not None
    assert (without["undo"], without["undoable"], without["undo_too_large"]) == (None, False, True)
    assert 0 < await store.command("MEMORY", "USAGE", store.cluster_keys.audit) < len(str(moves))


async def test_trim_beyond_the_end_of_one_partition_trims_none(whole: WholeBroker) -> None:
    await whole.create("orders", 2)
    await whole.client().produce("orders", 10, index=0)

    with pytest.raises(OffsetOutOfRange, match="partition 1 ends before offset 999"):
        await actions.trim_topic(whole.context, ANNA, "default", "orders", {0: None, 1: 999})

    topic = await whole.context.catalog.find("default", "orders")
    assert topic is not None
    assert (await whole.context.logs.partition(topic, 0).end_offset()).log_start_offset == 0
    [refused] = await audit.entries(whole.store, 10)
    assert (refused["outcome"], refused["result"]) == (audit.REFUSED, {})


async def test_trim_executed_in_part_is_recorded_as_failed(whole: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await whole.create("orders", 2)
    client = whole.client()
    for index in (0, 1):
        await client.produce("orders", 10, index=index)
    real = retention.delete_records

    async def refuse_second(log: Any, offset: int) -> int:
        if log.index == 1:
            raise OffsetOutOfRange
        return await real(log, offset)

    monkeypatch.setattr(retention, "delete_records", refuse_second)
    with pytest.raises(OffsetOutOfRange, match="partition 1 ends before offset 7; trimmed before it: 0"):
        await actions.trim_topic(whole.context, ANNA, "default", "orders", {0: 5, 1: 7})

    [failed] = await audit.entries(whole.store, 10)
    assert (failed["outcome"], failed["result"]) == (audit.FAILED, {"log_starts": {"0": 5}})


async def test_list_of_actions_unpacks_no_undo(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Audit(store, 1, ANNA, "group.reset", {"group": "orders"}, undo=[["orders", 0, 7]]):
        pass

    with monkeypatch.context() as patched:
        patched.setattr(audit, "_unpacked", None)
        [listed] = await audit.entries(store, 10)

    assert listed["undoable"] and "undo" not in listed
    found = await audit.find(store, listed["action_id"])
    assert found is not None and found["undo"] == [["orders", 0, 7]]


async def test_audit_is_capped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ACTIONS_MAX", 5)
    for _ in range(200):
        async with Audit(store, 1, ANNA, "topic.create", {"topic": "orders"}):
            pass

    assert await store.command("XLEN", store.cluster_keys.audit) < 150
