"""What goes wrong between a group's two barriers, one case each: a request lost, a reply lost, somebody dead or late.

The cases are those that guides for authors of client libraries name: coordinators moved while groups rebalance,
packets black-holed between one member and one broker, members that stop anywhere. Three broker processes, raw
members, each with a connection (and where it matters a network) of its own. `test_double_barrier_storm` throws
them all at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import CONNECTIONS_STAY, Cluster
from tests.kit.member import Member, coordinator, subscription
from tests.kit.wire import RawClient, request
from tests.support.barriers import SHORT_MS, Group, plan, stabilize
from tests.support.broker_logs import complaints, tracebacks
from tests.support.proxy import BOTH, Way

SETTINGS = {
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
    "TIDEGATE_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
    "TIDEGATE_NUM_PARTITIONS": "12",
}
NONE = ErrorCode.none
REBALANCE = ErrorCode.rebalance_in_progress


async def make_topic(address: str) -> None:
    async with await RawClient.connect(address) as client:
        await client.ask(request(
            3, 12, topics=[{"topic_id": None, "name": "t"}], allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        ))  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS, constants=CONNECTIONS_STAY) as running:
        asyncio.run(make_topic(running.brokers[0].address))
        yield running
        assert not tracebacks(running)
        assert complaints(running) == []


@pytest.fixture
async def group(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """A group of its own for each case, on three brokers that run."""
    opened = Group(cluster, request.node.name)
    yield opened
    await opened.close()
    for broker in cluster.brokers:
        if broker.process is not None:
            broker.signal(signal.SIGCONT)
        else:
            broker.start()
            await asyncio.to_thread(broker.wait_ready)


async def lost(waiting: asyncio.Task[Any]) -> None:
    """The client gives up waiting; its connection is left as it is."""
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def trio(group: Group, *, victim: int = -1, **traits: Any) -> list[Member]:
    """Three members in a Stable generation, one on each broker, the leader first; the doomed one's session is short."""
    short = [{"session_timeout_ms": SHORT_MS} if place == victim else {} for place in range(3)]
    brokers = group.cluster.brokers
    members = [await group.member(broker, **traits, **own) for broker, own in zip(brokers, short, strict=True)]
    await stabilize(members[0])
    return await group.stable(*members)


async def through_the_join_barrier(group: Group, first: Member, *others: Member) -> list[Any]:
    """All are through the join barrier, none has synced; their answers.

    Where the group is Stable the first is its leader, for a leader's join begins a rebalance.
    """
    opening = asyncio.create_task(first.join())
    await group.until_joined(1)
    answers = [*await asyncio.gather(*(member.join() for member in others)), await opening]
    assert {(answer.error_code, answer.generation_id) for answer in answers} == {(NONE, group.generation)}
    return [answers[-1], *answers[:-1]]


async def rounds_begun(group: Group, newcomer: Member, *others: Member) -> list[asyncio.Task[None]]:
    """Rounds of these members, all in the join barrier.

    The newcomer's join begins the rebalance; the others ask after it, for a follower that asks a Stable group is
    answered with the generation that there is.
    """
    rounds = [asyncio.create_task(newcomer.round())]
    await group.until_joined(1)
    rounds += [asyncio.create_task(member.round()) for member in others]
    await group.until_joined(1 + len(others))
    return rounds


# -- the join barrier: a group stuck in PreparingRebalance


async def test_join_missing_member_is_awaited_until_its_rebalance_timeout_and_no_longer(group: Group) -> None:
    """Any delay on one member delays all, whatever its heartbeats say, but not forever."""
    one, two, busy = await trio(group, rebalance_timeout_ms=6_000)
    newcomer = await group.member(group.cluster.brokers[0], rebalance_timeout_ms=6_000)
    joins = await rounds_begun(group, newcomer, one, two)
    while group["state"] == "PreparingRebalance" and busy.member_id in group.member_ids:
        assert await busy.heartbeat() in (REBALANCE, ErrorCode.unknown_member_id)
        await asyncio.sleep(0.05)

    await asyncio.gather(*joins)
    assert group.member_ids == {one.member_id, two.member_id, newcomer.member_id}
    assert await busy.heartbeat() is ErrorCode.unknown_member_id


