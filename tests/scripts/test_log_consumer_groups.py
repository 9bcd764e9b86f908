"""Consumer groups of KIP-848 by the numbers of the specification of logs: section F, scenarios 85 to 98."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.member import subscription
from tests.scripts.test_consumer_configs import configure
from tests.support.consumer_wire import JOIN, Wire, code, wire_of
from tests.support.consumers import NO_NEWS, ConsumerWorld, Peer
from tests.support.valkey import ValkeyServer
from tidegate.groups.consumer.model import HeartbeatAnswer, HeartbeatRequest, Partitions

FENCED, UNKNOWN, INVALID = "FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "INVALID_REQUEST"
STALE, NOT_FOUND = "STALE_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND"


@pytest.fixture
async def wire(valkey: ValkeyServer) -> AsyncIterator[Wire]:
    """A broker with the topics t1 and t4."""
    async with wire_of(valkey) as opened:
        yield opened


async def test_log_85_join_alone(consumers: ConsumerWorld) -> None:
    a = consumers.peer("a", "t4", rebalance_timeout_ms=60_000)

    assert await a.join() == (2, "t4:0,1,2,3")
    answer = await consumers.ask(HeartbeatRequest(a.member_id, a.epoch))
    assert isinstance(answer, HeartbeatAnswer)
    assert (answer.member_epoch, answer.heartbeat_interval_ms) == (2, 5_000)


async def test_log_86_join_validation(wire: Wire) -> None:
    owned = [{"topic_id": wire.topics["t4"], "partitions": (0,)}]
    refused: list[dict[str, Any]] = [
        {"topic_partitions": None},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topic_names": None, "subscribed_topic_regex": None},
        {"topic_partitions": owned},
        {"instance_id": ""},
    ]
    assert [code(await wire.join("m", "t4", **fields)) for fields in refused] == [INVALID] * 5
    assert code(await wire.join("", "t4")) == INVALID
    assert code(await wire.join("m", "t4", server_assignor="sticky")) == "UNSUPPORTED_ASSIGNOR"
    assert [code(await wire.heartbeat("m", epoch)) for epoch in (-3, -2)] == [INVALID] * 2
    assert code(await wire.heartbeat("m", 1)) == NOT_FOUND

    assert code(await wire.join("m")) == "NONE"
    assert code(await wire.heartbeat("other", 1)) == UNKNOWN


async def test_log_87_revocation_before_assignment(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    assert await a.join() == (2, "t4:0,1,2,3")

    assert await b.join() == (3, "")
    assert await a.heartbeat() == (2, "t4:0,1")
    assert await a.own("t4:0,1,2,3") == (2, NO_NEWS)
    assert await a.own("t4:0,1") == (3, NO_NEWS)
    assert await b.own("") == (3, "t4:2,3")


class _Owner:
    """A consumer that gives partitions up some time after it was asked to, and takes new ones at once."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.owned: Partitions = frozenset()

    async def step(self, draw: random.Random) -> None:
        """Join, heartbeat, give up or leave."""
        if not self.peer.epoch > 0:
            answer = await self.peer.join()
        elif draw.random() < 0.1:
            self.owned = frozenset()
            await self.peer.leave()
            self.peer.epoch = 0
            return
        elif draw.random() < 0.4:
            self.owned &= self.peer.assigned
            answer = await self.peer.ask(self.peer.epoch, owned=self.owned)
        else:
            answer = await self.peer.heartbeat()
        if isinstance(answer, str):
            self.owned, self.peer.epoch, self.peer.assigned = frozenset(), 0, frozenset()
        else:
            self.owned |= self.peer.assigned


async def test_log_88_no_double_ownership(consumers: ConsumerWorld) -> None:
    seed = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"TIDEGATE_SEED={seed}")
    rng = random.Random(seed)
    owners = [_Owner(consumers.peer(str(number), "t4", "t5")) for number in range(10)]

    for _ in range(600):
        await rng.choice(owners).step(rng)
        owned = [partition for owner in owners for partition in owner.owned]
        assert len(owned) == len(set(owned))
        await consumers.advance(rng.choice((0, 10)))

    for _ in range(20):
        for owner in owners:
            if not owner.peer.epoch > 0:
                await owner.peer.join()
            owner.owned = owner.peer.assigned
            await owner.peer.own()
            owner.owned = owner.peer.assigned
    assert (await consumers.state())[0] == "Stable"
    assert sorted(len(owner.owned) for owner in owners) == [0] + [1] * 9


