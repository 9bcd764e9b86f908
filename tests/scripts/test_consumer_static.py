"""Scenarios 29-35 of the specification's consumer groups: static members."""

from __future__ import annotations

from tests.support.consumers import NO_NEWS, ConsumerWorld, Peer
from tidegate.diagnosis.group_snapshot import MetadataDecoders, read_snapshot

FENCED, UNKNOWN, UNRELEASED = "FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "UNRELEASED_INSTANCE_ID"
FENCED_INSTANCE = "FENCED_INSTANCE_ID"


async def static(consumers: ConsumerWorld, *names: str) -> list[Peer]:
    """Stable members of `t4`, the instance of each named after it."""
    return [*await consumers.joined(*(consumers.peer(name, "t4", instance_id=f"i-{name}") for name in names))]


async def test_scenario_29_the_instance_is_in_use(consumers: ConsumerWorld) -> None:
    (a,) = await static(consumers, "a")

    assert await consumers.peer("b", "t4", instance_id="i-a").join() == UNRELEASED
    # Better than Kafka, where a member whose join was not answered waits for the end of its own session.
    assert await a.join() == (2, "t4:0,1,2,3")
    assert await a.heartbeat() == (2, NO_NEWS)


async def test_scenario_30_wrong_instances(consumers: ConsumerWorld) -> None:
    a, b = await static(consumers, "a", "b")
    c = consumers.peer("c", "t1")
    await c.join()

    assert await c.heartbeat(instance_id="i-other") == UNKNOWN
    assert await c.heartbeat(instance_id="i-a") == FENCED_INSTANCE
    assert await c.ask(-1, instance_id="i-a") == FENCED_INSTANCE
    assert await c.ask(-2, instance_id="i-a") == FENCED_INSTANCE
    await consumers.reconcile(a, b, c)
    assert isinstance(await a.heartbeat(), tuple)
    assert isinstance(await a.heartbeat(instance_id="i-a"), tuple)


async def test_scenario_31_a_static_member_restarts(consumers: ConsumerWorld) -> None:
    a, b = await static(consumers, "a", "b")
    had, epoch = a.assigned, a.epoch

    assert await a.leave(-2) == (-2, NO_NEWS)
    assert await consumers.state() == ("Reconciling", epoch, epoch)
    assert await b.heartbeat() == (epoch, NO_NEWS)
    assert await a.heartbeat(epoch=epoch) == FENCED
    again = consumers.peer("a2", "t4", instance_id="i-a")
    assert await again.join() == (epoch, consumers.topics.text(had))
    assert await consumers.state() == ("Stable", epoch, epoch)
    assert await a.heartbeat(epoch=epoch) == UNKNOWN
    assert await a.ask(-1, instance_id="i-a") == FENCED_INSTANCE


async def test_scenario_32_the_same_id_and_another_subscription(consumers: ConsumerWorld) -> None:
    a, _ = await static(consumers, "a", "b")
    had, epoch = consumers.topics.text(a.assigned), a.epoch
    await a.leave(-2)
    assert await a.join() == (epoch, had)

    await a.leave(-2)
    answer = await a.join("t4", "t1")
    assert answer[0] == epoch + 1


async def test_scenario_33_a_member_leaves_during_its_revocation(consumers: ConsumerWorld) -> None:
    (a,) = await static(consumers, "a")
    b = consumers.peer("b", "t4", instance_id="i-b")
    await b.join()
    assert await a.heartbeat() == (2, "t4:0,1")

    await a.leave(-2)
    assert await b.heartbeat() == (3, "t4:2,3")
    await b.leave(-2)
    assert (await consumers.state())[0] == "Reconciling"
    await consumers.advance(44_000)
    assert len((await consumers.group()).members) == 2


async def test_scenario_34_a_static_member_does_not_return(consumers: ConsumerWorld) -> None:
    a, b = await static(consumers, "a", "b")
    epoch = a.epoch
    await a.leave(-2)

    await consumers.advance(44_000, beating=[b])
    assert len((await consumers.group()).members) == 2
    await consumers.advance(1_000)
    group = await consumers.group()
    assert (set(group.members), group.epoch) == ({b.member_id}, epoch + 1)


async def test_scenario_35_an_administrator_removes_members(consumers: ConsumerWorld) -> None:
    a, b = await static(consumers, "a", "b")

    assert await consumers.remove("", "i-a") == "NONE"
    assert await a.heartbeat() == UNKNOWN
    assert await consumers.remove(b.member_id) == "NONE"
    assert await consumers.remove(b.member_id) == "UNKNOWN_MEMBER_ID"
    assert (await consumers.state())[0] == "Empty"


async def test_snapshot_shows_the_members_of_a_consumer_group(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4", instance_id="i-a"), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    await a.heartbeat()

    nothing = MetadataDecoders(lambda _: None, lambda _: None)
    snapshot = await read_snapshot(consumers.store, consumers.keys, "1", nothing)

    assert (snapshot.type, snapshot.state, snapshot.generation, snapshot.protocol) == (
        "consumer", "Reconciling", 3, "uniform"
    )  # fmt: skip
    assert [(one.member_id, one.instance_id, one.phase, one.owned) for one in snapshot.members] == [
        (a.member_id, "i-a", "revoking", {"t4": (0, 1, 2, 3)}),
        (b.member_id, None, "waiting", {}),
    ]
    assert snapshot.topics == {"t4"}