async def test_heartbeats_that_stop_during_the_join_barrier_end_the_wait_with_the_session(group: Group) -> None:
    one, two, three = await trio(group)
    silent = await group.member(group.cluster.brokers[0], session_timeout_ms=SHORT_MS)
    await stabilize(one, two, three, silent)
    newcomer = await group.member(group.cluster.brokers[1])
    waiting = asyncio.create_task(newcomer.join())
    await group.until_joined(1)

    await asyncio.gather(one.join(), two.join(), three.join(), waiting)

    assert silent.member_id not in group.member_ids
    await stabilize(one, two, three, newcomer)


async def test_member_that_leaves_during_the_join_barrier_ends_it(group: Group) -> None:
    one, two, three = await trio(group)
    generation = group.generation
    newcomer = await group.member(group.cluster.brokers[0])
    joins = await rounds_begun(group, newcomer, one, two)

    await three.leave()

    await asyncio.gather(*joins)
    assert one.generation == two.generation == newcomer.generation == generation + 1


async def test_join_member_stopped_inside_the_barrier_does_not_block_the_next_one(group: Group) -> None:
    """Its join counts, for nobody knows that it is gone; the sync barrier then does without it."""
    one, two, three = await trio(group)
    newcomer, network = await group.member_through(
        group.cluster.brokers[1], session_timeout_ms=SHORT_MS, rebalance_timeout_ms=SHORT_MS
    )
    parked = asyncio.create_task(newcomer.join())
    await group.until_joined(1)
    network.black_hole(*BOTH)
    await lost(parked)

    await stabilize(one, two, three, until=lambda: len(group.events("member_expired")) == 1)
    assert group.events("member_expired")[0]["member"] == newcomer.member_id


# -- joins whose request or reply is lost


async def test_lost_join_response_costs_no_place_and_no_generation(group: Group) -> None:
    one, two, three = await trio(group)
    generation = group.generation + 1
    three.client, network = await group.connect_through(group.cluster.brokers[2])
    newcomer = await group.member(group.cluster.brokers[0])
    waiting = asyncio.create_task(newcomer.join())
    await group.until_joined(1)
    lost_join = asyncio.create_task(three.join())
    await group.until_joined(2)
    network.black_hole(Way.DOWN)
    answers = await asyncio.gather(one.join(), two.join(), waiting)
    await lost(lost_join)

    three.client = await group.connect(group.cluster.brokers[0])
    again = await three.join()

    assert (again.error_code, again.generation_id) == (NONE, generation)
    assert {answer.generation_id for answer in answers} == {generation}
    await stabilize(one, two, three, newcomer)
    assert group.generation == generation


async def test_join_new_member_with_a_lost_response_is_removed(group: Group) -> None:
    """It never learned its id: nobody will ever sync or heartbeat for it."""
    one, two, three = await trio(group, rebalance_timeout_ms=SHORT_MS)
    ghost, network = await group.member_through(
        group.cluster.brokers[0], session_timeout_ms=SHORT_MS, rebalance_timeout_ms=SHORT_MS
    )
    ghost.client.send(ghost.join_request(2))
    await group.until_joined(1)
    network.black_hole(*BOTH)

    await stabilize(one, two, three, until=lambda: len(group.events("member_expired")) == 1)
    assert group.member_ids == {one.member_id, two.member_id, three.member_id}


async def test_join_assigned_id_lost_blocks_no_member(group: Group) -> None:
    """The first reply to a newcomer (MEMBER_ID_REQUIRED) is lost: it asks again, and has another id."""
    one, two, three = await trio(group)
    newcomer, network = await group.member_through(group.cluster.brokers[0], session_timeout_ms=SHORT_MS)
    network.black_hole(Way.DOWN)
    asked = asyncio.create_task(newcomer.client.ask(newcomer.join_request()))
    await asyncio.sleep(0.2)
    await lost(asked)
    newcomer.client = await group.connect(group.cluster.brokers[1])

    await stabilize(one, two, three, newcomer)
    assert len(group.member_ids) == 4


