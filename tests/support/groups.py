"""Brokers and members of classic groups, without the wire: every step and millisecond in the test's hand."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.support.built import build_broker
from tests.support.clock import SteppedClock
from tests.support.steps import refresh_waits, renew_waits, sweep_expiry
from tidegate.errors import KafkaError, MemberIdRequired
from tidegate.groups import classic
from tidegate.groups.expiry import expire_group
from tidegate.groups.model import Joined, JoinRefused, JoinRequest, Leaving, MemberRef, Synced, SyncRequest
from tidegate.groups.waiters import Waiter
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

Answer = TypeVar("Answer")

STEP_MS = 1_000
ANSWER_S = 40.0


class Mode(enum.StrEnum):
    """Who gets the requests of a scenario, and who expires what is overdue. The outcome must be the same in all."""

    SHARED = "peers-take-turns"
    """Each peer keeps to its broker; a sweeper looks after the group."""
    ONE = "one-broker"
    """The same, all through one broker."""
    ELSEWHERE = "each-request-elsewhere"
    """No two requests in a row go to the same of three brokers."""
    UNSWEPT = "no-sweeper"
    """Nobody sweeps: requests and waiters expire what they find; a reader from outside expires first, as Describe."""


SCENARIO_MODES = (Mode.ONE, Mode.ELSEWHERE, Mode.UNSWEPT)


class Broker:
    """One broker's services for groups, on its own links."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.store = Store(settings)
        self.name = name

    async def start(self) -> None:
        await self.store.start()
        built = build_broker(self.store, int(self.name))
        self.waits, self.heartbeats = built.context.waits, built.context.heartbeats
        self.expiry, self.generation_guard = built.expiry, built.generation_guard
        self.generation_guard.failover_epoch = 0
        await self.generation_guard.start()
        await self.waits.start()

    async def close(self) -> None:
        await self.waits.close()
        await self.generation_guard.close()
        await self.store.close()

    def waiters(self) -> set[Waiter]:
        return {waiter for entry in self.waits.entries.values() for waiter in entry.waiters}


