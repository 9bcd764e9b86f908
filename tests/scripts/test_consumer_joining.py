"""Scenarios 7, 9-28, 36, 37 and 46 of the specification's consumer groups: joins, epochs, reconciliation."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.support.consumers import NO_NEWS, ConsumerWorld, Peer
from tidegate.groups import configs
from tidegate.groups.consumer import coordinator

FENCED, UNKNOWN, NOT_FOUND = "FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND"


async def test_scenario_7_no_group_and_no_member(consumers: ConsumerWorld) -> None:
    a = consumers.peer("a", "t1", instance_id="i1")
    for epoch in (1, -1, -2):
        assert await a.ask(epoch, instance_id="i1" if epoch == -2 else None) == NOT_FOUND
    assert not await consumers.store.command("EXISTS", consumers.keys.group)

    await consumers.joined(consumers.peer("b", "t1"))

    for epoch in (1, -1, -2):
        assert await a.ask(epoch, instance_id="i1" if epoch == -2 else None) == UNKNOWN


async def test_scenario_9_a_new_group(consumers: ConsumerWorld) -> None:
    a = consumers.peer("a", "t3")

    assert await a.join() == (2, "t3:0,1,2")
    assert await consumers.state() == ("Stable", 2, 2)
    assert await a.heartbeat() == (2, NO_NEWS)
    assert await a.own() == (2, NO_NEWS)
    assert await a.full("t3:0,1,2") == (2, "t3:0,1,2")
    assert await a.join() == (2, "t3:0,1,2")
    assert await a.join("t2") == (3, "t2:0,1")


async def test_scenario_10_an_empty_subscription(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a"), consumers.peer("b", "t1")

    assert await a.join() == (1, "")
    assert await consumers.state() == ("Stable", 1, 1)
    assert await a.leave() == (-1, NO_NEWS)
    assert await consumers.state() == ("Empty", 2, 2)
    assert await b.join() == (3, "t1:0")


async def test_scenario_11_an_empty_subscription_in_a_group(consumers: ConsumerWorld) -> None:
    await consumers.joined(consumers.peer("a", "t1"))

    assert await consumers.peer("b").join() == (2, "")
    assert await consumers.peer("c", "t1").join() == (3, "")


async def test_scenario_12_topics_appear_grow_and_disappear(consumers: ConsumerWorld) -> None:
    a = consumers.peer("a", "new", "t1")
    assert await a.join() == (2, "t1:0")

    consumers.topics.put("new", 1)
    assert await a.heartbeat() == (3, "new:0 t1:0")
    consumers.topics.put("new", 3)
    assert await a.heartbeat() == (4, "new:0,1,2 t1:0")
    consumers.topics.put("other", 3)
    assert await a.heartbeat() == (4, NO_NEWS)
    consumers.topics.delete("new")
    assert await a.heartbeat() == (4, "t1:0")
    assert await a.own() == (5, NO_NEWS)


async def test_scenario_13_what_bumps_the_epoch(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t1", "t2"))

    assert await a.heartbeat(topics=frozenset(["t2", "t1"])) == (2, NO_NEWS)
    assert await a.heartbeat(rack_id="r1") == (2, NO_NEWS)
    assert await a.heartbeat(rebalance_timeout_ms=7_000) == (2, NO_NEWS)
    assert await a.heartbeat(topics=frozenset(["t1", "t2", "t3"])) == (3, "t1:0 t2:0,1 t3:0,1,2")
    member = (await consumers.group()).members[a.member_id]
    assert (member.rack_id, member.rebalance_timeout_ms) == ("r1", 7_000)


async def test_scenario_14_the_preferred_assignor(consumers: ConsumerWorld) -> None:
    a, b, _ = await consumers.joined(*(consumers.peer(name, "t4") for name in "abc"))
    epoch = (await consumers.group()).epoch

    await a.heartbeat(assignor="range")
    group = await consumers.group()
    assert (group.epoch, group.assignor) == (epoch + 1, "range")
    await b.heartbeat(assignor="uniform")
    group = await consumers.group()
    assert (group.epoch, group.assignor) == (epoch + 2, "uniform")


async def test_scenario_15_a_smaller_subscription(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t4", "t1"))

    assert await a.heartbeat(topics=frozenset(["t1"])) == (2, "t1:0")
    assert await a.own("t1:0") == (3, NO_NEWS)


async def test_subscription_shrinks_again_during_a_revocation(consumers: ConsumerWorld) -> None:
    a = consumers.peer("a", "t1", "t2", "t4")
    await a.join()

    assert await a.heartbeat(topics=frozenset({"t2", "t4"})) == (2, "t2:0,1 t4:0,1,2,3")
    assert await a.heartbeat(topics=frozenset({"t1", "t4"})) == (2, "t4:0,1,2,3"), "t2 is asked for, too"
    assert await a.own("t2:0,1 t4:0,1,2,3") == (2, NO_NEWS)
    assert await a.own("t4:0,1,2,3") == (4, "t1:0 t4:0,1,2,3")


async def test_scenario_16_a_full_group(consumers: ConsumerWorld) -> None:
    consumers.use(group_max_size=2)
    a, b, c = (consumers.peer(name, "t4") for name in "abc")
    await consumers.joined(a, b)

    assert await c.join() == "GROUP_MAX_SIZE_REACHED"
    assert await consumers.peer("d", "t4", instance_id="i1").join() == "GROUP_MAX_SIZE_REACHED"
    assert (await b.join())[0] == b.epoch
    await a.leave()
    assert (await c.join())[0] > 0


async def spaced(world: ConsumerWorld) -> None:
    """One second between two targets, as is Kafka's default."""
    await configs.alter(world.store, world.keys, {"consumer.assignment.interval.ms": "1000"}, [])