async def test_join_that_arrives_late_disturbs_no_member(group: Group) -> None:
    """A request lies in the network while its member rejoins by another way; then the network gives it back."""
    one, two, three = await trio(group)
    newcomer = await group.member(group.cluster.brokers[0])
    three.client, network = await group.connect_through(group.cluster.brokers[2])
    network.black_hole(Way.UP)
    delayed = asyncio.create_task(three.join())
    await asyncio.sleep(0)
    three.client = await group.connect(group.cluster.brokers[1])
    await stabilize(one, two, three, newcomer)
    generation = group.generation
    assert not three.is_leader

    network.restore()

    late = await delayed
    assert (late.error_code, late.generation_id, late.member_id) == (NONE, generation, three.member_id)
    assert group.generation == generation
    await stabilize(one, two, three, newcomer)


# -- the leader


async def test_leader_that_dies_before_it_syncs_is_replaced(group: Group) -> None:
    """The group is in CompletingRebalance, and who is to end it is gone."""
    leader, two, three = await trio(group, victim=0)
    await through_the_join_barrier(group, leader, two, three)
    waiting = [asyncio.create_task(member.sync()) for member in (two, three)]
    await group.until_synced(1)

    assert [(await task).error_code for task in waiting] == [REBALANCE, REBALANCE]
    await stabilize(two, three)
    assert group.member_ids == {two.member_id, three.member_id}
    assert {event["member"] for event in group.events("member_expired")} == {leader.member_id}


async def test_leader_that_heartbeats_and_never_syncs_is_replaced(group: Group) -> None:
    """Its session is fine; the sync barrier has a deadline of its own."""
    leader, two, three = await trio(group, rebalance_timeout_ms=SHORT_MS)
    await through_the_join_barrier(group, leader, two, three)
    waiting = [asyncio.create_task(member.sync()) for member in (two, three)]
    await group.until_synced(1)
    while await leader.heartbeat() in (NONE, REBALANCE):
        await asyncio.sleep(0.05)

    assert [(await task).error_code for task in waiting] == [REBALANCE, REBALANCE]
    await stabilize(two, three)
    assert group.events("member_expired")[0]["cause"] == "did_not_sync"


async def test_zombie_leader_assigns_nothing_and_commits_nothing(group: Group) -> None:
    """It slept between the barriers; the group has gone on without it when it hands in its plan."""
    zombie, two, three = await trio(group, victim=0)
    joined, *_ = await through_the_join_barrier(group, zombie, two, three)
    await stabilize(two, three)
    generation = group.generation

    plan_of_old = dict.fromkeys(plan(joined), b"the zombie's")
    assert (await zombie.sync(plan_of_old)).error_code is ErrorCode.unknown_member_id
    assert (await zombie.commit("t", {0: 7}))[0] is ErrorCode.unknown_member_id
    assert await zombie.heartbeat() is ErrorCode.unknown_member_id

    assert (await two.committed("t", [0])) == {0: -1}
    assert group.generation == generation
    zombie.member_id, zombie.generation = "", -1
    await stabilize(two, three, zombie)


async def test_leader_with_a_stale_generation_assigns_nothing(group: Group) -> None:
    """It is a member still, but the plan that it was computing is for members of before."""
    leader, two, three = await trio(group)
    joined, *_ = await through_the_join_barrier(group, leader, two, three)
    newcomer = await group.member(group.cluster.brokers[1])
    joining = asyncio.create_task(newcomer.join())
    await group.until_joined(1)

    assert (await leader.sync(plan(joined))).error_code is REBALANCE
    await stabilize_after(joining, leader, two, three, newcomer)
    stale = Member(leader.client, group.group_id, member_id=leader.member_id, generation=joined.generation_id)
    for broker in group.cluster.brokers:
        stale.client = await group.connect(broker)
        assert (await stale.sync(plan(joined))).error_code is ErrorCode.illegal_generation
        assert await stale.heartbeat() is ErrorCode.illegal_generation
        assert (await stale.commit("t", {0: 7}))[0] is ErrorCode.illegal_generation
    assert (await two.committed("t", [0])) == {0: -1}