class World:
    """Several brokers, one clock. Time passes only in `advance`."""

    def __init__(
        self, settings: Settings, clock: SteppedClock, group_id: str = "orders", mode: Mode = Mode.SHARED
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.mode = mode
        self.brokers = [Broker(settings, str(number)) for number in range(1, 4 if mode is Mode.ELSEWHERE else 3)]
        self._next = itertools.cycle(self.brokers)
        self.group_id = group_id
        self.sweeping = True
        self.peers: list[Peer] = []

    async def start(self) -> None:
        for broker in self.brokers:
            await broker.start()

    async def close(self) -> None:
        for peer in self.peers:
            for task in peer.tasks:
                task.cancel()
        await asyncio.gather(*(task for peer in self.peers for task in peer.tasks), return_exceptions=True)
        for broker in self.brokers:
            await broker.close()

    def use(self, **changes: Any) -> None:
        """Change settings of every broker from now on."""
        self.settings = self.settings.model_copy(update=changes)
        for broker in self.brokers:
            broker.settings = broker.store.settings = broker.waits._settings = self.settings

    @property
    def store(self) -> Store:
        return self.brokers[0].store

    @property
    def keys(self) -> GroupKeys:
        return self.store.group_keys("default", self.group_id)

    def peer(self, name: str, **traits: Any) -> Peer:
        """A member to be, at the broker that the mode gives it."""
        metadata_node = self.brokers[0] if self.mode is Mode.ONE else self.brokers[len(self.peers) % len(self.brokers)]
        peer = Peer(self, name, broker=metadata_node, **traits)
        self.peers.append(peer)
        return peer

    async def advance(self, ms: int, beating: Sequence[Peer] = ()) -> None:
        """Let time pass as brokers see it: leases renewed, deadlines swept, waiters looking, `beating` heartbeating."""
        while ms > 0:
            step = min(ms, STEP_MS)
            await self.clock.advance(step)
            ms -= step
            if self.sweeping:
                await asyncio.gather(*(renew_waits(broker.waits) for broker in self.brokers))
                if self.mode is not Mode.UNSWEPT:
                    await sweep_expiry(self.brokers[0].expiry)
            for peer in beating:
                await peer.heartbeat()
            if self.sweeping:
                await self.observe()

    def waiters(self) -> set[Waiter]:
        """The requests that are parked now, whatever their broker."""
        return set().union(*(broker.waiters() for broker in self.brokers))

    async def observe(self) -> None:
        """Every waiter looks now, and what that answers is answered."""
        for _ in range(2):
            await asyncio.gather(*(refresh_waits(broker.waits) for broker in self.brokers))
            await asyncio.sleep(0)

    def iteration(self, peer: Peer) -> Broker:
        """The broker of a peer's next request."""
        if self.mode is Mode.ELSEWHERE:
            peer.broker = next(self._next)
        return peer.broker

    async def _is_resolved(self) -> None:
        """Where nobody sweeps, a reader from outside expires first."""
        if self.mode is Mode.UNSWEPT and self.sweeping:
            await expire_group(self.store, self.keys)

    async def field(self, name: str) -> str:
        """A field of the group's hash; "" where it has none."""
        await self._is_resolved()
        value = await self.store.command("HGET", self.keys.group, name)
        return "" if value is None else value.decode()

    async def state(self) -> tuple[str, int]:
        """State and generation."""
        return await self.field("state"), int(await self.field("generation") or 0)

    async def members(self) -> set[str]:
        """The ids of the members."""
        await self._is_resolved()
        return {member_id.decode() for member_id in await self.store.command("HKEYS", self.keys.members)}

    async def events(self) -> list[str]:
        """The kinds of all events so far."""
        return [event["kind"] for event in await self.reported()]

    async def reported(self, *kinds: str) -> list[dict[str, str]]:
        """The events so far, or those of some kinds, as they are stored."""
        await self._is_resolved()
        entries = await self.store.command("XRANGE", self.keys.shard_keys.events, "-", "+")
        texts = [[value.decode() for value in fields] for _, fields in entries]
        events = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in texts]
        return [event for event in events if not kinds or event["kind"] in kinds]

    async def stable(self, *names: str, **traits: Any) -> list[Peer]:
        """Stable{first*, ...}@1: peers that joined and synced one generation; the first leads."""
        return await self.stable_of(*(self.peer(name, **traits) for name in names))

    async def stable_of(self, *peers: Peer) -> list[Peer]:
        """Peers of a new group join within the initial delay, and sync."""
        joins = [await peer.start_join() for peer in peers]
        await self.advance(self.settings.group_initial_rebalance_delay_ms * 2)
        await asyncio.gather(*(answer(join) for join in joins))
        await self.sync_all(*peers)
        return list(peers)

    async def sync_all(self, *peers: Peer) -> None:
        """All sync; the leader hands each member `<its id>@<generation>`."""
        leader = next(peer for peer in peers if peer.joined.members)
        plan = {
            member.member_id: f"{member.member_id}@{leader.generation}".encode() for member in leader.joined.members
        }
        syncs = [await peer.syncing(plan if peer is leader else {}) for peer in peers]
        await asyncio.gather(*(answer(sync) for sync in syncs))