async def test_scenario_17_the_next_target_waits_for_the_interval(consumers: ConsumerWorld) -> None:
    await spaced(consumers)
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    assert await a.join() == (2, "t4:0,1,2,3")
    assert await b.join() == (2, "")
    assert await consumers.state() == ("Assigning", 3, 2)
    assert await b.heartbeat() == (2, NO_NEWS)

    await consumers.advance(1_000)

    assert await b.heartbeat() == (3, NO_NEWS)
    assert await a.heartbeat() == (2, "t4:0,1")


async def test_smaller_subscription_waits_for_no_target(consumers: ConsumerWorld) -> None:
    await spaced(consumers)
    a = consumers.peer("a", "t1", "t4")
    await a.join()

    assert await a.heartbeat(topics=frozenset({"t1"})) == (2, "t1:0")
    assert await consumers.state() == ("Assigning", 3, 2)
    assert await a.own("t1:0") == (2, NO_NEWS)


async def test_scenario_18_nothing_is_assigned_without_a_heartbeat(consumers: ConsumerWorld) -> None:
    await spaced(consumers)
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    await a.join()
    await b.join()

    await consumers.advance(2_500)

    assert await consumers.state() == ("Assigning", 3, 2)
    assert await b.heartbeat() == (3, NO_NEWS)
    assert await consumers.state() == ("Reconciling", 3, 3)


