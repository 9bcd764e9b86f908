"""Random lives of a classic group over two brokers; after every step the promises hold, whatever happened."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from broker.errors import KafkaError
from broker.groups.model import Joined, JoinRefused, Synced
from tests.support.groups import Peer, World

PROTOCOLS = (
    (("range", b"r"), ("coop", b"c")),
    (("coop", b"c"), ("range", b"r")),
    (("range", b"other"),),
    (("range", b"r"), ("sticky", b"s")),
)


class Life:
    """One group, the peers that try their luck with it, and what they were told."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.peers: list[Peer] = []
        self.under_way: dict[Peer, asyncio.Task[Any]] = {}
        self.opened: dict[int, tuple[str, str]] = {}
        self.led: dict[int, str] = {}
        self.lists: dict[int, frozenset[str]] = {}
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.generation = 0

    # -- steps

    async def step(self) -> str:
        """One thing happens."""
        steps = [self.newcomer, self.join, self.join, self.join, self.sync, self.sync, self.sync, self.beat, self.leave]
        steps += [self.pass_time, self.pass_time, self.go_away, self.restart, self.change_broker]
        chosen = self.rng.choice(steps)
        await chosen()
        await self.collect()
        return chosen.__name__

    def anyone(self, idle: bool = True) -> Peer | None:
        known = [peer for peer in self.peers if (peer in self.under_way) != idle]
        return self.rng.choice(known) if known else None

    async def newcomer(self) -> None:
        if len(self.peers) >= 8:
            return
        static = self.rng.random() < 0.4
        name = f"p{len(self.peers)}"
        self.peers.append(
            self.world.peer(
                name,
                instance_id=name if static else None,
                protocols=self.rng.choice(PROTOCOLS[:2]),
                session_timeout_ms=self.rng.choice((6_000, 10_000, 30_000)),
                rebalance_timeout_ms=self.rng.choice((5_000, 20_000, 40_000)),
                version=self.rng.choice((3, 9)),
            )
        )

    async def join(self) -> None:
        peer = self.anyone()
        if peer is None:
            return
        if self.rng.random() < 0.2:
            peer.protocols = self.rng.choice(PROTOCOLS)
        self.under_way[peer] = await peer.entering()

    async def sync(self) -> None:
        peer = self.anyone()
        if peer is None or not peer.member_id:
            return
        plan = {member.member_id: self.rng.randbytes(4) for member in peer.joined.members if self.rng.random() < 0.9}
        self.under_way[peer] = await peer.syncing(plan)

    async def beat(self) -> None:
        for peer in self.peers:
            if peer.member_id and self.rng.random() < 0.8:
                code = await peer.heartbeat()
                if code in (25, 82) and peer not in self.under_way:
                    peer.member_id = ""

    async def leave(self) -> None:
        peer = self.anyone()
        if peer is not None and peer.member_id and self.rng.random() < 0.5:
            await peer.leave()
            peer.member_id = ""

    async def pass_time(self) -> None:
        self.world.sweeping = self.rng.random() < 0.6
        await self.world.advance(self.rng.choice((500, 1_000, 2_500, 6_000)))

    async def go_away(self) -> None:
        peer = self.anyone(idle=False)
        if peer is not None:
            task = self.under_way.pop(peer)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def restart(self) -> None:
        peer = self.anyone()
        if peer is not None and peer.instance_id:
            peer.member_id = ""

    async def change_broker(self) -> None:
        for peer in self.peers:
            if peer not in self.under_way:
                peer.broker = self.rng.choice(self.world.brokers)

    # -- what was told

    async def collect(self) -> None:
        """Take the answers that came."""
        await self.world.look()
        for peer, task in list(self.under_way.items()):
            if task.done():
                del self.under_way[peer]
                self.take(peer, task)

    def take(self, peer: Peer, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        if error is None and isinstance(task.result(), Joined):
            self.take_joined(task.result())
        elif error is None:
            assert isinstance(task.result(), Synced)
            told = self.assigned.setdefault((peer.generation, peer.member_id), task.result().assignment)
            assert told == task.result().assignment, "I8: an assignment changed"
        else:
            assert isinstance(error, KafkaError | JoinRefused), repr(error)
            cause = error.error if isinstance(error, JoinRefused) else error
            if cause.code.name in ("unknown_member_id", "fenced_instance_id", "inconsistent_group_protocol"):
                peer.member_id = ""

    def take_joined(self, joined: Joined) -> None:
        protocol = self.opened.setdefault(joined.generation, (joined.protocol_type, joined.protocol))
        assert protocol == (joined.protocol_type, joined.protocol), "I5: answers of a generation differ"
        if joined.members:
            ids = frozenset(member.member_id for member in joined.members)
            assert joined.member_id in ids and joined.leader == joined.member_id
            if not joined.skip_assignment:
                assert self.led.setdefault(joined.generation, joined.member_id) == joined.member_id, "I4: two leaders"
                assert self.lists.setdefault(joined.generation, ids) == ids, "I7: two lists"

    # -- what is stored

    async def check(self) -> None:
        keys, store = self.world.keys, self.world.store
        names = ("group", "members", "subscriptions", "assignments", "protocols", "instances", "pending")
        raw = [await store.command("HGETALL", getattr(keys, name)) for name in names]
        group, members, subscriptions, assignments, tallies, instances, pending = (
            {key.decode(): value for key, value in one.items()} for one in raw
        )
        if not group:
            return
        sessions = {
            member_id.decode(): int(score)
            for member_id, score in await store.command("ZRANGE", keys.sessions, 0, -1, "WITHSCORES")
        }
        text = {name: value.decode() for name, value in group.items()}
        number = {name: int(value) for name, value in text.items() if value.isdecimal()}
        records = {member_id: json.loads(value) for member_id, value in members.items()}
        state, generation, phase = text["state"], number["generation"], number["round"]

        assert generation >= self.generation, "I1"
        self.generation = generation
        assert not records.keys() & pending.keys(), "I11"
        assert records.keys() == subscriptions.keys()
        assert assignments.keys() <= records.keys()
        static = {record["instance_id"]: member_id for member_id, record in records.items() if record["instance_id"]}
        assert static == {name: member_id.decode() for name, member_id in instances.items()}, "I12"
        assert sessions.keys() == records.keys() | pending.keys(), "I15"
        self.check_tallies(records, tallies)
        joined = [member_id for member_id, record in records.items() if record["join_round"] == phase]
        synced = [member_id for member_id, record in records.items() if record["sync_generation"] == generation]
        if state == "Empty":
            assert not records and not text["leader"] and not tallies, "I13"
            assert number["join_deadline"] == number["sync_deadline"] == 0
        if state == "PreparingRebalance":
            assert number["joined_count"] == len(joined)
            assert number["join_deadline"] > 0, "I16"
            assert text["prev_state"] == "Empty" or pending or len(joined) < len(records)
        if state in ("CompletingRebalance", "Stable"):
            assert text["leader"] in records, "I3"
            assert number["awaiting_sync"] == len(records) - len(synced)
            assert all(text["protocol"] in record["protocols"] for record in records.values()), "I6"
            assert number["join_deadline"] == 0
            assert (number["sync_deadline"] > 0) == (number["awaiting_sync"] > 0), "I16"
        if state == "CompletingRebalance":
            assert text["leader"] not in synced
        assert (state == "Stable") <= (number["assigned_generation"] == generation)
        await self.check_hints(sessions, number)

    @staticmethod
    def check_tallies(records: dict[str, Any], tallies: dict[str, bytes]) -> None:
        expected: Counter[str] = Counter()
        for record in records.values():
            expected.update(f"supports:{name}" for name in record["protocols"])
            expected["offers:" + json.dumps(record["protocols"], separators=(",", ":"))] += 1
            for name in ("session_timeout_ms", "rebalance_timeout_ms"):
                expected[f"{name}:{record[name]}"] += 1
        assert {name: int(count) for name, count in tallies.items()} == dict(expected)

    async def check_hints(self, sessions: dict[str, int], number: dict[str, int]) -> None:
        shard = self.world.keys.shard_keys.deadlines
        hints = {
            name.decode().split("|")[0]: int(score)
            for name, score in await self.world.store.command("ZRANGE", shard, 0, -1, "WITHSCORES")
        }
        if sessions:
            hold_ms = 5_000  # a sweep that ran just now may have put a hint off for so long
            assert hints["session"] <= max(min(sessions.values()), self.world.clock.now_ms + hold_ms)
        for kind in ("join", "sync"):
            deadline = number[f"{kind}_deadline"]
            assert (kind in hints) == (deadline > 0)


@pytest.mark.parametrize("seed", range(6))
async def test_promises_hold_in_a_random_life(world: World, seed: int) -> None:
    rng = random.Random(seed)
    world.use(group_initial_rebalance_delay_ms=rng.choice((0, 3_000)), group_max_size=rng.choice((4, 100)))
    life = Life(world, rng)
    done = []
    for _ in range(150):
        done.append(await life.step())
        try:
            await life.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {done[-12:]}: {error}") from error

    world.sweeping = True
    await world.advance(120_000)
    await life.collect()
    assert not life.under_way, "I17: a request was never answered"
    assert life.opened, "no generation was ever opened"