async def stabilize_after(joining: asyncio.Task[Any], *members: Member) -> None:
    """As `stabilize`, where the last member has asked to join already."""
    *others, last = members

    async def finish() -> None:
        joined = await joining
        assert joined.error_code is NONE
        if (await last.sync(plan(joined))).error_code is not NONE:
            await last.round()

    finishing = asyncio.create_task(finish())
    rounds = [asyncio.create_task(member.round()) for member in others]
    await asyncio.gather(finishing, *rounds)
    await stabilize(*members)


# -- syncs whose reply is lost


async def test_sync_lost_response_is_repeated_by_any_broker(group: Group) -> None:
    leader, two, three = await trio(group)
    joined, *_ = await through_the_join_barrier(group, leader, two, three)
    two.client, network = await group.connect_through(group.cluster.brokers[1])
    waiting = [asyncio.create_task(member.sync()) for member in (two, three)]
    await group.until_synced(1)
    network.black_hole(Way.DOWN)
    assert (await leader.sync(plan(joined))).error_code is NONE
    assert (await waiting[1]).assignment == three.member_id.encode()
    await lost(waiting[0])

    for broker in group.cluster.brokers:
        two.client = await group.connect(broker)
        assert (await two.sync()).assignment == two.member_id.encode()
    assert (group.generation, group["state"]) == (joined.generation_id, "Stable")


async def test_sync_leader_with_a_lost_response_cannot_assign_twice(group: Group) -> None:
    """Others work by the first plan already: the second, whatever it says, changes nothing."""
    leader, two, three = await trio(group)
    joined, *_ = await through_the_join_barrier(group, leader, two, three)
    leader.client, network = await group.connect_through(group.cluster.brokers[0])
    network.black_hole(Way.DOWN)
    unanswered = asyncio.create_task(leader.sync(plan(joined)))
    assert (await two.sync()).assignment == two.member_id.encode()
    await lost(unanswered)

    leader.client = await group.connect(group.cluster.brokers[1])
    again = await leader.sync(dict.fromkeys(plan(joined), b"another plan"))

    assert (again.error_code, again.assignment) == (NONE, leader.member_id.encode())
    assert (await three.sync()).assignment == three.member_id.encode()
    assert group.generation == joined.generation_id


async def test_member_that_stops_inside_the_sync_barrier_costs_one_more_round(group: Group) -> None:
    leader, two, three = await trio(group, victim=2)
    joined, *_ = await through_the_join_barrier(group, leader, two, three)
    three.client, network = await group.connect_through(group.cluster.brokers[2])
    parked = asyncio.create_task(three.sync())
    await group.until_synced(2)
    network.black_hole(*BOTH)
    await lost(parked)
    assert (await leader.sync(plan(joined))).error_code is NONE
    assert (await two.sync()).error_code is NONE

    await stabilize(leader, two, until=group.lacks(three.member_id))
    assert group.generation == joined.generation_id + 1


async def test_member_that_leaves_during_the_sync_barrier_sends_all_back(group: Group) -> None:
    leader, two, three = await trio(group)
    await through_the_join_barrier(group, leader, two, three)
    waiting = asyncio.create_task(two.sync())
    await group.until_synced(2)

    await three.leave()

    assert (await waiting).error_code is REBALANCE
    await stabilize(leader, two)


# -- the coordinator moves


async def test_coordinator_dies_with_members_parked_in_the_join_barrier(group: Group) -> None:
    """They ask another broker, and find their places kept: one generation, nobody removed."""
    one, two, three = await trio(group)
    generation = group.generation + 1
    victim = group.cluster.brokers[0]
    for member in (one, two):
        member.client = await group.connect(victim)
    three.client = await group.connect(group.cluster.brokers[1])
    newcomer = await group.member(group.cluster.brokers[1])
    waiting = asyncio.create_task(newcomer.join())
    await group.until_joined(1)
    parked = [asyncio.create_task(member.join()) for member in (one, two)]
    await group.until_joined(3)

    victim.kill()
    for task in parked:
        with suppress(OSError, EOFError):
            await task
    for member in (one, two):
        member.client = await group.connect(group.cluster.brokers[2])
    again = [asyncio.create_task(member.join()) for member in (one, two)]
    answers = await asyncio.gather(three.join(), waiting, *again)

    assert [(answer.error_code, answer.generation_id) for answer in answers] == [(NONE, generation)] * 4
    await stabilize(one, two, three, newcomer)
    assert group.events("member_expired") == []