async def test_scenario_19_a_topic_is_made_again(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t2"))
    old = a.assigned

    consumers.topics.delete("t2")
    assert await a.heartbeat() == (2, "")
    assert await a.own() == (3, NO_NEWS)
    consumers.topics.put("t2", 2)
    assert await a.heartbeat() == (4, "t2:0,1")
    assert not a.assigned & old


async def test_scenario_20_a_second_member(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    assert await a.join() == (2, "t4:0,1,2,3")

    assert await b.join() == (3, "")
    assert await consumers.state() == ("Reconciling", 3, 3)
    assert await a.heartbeat() == (2, "t4:0,1")
    assert await a.heartbeat() == (2, NO_NEWS)
    assert await a.own("t4:0,1,2,3") == (2, NO_NEWS)
    assert await b.heartbeat() == (3, NO_NEWS)
    group = await consumers.group()
    assert consumers.topics.text(frozenset(group.members[a.member_id].held)) == "t4:0,1,2,3"
    assert consumers.topics.text(group.targets[a.member_id]) == "t4:0,1"
    assert await a.own("t4:0,1") == (3, NO_NEWS)
    assert await b.heartbeat() == (3, "t4:2,3")
    assert await consumers.state() == ("Stable", 3, 3)


async def test_scenario_21_a_third_member_during_a_revocation(consumers: ConsumerWorld) -> None:
    a, b, c = (consumers.peer(name, "t4") for name in "abc")
    await a.join()
    await b.join()
    await a.heartbeat()

    assert await c.join() == (4, "")
    assert await a.heartbeat() == (2, NO_NEWS)
    epoch, _ = await a.own("t4:0,1")
    assert epoch == (4 if len(a.assigned) == 2 else 2)  # who keeps only one must confirm that first
    await consumers.reconcile(a, b, c)
    assert sorted(len(peer.assigned) for peer in (a, b, c)) == [1, 1, 2]


async def test_scenario_22_the_previous_epoch(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    await a.heartbeat()
    assert await a.own("t4:0,1") == (3, NO_NEWS)

    assert await a.heartbeat(epoch=2) == FENCED
    assert await a.own("t4:0,1", epoch=2) == (3, NO_NEWS)
    assert await a.own("", epoch=2) == (3, NO_NEWS)
    assert await a.own("t4:0,1,2,3", epoch=2) == FENCED
    assert await a.heartbeat(epoch=4) == FENCED
    assert await a.heartbeat(epoch=1) == FENCED
    assert await a.full("t4:0,1", epoch=2) == (3, "t4:0,1")
    assert await a.heartbeat() == (3, NO_NEWS)


async def test_scenario_23_an_assignment_is_lost(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    await a.heartbeat()
    await a.own("t4:0,1")
    assert await b.heartbeat() == (3, "t4:2,3")  # it gets lost

    assert await b.heartbeat() == (3, NO_NEWS)
    assert await b.own("") == (3, NO_NEWS)
    assert await b.full("") == (3, "t4:2,3")


async def test_scenario_24_a_join_confirms_the_revocation(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    assert await a.heartbeat() == (2, "t4:0,1")

    assert await a.join() == (3, "t4:0,1")
    assert await b.heartbeat() == (3, "t4:2,3")


async def test_scenario_25_a_revocation_is_never_confirmed(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4", rebalance_timeout_ms=1_500), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    assert await a.heartbeat() == (2, "t4:0,1")

    await consumers.advance(1_000, beating=[a])
    assert (await a.heartbeat())[0] == 2
    await consumers.advance(500)
    assert await a.heartbeat() == UNKNOWN
    assert await b.heartbeat() == (4, "t4:0,1,2,3")


async def test_scenario_26_the_time_starts_with_the_reply_to_the_member(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4", rebalance_timeout_ms=1_500), consumers.peer("b", "t4")
    await a.join()
    await b.join()

    await consumers.advance(2_500)
    assert await a.heartbeat() == (2, "t4:0,1")


async def test_scenario_27_random_joins_and_leaves(consumers: ConsumerWorld) -> None:
    draw = random.Random(848)
    joined: list[Peer] = []
    for number in range(220):
        await consumers.advance(draw.choice([0, 0, 300]))
        what = draw.random()
        if not joined or (what < 0.15 and len(joined) < 6):
            joined.append(consumers.peer(f"{number}", *draw.sample(["t3", "t4", "t6"], 2)))
            answer = await joined[-1].join()
        elif what < 0.25:
            answer = await joined.pop(draw.randrange(len(joined))).leave()
        else:
            answer = await draw.choice(joined).own()
        assert not isinstance(answer, str), f"step {number}: {answer}"
        owned = [partition for one in joined for partition in one.assigned]
        assert len(owned) == len(set(owned)), f"step {number}: two members have a partition"
    await consumers.reconcile(*joined)


async def test_scenario_28_a_member_leaves_twice(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    epoch = b.epoch

    assert await a.leave() == (-1, NO_NEWS)
    assert await a.leave() == UNKNOWN
    assert await consumers.state() == ("Assigning", epoch + 1, epoch)
    assert await b.heartbeat() == (epoch + 1, "t4:0,1,2,3")


async def test_scenario_36_a_silent_member(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    epoch = b.epoch

    await consumers.advance(44_000, beating=[b])
    assert len((await consumers.group()).members) == 2
    await consumers.advance(1_000)
    group = await consumers.group()
    assert (set(group.members), group.epoch) == ({b.member_id}, epoch + 1)
    assert await a.heartbeat() == UNKNOWN
    assert (await a.join())[0] == epoch + 2


async def test_scenario_37_wrong_epochs_extend_no_session(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    epoch = a.epoch
    for _ in range(44):
        await consumers.advance(1_000, beating=[b])
        assert await a.heartbeat(epoch=epoch + 1) == FENCED
    await consumers.advance(1_000)

    assert await a.heartbeat(epoch=epoch + 1) == UNKNOWN


async def test_scenario_46_a_pattern_matches_what_a_member_may_describe(consumers: ConsumerWorld) -> None:
    rules = {"User:anna": {"t1", "t2"}, "User:bob": {"t1", "t2", "t3"}}
    for broker in consumers.brokers:
        broker.consumers.groups.topics.may_describe = lambda org, principal, host, name: (
            (org, host) == ("default", "127.0.0.1") and name in rules[principal]
        )
    a, b = consumers.peer("a", regex="t[1-4]"), consumers.peer("b", regex="t[1-4]")

    assert await a.ask(0, **joining(a), principal="User:anna") == (2, "t1:0 t2:0,1")
    assert await b.ask(0, **joining(b), principal="User:bob") == (3, "t3:0,1,2")
    rules["User:anna"].add("t4")
    consumers.topics.put("t9", 1)  # any member's heartbeat decides for all, by the rights of each
    await b.ask(b.epoch, principal="User:bob")
    await a.ask(a.epoch, owned=a.assigned, principal="User:anna")
    text = consumers.topics.text((await consumers.group()).targets[a.member_id])
    assert text is not None and "t4:0,1,2,3" in text


def joining(peer: Peer) -> dict[str, Any]:
    """What a member with a pattern sends when it joins."""
    return {"rebalance_timeout_ms": 60_000, "topics": frozenset[str](), "regex": peer.regex, "owned": frozenset[Any]()}


async def test_decision_on_many_subscriptions_is_taken_beside_the_event_loop(
    consumers: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    decide = coordinator.decide

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return decide(*args)

    monkeypatch.setattr(coordinator, "decide", watched)
    await consumers.joined(consumers.peer("a", "t1"))
    assert set(threads) == {threading.main_thread()}
    for number in range(300):
        consumers.topics.put(f"many-{number}", 1)
    threads.clear()

    b = consumers.peer("b", *(f"many-{number}" for number in range(300)))
    await b.join()
    c = consumers.peer("c", regex="many-.*")
    await c.join()

    assert threads
    assert threading.main_thread() not in threads