async def test_log_89_lost_response(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    await a.heartbeat()
    await a.own("t4:0,1")

    assert await a.own("t4:0", epoch=2) == (3, NO_NEWS)
    assert await a.heartbeat(epoch=2) == FENCED
    assert await a.own("", epoch=7) == FENCED


async def test_log_90_delta_request(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t4"))

    assert await a.heartbeat() == (a.epoch, NO_NEWS)
    assert (await consumers.group()).members[a.member_id].topics == {"t4"}
    assert await a.full("t4:0,1,2,3") == (a.epoch, "t4:0,1,2,3")


async def test_log_91_rebalance_timeout(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4", rebalance_timeout_ms=2_000), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    assert await a.heartbeat() == (2, "t4:0,1")

    for _ in range(3):
        await consumers.advance(500)
        assert await a.own("t4:0,1,2,3") == (2, NO_NEWS)
    await consumers.advance(500)

    assert await a.own("t4:0,1,2,3") == UNKNOWN
    assert await b.heartbeat() == (4, "t4:0,1,2,3")


async def test_log_92_session_timeout(consumers: ConsumerWorld) -> None:
    await configure(consumers, session=6_000)
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    epoch = b.epoch

    await consumers.advance(7_000, beating=[b])

    await consumers.reconcile(b)
    assert (b.epoch, consumers.topics.text(b.assigned)) == (epoch + 1, "t4:0,1,2,3")
    assert await a.heartbeat() == UNKNOWN


async def test_log_93_static_leave_and_return(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4", instance_id="i1"), consumers.peer("b", "t4")
    await consumers.joined(a, b)
    had, epoch = consumers.topics.text(a.assigned), a.epoch

    assert await a.leave(-2) == (-2, NO_NEWS)
    await consumers.advance(40_000, beating=[b])
    assert await b.heartbeat() == (epoch, NO_NEWS)
    assert await consumers.peer("c", "t4", instance_id="i1").join() == (epoch, had)
    assert (await consumers.group()).epoch == epoch


async def test_log_94_static_conflict(consumers: ConsumerWorld) -> None:
    a = consumers.peer("a", "t4", instance_id="i1")
    await consumers.joined(a)
    c = consumers.peer("c", "t4", instance_id="i1")

    assert await c.join() == "UNRELEASED_INSTANCE_ID"
    assert await c.heartbeat(epoch=1, instance_id="i1") == "FENCED_INSTANCE_ID"
    assert await c.heartbeat(epoch=1, instance_id="unknown") == UNKNOWN


async def test_log_95_pattern(consumers: ConsumerWorld, wire: Wire) -> None:
    for name in ("a1", "a2", "b1"):
        consumers.topics.put(name, 1)
    for broker in consumers.brokers:
        broker.consumers.groups.topics.may_describe = lambda org, principal, host, name: name != "a2"
    a = consumers.peer("a", regex="a.*")

    assert await a.join() == (2, "a1:0")
    consumers.topics.put("a3", 1)
    await a.heartbeat()
    await a.own()
    assert consumers.topics.text(a.assigned) == "a1:0 a3:0"
    assert code(await wire.join("b", subscribed_topic_regex="(")) == "INVALID_REGULAR_EXPRESSION"


async def test_log_96_commit_epochs(wire: Wire) -> None:
    assert await wire.commit("a", 1) == NOT_FOUND
    a = await wire.join("a", "t4")
    b = await wire.join("b", "t4")
    await wire.heartbeat("a", a.member_epoch)
    kept = [{"topic_id": wire.topics["t4"], "partitions": (0, 1)}]
    old = (await wire.heartbeat("a", a.member_epoch, topic_partitions=kept)).member_epoch
    assert old == b.member_epoch
    await wire.heartbeat("b", -1)
    moved = await wire.heartbeat("a", old)
    new = moved.member_epoch
    assert new > old and wire.parts(moved) == {"t4": [0, 1, 2, 3]}

    assert await wire.commit("a", old, partition=0) == "NONE"
    assert await wire.commit("a", old, partition=2) == STALE
    assert await wire.commit("a", new + 1) == STALE
    assert await wire.commit("a", new, version=8) == "UNSUPPORTED_VERSION"
    assert await wire.commit("unknown", new) == await wire.commit("", -1) == UNKNOWN


async def test_log_97_type_exclusivity(wire: Wire) -> None:
    shared, classic = f"{wire.group}-s", f"{wire.group}-c"
    joined = await wire.ask(
        76, 1, group_id=shared, member_id="s", member_epoch=0, rack_id=None, subscribed_topic_names=("t4",)
    )
    assert code(joined) == "NONE"
    asked = await _classic_join(wire, group=classic, protocol_type="connect")
    connect = _classic_join(wire, asked.member_id, group=classic, protocol_type="connect")
    assert code(await connect) == "NONE"
    for group in (shared, classic):
        assert code(await wire.join("m", "t4", group_id=group)) == NOT_FOUND

    a = await wire.join("a", "t4")
    asked = await _classic_join(wire)
    assert code(asked) == "MEMBER_ID_REQUIRED"
    joined = await _classic_join(wire, asked.member_id)
    assert (code(joined), joined.generation_id) == ("NONE", a.member_epoch + 1)
    assert code(await _classic_join(wire, protocol_type="connect")) == "INCONSISTENT_GROUP_PROTOCOL"


async def _classic_join(
    wire: Wire, member_id: str = "", *, group: str | None = None, protocol_type: str = "consumer"
) -> Any:
    return await wire.ask(
        JOIN, 5, group_id=group or wire.group, session_timeout=10_000, rebalance_timeout=10_000, member_id=member_id,
        protocol_type=protocol_type, protocols=[{"name": "range", "metadata": subscription(["t4"])}],
    )  # fmt: skip


async def test_log_98_describe(wire: Wire) -> None:
    a = await wire.join("a", "t4")
    await wire.join("b", "t4")
    assert wire.parts(await wire.heartbeat("a", a.member_epoch)) == {"t4": [0, 1]}

    group = await wire.describe()
    assert (code(group), group.group_state) == ("NONE", "Reconciling")
    described = {member.member_id: member for member in group.members}
    assert {member.member_type for member in described.values()} == {1}
    [current], [target] = (
        one.topic_partitions for one in (described["a"].assignment, described["a"].target_assignment)
    )
    assert (current.partitions, target.partitions) == ((0, 1, 2, 3), (0, 1))
    [waiting] = described["b"].target_assignment.topic_partitions
    assert (described["b"].assignment.topic_partitions, waiting.partitions) == ((), (2, 3))
    old = await wire.ask(15, 6, groups=(wire.group,), include_authorized_operations=False)
    assert code(old.groups[0]) == NOT_FOUND
    deleted = await wire.ask(42, 2, groups_names=(wire.group,))
    assert code(deleted.results[0]) == "NON_EMPTY_GROUP"