async def test_coordinator_dies_between_the_barriers(group: Group) -> None:
    one, two, three = await trio(group)
    for member in (one, two, three):
        member.client = await group.connect(group.cluster.brokers[1])
    joined, *_ = await through_the_join_barrier(group, one, two, three)

    group.cluster.brokers[1].kill()
    for member in (one, two, three):
        member.client = await group.connect(group.cluster.brokers[2])
    synced = await asyncio.gather(one.sync(plan(joined)), two.sync(), three.sync())

    assert [answer.error_code for answer in synced] == [NONE] * 3
    await stabilize(one, two, three)
    assert group.generation == joined.generation_id


async def test_coordinator_dies_between_the_leader_s_sync_and_the_followers_replies(group: Group) -> None:
    """The plan is stored; the broker that was to publish it is paused, and dies."""
    leader, two, three = await trio(group)
    victim = group.cluster.brokers[0]
    for member in (two, three):
        member.client = await group.connect(victim)
    leader.client = await group.connect(group.cluster.brokers[1])
    joined, *_ = await through_the_join_barrier(group, leader, two, three)
    waiting = [asyncio.create_task(member.sync()) for member in (two, three)]
    await group.until_synced(1)
    victim.signal(signal.SIGSTOP)
    assert (await leader.sync(plan(joined))).error_code is NONE
    victim.kill()
    for task in waiting:
        with pytest.raises((OSError, EOFError)):
            await task

    for member, broker in zip((two, three), group.cluster.brokers[1:], strict=True):
        member.client = await group.connect(broker)
        assert (await member.sync()).assignment == member.member_id.encode()

    assert (group.generation, group["state"]) == (joined.generation_id, "Stable")


async def test_coordinator_that_stood_still_wakes_and_harms_nothing(group: Group) -> None:
    """Its members went elsewhere and rejoined; what it had parked ends without a second life."""
    one, two, three = await trio(group)
    frozen = group.cluster.brokers[2]
    three.client = await group.connect(frozen)
    newcomer = await group.member(group.cluster.brokers[0])
    waiting = asyncio.create_task(newcomer.join())
    await group.until_joined(1)
    parked = asyncio.create_task(three.join())
    await group.until_joined(2)
    frozen.signal(signal.SIGSTOP)
    await lost(parked)
    three.client = await group.connect(group.cluster.brokers[1])
    again = asyncio.create_task(three.join())
    answers = await asyncio.gather(one.join(), two.join(), waiting, again)
    generation = answers[0].generation_id
    await stabilize(one, two, three, newcomer)

    frozen.signal(signal.SIGCONT)
    await asyncio.to_thread(frozen.wait_ready)
    await asyncio.sleep(0.5)

    assert {answer.generation_id for answer in answers} == {generation}
    await stabilize(one, two, three, newcomer)
    assert group.events("member_expired") == []


@pytest.mark.parametrize("harm", ["kill", "drain", "pause"])
async def test_find_coordinator_answer_changes_without_a_new_generation(group: Group, harm: str) -> None:
    one, two, three = await trio(group)
    generation = group.generation
    ports = {broker.port: broker for broker in group.cluster.brokers}
    named = ports[await coordinator(one.client, group.group_id)]
    others = [broker for broker in group.cluster.brokers if broker is not named]

    match harm:
        case "kill":
            named.kill()
        case "drain":
            assert await asyncio.to_thread(named.drain) == 0
        case "pause":
            named.signal(signal.SIGSTOP)
    asked = await group.connect(others[0])
    async with asyncio.timeout(60):
        while await coordinator(asked, group.group_id) == named.port:
            await asyncio.sleep(0.05)
    for member in (one, two, three):
        member.client = await group.connect(ports[await coordinator(asked, group.group_id)])
        assert await member.heartbeat() is NONE
    if harm == "pause":
        named.signal(signal.SIGCONT)
        await asyncio.to_thread(named.wait_ready)

    assert (group.generation, group["state"]) == (generation, "Stable")


