"""KIP-848 groups and share groups in the views of the admin HTTP, and what `explain` finds about them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.kit.wire import request
from tests.support.consumers import ConsumerWorld
from tests.support.log_broker import Connection
from tests.support.scraping import Scrape
from tests.support.shares import ACCEPT, REJECT, RELEASE, ShareWorld
from tidegate.cluster.audit import Actor
from tidegate.diagnosis.explain import GroupSeverity, explain
from tidegate.diagnosis.group_events import read_events, rebalances
from tidegate.diagnosis.group_snapshot import MetadataDecoders, read_snapshot
from tidegate.errors import InvalidRequest, NonEmptyGroup
from tidegate.groups.reset_plan import Choice
from tidegate.http import actions, group_views, offset_actions
from tidegate.http.models import groups as models
from tidegate.http.offset_actions import Reset
from tidegate.http.problems import Problem
from tidegate.monitoring.cluster_metrics import ClusterPage
from tidegate.monitoring.exporters import Brokers, ForeignNames
from tidegate.monitoring.lag_sampler import LagSampler
from tidegate.protocol.consumer_blobs import assigned_partitions, subscribed_topics

HEARTBEAT = 68
BLOBS = MetadataDecoders(subscribed_topics, assigned_partitions)


async def findings(consumers: ConsumerWorld) -> dict[str, Any]:
    """The findings about the group `orders`, by kind."""
    store, keys = consumers.store, consumers.keys
    snapshot = await read_snapshot(store, keys, "1", BLOBS, consumers.clock.now_ms)
    events = await read_events(store, keys)
    return {one.kind: one for one in explain(snapshot, [], events, frozenset({"t4"}))}


async def test_explain_names_unconfirmed_revocations(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t4", rebalance_timeout_ms=60_000))
    b = consumers.peer("b", "t4")
    await b.join()
    await a.heartbeat()  # a learns that it has to give up two partitions
    await b.own()
    await consumers.advance(8_000, [a, b])

    found = await findings(consumers)

    unconfirmed = found["revocation_unconfirmed"]
    assert unconfirmed.severity.name == "TROUBLE"
    assert unconfirmed.sentence == (
        "a at 127.0.0.1 has not confirmed to have given up t4 2-3. b at 127.0.0.1 waits for it."
    )
    (evidence,) = unconfirmed.evidence
    assert "it is fenced at " in evidence and "(in 52 s)" in evidence and "member epoch 2" in evidence
    assert f"tidegate group evict orders {a.member_id}" in unconfirmed.advice

    await a.own("t4:0,1")
    await b.own()
    assert (await consumers.state())[0] == "Stable"
    assert "revocation_unconfirmed" not in await findings(consumers)


async def test_explain_names_members_that_were_fenced(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t4", rebalance_timeout_ms=5_000))
    b = consumers.peer("b", "t4")
    await b.join()
    await a.heartbeat()
    await consumers.advance(6_000, [a, b])

    found = (await findings(consumers))["members_fenced"]

    assert found.sentence.startswith("1 member was fenced in the last 10 min") and "a at 127.0.0.1" in found.evidence[0]


async def test_explain_names_members_that_do_not_know_their_assignment(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await a.leave()
    await consumers.peer("c", "t4").join()
    await consumers.advance(10_000)

    found = (await findings(consumers))["members_behind"]

    assert "b at 127.0.0.1" in found.sentence and "last request 10 s ago" in found.evidence[0]
    snapshot = await read_snapshot(consumers.store, consumers.keys, "1", BLOBS, consumers.clock.now_ms)
    behind = next(one for one in snapshot.members if one.member_id == b.member_id)
    assert (behind.phase, behind.epoch, snapshot.generation) == ("behind", b.epoch, snapshot.target_epoch)
    assert behind.session_ends_ms == consumers.clock.now_ms + 35_000


async def test_explain_names_the_assignment_interval(consumers: ConsumerWorld) -> None:
    from tests.scripts.test_consumer_configs import configure

    await configure(consumers, assignment_interval=15_000)
    (a,) = await consumers.joined(consumers.peer("a", "t4"))
    await consumers.peer("b", "t4").join()
    await consumers.advance(6_000, [a])

    found = (await findings(consumers))["no_target_assignment"]

    assert found.evidence == ("consumer.assignment.interval.ms is 15000",)


async def test_history_of_a_kip_848_group(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await b.leave()
    await a.heartbeat()

    rounds = rebalances(await read_events(consumers.store, consumers.keys))

    assert [(one.cause, one.members, one.protocol, one.outcome) for one in rounds] == [
        ("a at 127.0.0.1 joined", 1, "uniform", "stable"),
        ("b at 127.0.0.1 joined", 2, "uniform", "stable"),
        ("b at 127.0.0.1 left by itself", 1, "uniform", "stable"),
    ]
    assert [one.generation for one in rounds] == [2, 3, 4]


async def join_consumer(connection: Connection) -> None:
    """A member of the KIP-848 group `readers`."""
    heartbeat = request(
        HEARTBEAT, 1, group_id="readers", member_id="m", member_epoch=0, subscribed_topic_names=["t1"],
        topic_partitions=(), rebalance_timeout=timedelta(minutes=5),
    )  # fmt: skip
    assert (await connection.ask(heartbeat)).error_code == 0


async def test_groups_of_all_kinds_are_listed_and_described(shares: ShareWorld) -> None:
    a, b = shares.member("a"), shares.member("b")
    await shares.joined(a, b)
    await join_consumer(shares.brokers[0].connect())
    await shares.produce(4, 6)
    assert await a.fetch(0) == "0-9x1"
    assert await a.ack(0, 1) == "NONE"
    assert await a.acknowledge({0: [(2, 3, (RELEASE,))]}) == "NONE"
    context = shares.brokers[1].context

    listed = [group_views.listed(one) for one in await group_views.view_all(context, "default")]
    models.Groups.model_validate({"groups": listed, "next": None})

    assert [(one["group"], one["type"], one["members"], one["lag"]) for one in listed] == [
        ("jobs", "share", 2, 8),
        ("readers", "consumer", 1, 10),
    ]
    view = await group_views.view(context, "default", "jobs")
    described = group_views.described(view)
    models.Group.model_validate(described)
    (share,) = described["shares"]
    assert (share["start"], share["end"], share["unfinished"], share["returned"]) == (2, 10, 8, 2)
    assert share["in_flight"] == {"member-a": 6} and share["unlocks_ms"] == shares.clock.now_ms + 30_000
    assert [(one["phase"], one["owned"], one["epoch"]) for one in described["members"]] == [
        ("synced", {"t1": (0,)}, a.epoch),
        ("synced", {"t1": (0,)}, b.epoch),
    ]
    consumer = group_views.described(await group_views.view(context, "default", "readers"))
    models.Group.model_validate(consumer)
    assert (consumer["protocol"], consumer["members"][0]["owned"]) == ("uniform", {"t1": (0,)})


async def test_explain_names_what_a_share_group_has_in_flight(shares: ShareWorld) -> None:
    await shares.configure(share_delivery_count_limit=2)
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(4)
    assert await a.fetch(0) == "0-3x1"
    assert await a.acknowledge({0: [(0, 3, (RELEASE,))]}) == "NONE"
    assert await a.fetch() == "0-3x2"

    explained = group_views.explained(await group_views.view(shares.brokers[0].context, "default", "jobs"))
    models.Explanation.model_validate(explained)

    found = {one["kind"]: one for one in explained["findings"]}
    assert explained["summary"].startswith("Share group jobs is Stable since")
    assert found["records_acquired"]["sentence"].startswith("4 records are acquired by 1 member.")
    assert "up to delivery 2 of 2" in found["records_redelivered"]["evidence"][0]
    assert found["records_redelivered"]["severity"] == "trouble"

    assert await a.acknowledge({0: [(0, 3, (RELEASE,))]}) == "NONE"
    (share,) = (await group_views.view(shares.brokers[0].context, "default", "jobs")).snapshot.shares
    assert (share.redelivered, share.failed, share.start) == (4, 4, 4)


async def test_explain_names_a_window_that_is_full(shares: ShareWorld) -> None:
    await shares.configure(share_partition_max_record_locks=100)
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(100, 5)
    assert await a.fetch(0) == "0-99x1"

    view = await group_views.view(shares.brokers[0].context, "default", "jobs")

    (found,) = (one for one in view.findings if one.kind == "window_full")
    assert found.evidence == (
        "t1 0: offset 0 is not finished, the window ends at 100; acquired: test at 127.0.0.1 100",
    )


async def test_explain_names_a_full_window_of_a_group_with_order(shares: ShareWorld) -> None:
    await shares.configure(share_partition_max_record_locks=100, share_ordering="key")
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(99)
    assert await a.fetch(0) == "0-98x1"
    assert "window_full" not in await _kinds(shares)

    await shares.produce(99)
    assert await a.fetch() == "99-197x1"
    assert "window_full" in await _kinds(shares)


async def _kinds(shares: ShareWorld) -> set[str]:
    return {one.kind for one in (await group_views.view(shares.brokers[0].context, "default", "jobs")).findings}


async def test_explain_names_dead_letters(shares: ShareWorld) -> None:
    await shares.create("dlq", 1, errors_deadletterqueue_group_enable="true")
    await shares.configure(errors_deadletterqueue_topic_name="dlq")
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(4)
    assert await a.fetch(0) == "0-3x1"
    context = shares.brokers[0].context

    assert await a.ack(0, 1, REJECT) == "NONE"
    kinds = {one.kind for one in (await group_views.view(context, "default", "jobs")).findings}
    assert {"records_failed", "dead_letters_waiting"} <= kinds
    await context.shares.dead_letters.drain(shares.keys)

    await shares.configure(errors_deadletterqueue_topic_name="absent")
    assert await a.ack(2, 3, REJECT) == "NONE"
    await context.shares.dead_letters.drain(shares.keys)

    view = await group_views.view(context, "default", "jobs")
    (share,) = view.snapshot.shares
    assert (share.failed, share.dead_lettered, share.dropped) == (4, 2, 2)
    found = {one.kind: one for one in view.findings}
    assert "2 records of them were written to a dead-letter topic." in found["records_failed"].sentence
    assert found["dead_letters_dropped"].severity is GroupSeverity.TROUBLE
    assert "the topic absent exist" in found["dead_letters_dropped"].advice
    assert "dead_letters_waiting" not in found


ANNA = Actor("anna", "operator", "10.1.2.3")


async def test_operators_remove_a_member_of_a_kip_848_group(shares: ShareWorld) -> None:
    context = shares.brokers[0].context
    await join_consumer(shares.brokers[0].connect())

    assert (await actions.remove_member(context, ANNA, "default", "readers", "m", "hung"))["member_id"] == "m"

    view = await group_views.view(context, "default", "readers")
    assert (view.snapshot.state, view.snapshot.members) == ("Empty", ())
    (removed,) = (event for event in view.events if event.kind == "member_removed")
    assert (removed.reason, removed.detail.split()[-1]) == ("hung", "tidegate-group@anna")


async def test_operators_delete_a_share_group(shares: ShareWorld) -> None:
    a, context = shares.member("a"), shares.brokers[0].context
    await shares.joined(a)
    with pytest.raises(NonEmptyGroup):
        await actions.delete_group(context, ANNA, "default", "jobs")
    with pytest.raises(InvalidRequest):
        await actions.remove_member(context, ANNA, "default", "jobs", "member-a", "hung")
    with pytest.raises(Problem, match="group reset"):
        await offset_actions.plan_reset(context, ANNA, "default", Reset("jobs", Choice(to_earliest=True)))
    await a.leave()

    await actions.delete_group(context, ANNA, "default", "jobs")

    assert await group_views.view_all(context, "default") == []


async def test_metrics_of_a_share_group(shares: ShareWorld) -> None:
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(4, 6)
    assert await a.fetch(0) == "0-9x1"
    assert await a.acknowledge({0: [(0, 1, (ACCEPT,)), (2, 4, (RELEASE,)), (5, 5, (REJECT,))]}) == "NONE"
    await shares.produce(5)
    broker = shares.brokers[1]
    settings = broker.store.settings.model_copy(update={"lag_sample_interval_ms": 1_000})
    catalog = broker.catalog
    page = ClusterPage(broker.store, settings, catalog.all_topics, ForeignNames(LIVE, catalog.get))
    sampler = LagSampler(broker.store, settings, catalog.get, assigned_partitions, lambda: "1", page, handover_ms=0)

    assert await sampler.sample()

    found, place = Scrape.of(b"".join(page.text).decode()), {"group": "jobs", "topic": "t1", "partition": "0"}
    values = {
        name: found.one(f"tidegate_{name}", **place)
        for name in (
            "group_lag_records", "group_committed_offset", "share_group_records_in_flight",
            "share_group_records_returned", "share_group_redelivered_records", "share_group_failed_records",
        )
    }  # fmt: skip
    assert values == {
        "group_lag_records": 12,  # 2-4, 6-9 and 10-14
        "group_committed_offset": 2,
        "share_group_records_in_flight": 4,
        "share_group_records_returned": 3,
        "share_group_redelivered_records": 0,
        "share_group_failed_records": 1,
    }
    assert found.one("tidegate_group_topic_lag_records", group="jobs", topic="t1") == 12
    assert found.one("tidegate_group_members", group="jobs") == 1
    (_, fields), *_ = await broker.store.command("XRANGE", broker.store.cluster_keys.lag, "-", "+")
    assert any(b"committed=2 " in value and b" lag=12 " in value for value in fields)


LIVE = Brokers(list, list, str)


async def test_explain_names_records_that_wait(shares: ShareWorld) -> None:
    await shares.configure(share_retry_backoff_ms=60_000)
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(3)
    assert await a.fetch(0) == "0-2x1"
    assert await a.acknowledge({0: [(0, 1, (RELEASE,))]}) == "NONE"

    view = await group_views.view(shares.brokers[0].context, "default", "jobs")

    (found,) = (one for one in view.findings if one.kind == "records_waiting")
    assert found.sentence.startswith("2 records wait for") and found.evidence == ("t1 0: 2",)
    (share,) = view.snapshot.shares
    assert (share.in_flight, share.waiting, share.unlocks_ms) == ({"member-a": 1}, 2, shares.clock.now_ms + 30_000)