@dataclass(eq=False)
class Peer:
    """One member: its requests and replies."""

    world: World
    name: str
    broker: Broker
    instance_id: str | None = None
    protocols: Sequence[tuple[str, bytes]] = (("range", b"metadata"),)
    protocol_type: str = "consumer"
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 20_000
    version: int = 9
    member_id: str = ""
    generation: int = -1
    joined: Joined = field(default_factory=lambda: Joined("", -1, "", "", ""))
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def keys(self) -> GroupKeys:
        return self.broker.store.group_keys("default", self.world.group_id)

    @property
    def is_leader(self) -> bool:
        return self.joined.leader == self.member_id

    def request(self, **changes: Any) -> JoinRequest:
        """The JoinGroup that this peer sends now."""
        values = {
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "client_id": self.name,
            "client_host": "/127.0.0.1",
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "protocol_type": self.protocol_type,
            "protocols": tuple(self.protocols),
            "id_required": self.version >= 4,
            "static_leader_list": self.version >= 9,
        }
        return JoinRequest(**(values | changes))

    async def ask_join(self, **changes: Any) -> Joined:
        """One JoinGroup as it is."""
        broker = self.world.iteration(self)
        return await classic.join(broker.store, broker.waits, self.keys, self.request(**changes))

    async def join(self) -> Joined:
        """Both round trips of a new member, or a rejoin."""
        try:
            joined = await self.ask_join()
        except JoinRefused as refused:
            if not isinstance(refused.error, MemberIdRequired):
                raise
            self.member_id = refused.member_id
            joined = await self.ask_join()
        self.member_id, self.generation, self.joined = joined.member_id, joined.generation, joined
        return joined

    async def join_with(self, **changes: Any) -> Joined:
        """Rejoin with something changed from now on."""
        for name, value in changes.items():
            setattr(self, name, value)
        return await self.join()

    async def claim_id(self) -> str:
        """Only the first round trip (KIP-394)."""
        with_id = await refused(self.ask_join(), MemberIdRequired)
        self.member_id = with_id
        return with_id

    async def start_join(self) -> asyncio.Task[Joined]:
        """A join under way: parked, or answered."""
        return await self.parked(self.join())

    async def parked(self, request: Awaitable[Answer]) -> asyncio.Task[Answer]:
        """A request under way: returns once it waits here, or has its answer."""
        before = self.world.waiters()
        task: asyncio.Task[Answer] = asyncio.ensure_future(request)  # type: ignore[assignment]
        self.tasks.append(task)
        async with asyncio.timeout(ANSWER_S):
            while not task.done() and not self.world.waiters() - before:
                await asyncio.sleep(0.001)
        return task

    async def sync(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> Synced:
        member_ref = MemberRef(self.member_id, changes.pop("generation", self.generation), self.instance_id)
        values: dict[str, Any] = {"protocol_type": self.protocol_type, "protocol": self.joined.protocol or None}
        request = SyncRequest(member_ref, assignments=tuple((assignments or {}).items()), **(values | changes))
        broker = self.world.iteration(self)
        return await classic.sync(broker.waits, self.keys, request)

    async def syncing(self, assignments: Mapping[str, bytes] | None = None) -> asyncio.Task[Synced]:
        return await self.parked(self.sync(assignments))

    async def heartbeat(self, **changes: Any) -> int:
        """One heartbeat; its error code."""
        values: dict[str, Any] = {
            "member_id": self.member_id,
            "generation": self.generation,
            "instance_id": self.instance_id,
        }
        reported: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.world.iteration(self).heartbeats.add(self.keys, MemberRef(**(values | changes)), reported.set_result)
        async with asyncio.timeout(ANSWER_S):
            return await reported

    async def leave(self, **changes: Any) -> int:
        """Leave alone; this member's code."""
        values: dict[str, Any] = {"member_id": self.member_id, "instance_id": self.instance_id}
        broker = self.world.iteration(self)
        codes = await classic.leave(broker.store, self.keys, [Leaving(**(values | changes))], broker.name)
        return codes[0]


async def answer(task: asyncio.Task[Answer]) -> Answer:
    """What a request under way is answered; it must be answered by now."""
    async with asyncio.timeout(ANSWER_S):
        return await task


async def refused(request: Awaitable[Any], error: type[KafkaError]) -> str:
    """The request must fail so; returns the member id of a join's answer, else ""."""
    try:
        async with asyncio.timeout(ANSWER_S):
            result = await request
    except JoinRefused as refusal:
        assert isinstance(refusal.error, error), refusal.error
        return refusal.member_id
    except KafkaError as refusal:
        assert isinstance(refusal, error), refusal
        return ""
    raise AssertionError(f"expected {error.__name__}, got {result}")