async def test_members_that_disagree_about_the_coordinator_form_one_group(group: Group) -> None:
    """Every step of every member goes to another broker than its last."""
    members = [await group.member(broker) for broker in group.cluster.brokers]
    brokers = group.cluster.brokers

    async def step(iteration: int) -> None:
        for place, member in enumerate(members):
            member.client = await group.connect(brokers[(place + iteration) % 3])

    first = await through_the_join_barrier(group, *members)
    assert {answer.generation_id for answer in first} == {first[0].generation_id}
    await step(1)
    plans = [plan(answer) for answer in first]
    synced = await asyncio.gather(*(member.sync(own) for member, own in zip(members, plans, strict=True)))
    assert [answer.assignment for answer in synced] == [member.member_id.encode() for member in members]
    await step(2)
    assert [await member.heartbeat() for member in members] == [NONE] * 3
    await step(3)
    for number, member in enumerate(members):
        assert (await member.commit("t", {number: number}))[number] is NONE
    await step(4)
    assert await members[0].committed("t", [0, 1, 2]) == {0: 0, 1: 1, 2: 2}


# -- heartbeats and commits


async def test_session_silent_member_is_replaced_and_rejoins_under_another_id(group: Group) -> None:
    one, two, three = await trio(group)
    silent = await group.member(group.cluster.brokers[1], session_timeout_ms=SHORT_MS)
    await stabilize(one, two, three, silent)
    before = silent.member_id

    await stabilize(one, two, three, until=group.lacks(before))

    assert await silent.heartbeat() is ErrorCode.unknown_member_id
    assert (await silent.commit("t", {3: 9}))[3] is ErrorCode.unknown_member_id
    assert (await silent.join()).error_code is ErrorCode.unknown_member_id
    silent.member_id, silent.generation = "", -1
    await stabilize(one, two, three, silent)
    assert silent.member_id != before


async def test_members_outbound_packets_lost_until_the_network_recovers(group: Group) -> None:
    """Shorter than a session: nothing happens. Longer: the late heartbeats are those of nobody."""
    one, two, three = await trio(group)
    cut_off, network = await group.member_through(group.cluster.brokers[1], session_timeout_ms=SHORT_MS)
    await stabilize(one, two, three, cut_off)
    generation = group.generation

    network.black_hole(Way.UP)
    answer = asyncio.create_task(cut_off.heartbeat())
    await asyncio.sleep(SHORT_MS / 3000)
    network.restore()
    assert await answer is NONE
    assert group.generation == generation

    network.black_hole(Way.UP)
    answer = asyncio.create_task(cut_off.heartbeat())
    await stabilize(one, two, three, until=group.lacks(cut_off.member_id))
    after = group.generation
    network.restore()
    assert await answer is ErrorCode.unknown_member_id
    assert group.generation == after > generation


async def test_commit_before_the_join_barrier_is_stored_and_refused_after(group: Group) -> None:
    one, two, three = await trio(group)
    newcomer = await group.member(group.cluster.brokers[0])
    waiting = asyncio.create_task(newcomer.join())
    await group.until_joined(1)

    assert await one.heartbeat() is REBALANCE
    assert (await one.commit("t", {5: 50}))[5] is NONE
    answers = await asyncio.gather(one.join(), two.join(), three.join(), waiting)
    assert (await one.commit("t", {5: 51}))[5] is REBALANCE
    leading = next(answer for answer in answers if answer.leader == answer.member_id)
    synced = await asyncio.gather(*(member.sync(plan(leading)) for member in (one, two, three, newcomer)))

    assert [answer.error_code for answer in synced] == [NONE] * 4
    assert await newcomer.committed("t", [5]) == {5: 50}
    assert (await one.commit("t", {5: 52}))[5] is NONE


async def test_join_without_common_protocol_is_refused_and_harms_no_member(group: Group) -> None:
    one, two, three = await trio(group)
    generation = group.generation
    other = await group.member(group.cluster.brokers[0], protocols=("their own",), metadata=subscription(["t"]))

    assert (await other.join()).error_code is ErrorCode.inconsistent_group_protocol

    await stabilize(one, two, three)
    assert (group.generation, len(group.member_ids)) == (generation, 3)
