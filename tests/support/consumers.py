"""Brokers and members of KIP-848 groups, without the wire: every step and millisecond in the test's hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from tests.support.clock import SteppedClock
from tests.support.groups import STEP_MS, Mode
from tests.support.handlers import FakeTopic
from tests.support.steps import sweep_expiry
from tidegate.errors import KafkaError
from tidegate.groups.consumer.heartbeats import ConsumerHeartbeats
from tidegate.groups.consumer.membership import Removal
from tidegate.groups.consumer.model import ConsumerGroup, HeartbeatAnswer, HeartbeatRequest, Partitions
from tidegate.groups.expiry import CONSUMER_KIND, GroupExpiry
from tidegate.protocol import consumer_blobs
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

SESSION_MS = 45_000
NO_NEWS = None

_IDS = UUID(int=848)


class FakeTopics:
    """A catalogue whose topics a test makes, grows and deletes; every broker sees a change at its next refresh."""

    def __init__(self) -> None:
        self.version = self.stored_version = 1
        self._topics: dict[str, FakeTopic] = {}
        self._made = itertools.count()

    def put(self, name: str, partition_count: int) -> None:
        """Make a topic, or change the number of its partitions."""
        old = self._topics.get(name)
        topic_id = uuid5(_IDS, f"{name}-{next(self._made)}") if old is None else old.topic_id
        self._topics[name] = FakeTopic(name, topic_id, partition_count)
        self._changed()

    def delete(self, name: str) -> None:
        del self._topics[name]
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.stored_version += 1

    def get(self, org: str, name: str) -> FakeTopic | None:
        return self._topics.get(name)

    def by_id(self, org: str, topic_id: UUID) -> FakeTopic | None:
        return next((one for one in self._topics.values() if one.topic_id == topic_id), None)

    def topics(self, org: str) -> list[FakeTopic]:
        return list(self._topics.values())

    async def refresh(self) -> None:
        """Nothing to read."""

    def text(self, partitions: Partitions | None) -> str | None:
        """`t4:0,1 t2:0`: partitions by topic; None as it is, "" for none."""
        if partitions is None:
            return None
        names = {one.topic_hex: one.name for one in self._topics.values()}
        by_topic: dict[str, list[str]] = {}
        for topic_id, index in sorted(partitions, key=lambda one: (names.get(one[0], one[0]), one[1])):
            by_topic.setdefault(names.get(topic_id, topic_id), []).append(str(index))
        return " ".join(f"{name}:{','.join(indexes)}" for name, indexes in by_topic.items())

    def parse(self, text: str) -> Partitions:
        """The partitions of such a text."""
        found = set()
        for part in text.split():
            name, _, indexes = part.partition(":")
            found.update((self._topics[name].topic_hex, int(index)) for index in indexes.split(","))
        return frozenset(found)


class Broker:
    """One broker's consumer groups, on its own links."""

    def __init__(self, settings: Settings, name: str, topics: FakeTopics) -> None:
        self.store = Store(settings)
        self.name = name
        self.consumers = ConsumerHeartbeats(
            self.store,
            settings,
            topics,  # type: ignore[arg-type]
            consumer_blobs,
            lambda: name,
        )
        self.expiry = GroupExpiry(
            self.store, lambda _: True, lambda: name, {CONSUMER_KIND: self.consumers.groups.expire}
        )

    async def close(self) -> None:
        await self.consumers.close()
        await self.store.close()


class ConsumerWorld:
    """Several brokers, one clock, topics `t1` to `t6` with as many partitions. Time passes only in `advance`."""

    def __init__(self, settings: Settings, clock: SteppedClock, mode: Mode = Mode.SHARED) -> None:
        self.settings, self.clock, self.mode = settings, clock, mode
        self.topics = FakeTopics()
        for count in range(1, 7):
            self.topics.put(f"t{count}", count)
        count = 1 if mode is Mode.ONE else 3
        self.brokers = [Broker(settings, str(number), self.topics) for number in range(1, count + 1)]
        self._next = itertools.cycle(self.brokers)
        self._names = itertools.count()

    async def start(self) -> None:
        for broker in self.brokers:
            await broker.store.start()

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()

    @property
    def store(self) -> Store:
        return self.brokers[0].store

    @property
    def keys(self) -> GroupKeys:
        return self.store.group_keys("default", "orders")

    @property
    def broker(self) -> Broker:
        """The broker that gets the next request."""
        return next(self._next)

    def use(self, **changes: Any) -> None:
        """Change settings of every broker from now on."""
        self.settings = self.settings.model_copy(update=changes)
        for broker in self.brokers:
            broker.store.settings = self.settings
            broker.consumers._settings = broker.consumers.groups._settings = self.settings

    def peer(self, name: str, *topics: str, **traits: Any) -> Peer:
        """A member to be, subscribed to topics."""
        return Peer(self, name, frozenset(topics), **traits)

    async def joined(self, *peers: Peer) -> Sequence[Peer]:
        """The peers, joined and reconciled."""
        for peer in peers:
            await peer.join()
        await self.reconcile(*peers)
        return peers

    async def reconcile(self, *peers: Peer, rounds: int = 6) -> None:
        """Truthful heartbeats until the group is stable."""
        for _ in range(rounds):
            for peer in peers:
                await peer.own()
        assert (await self.state())[0] == "Stable"

    async def ask(self, request: HeartbeatRequest) -> HeartbeatAnswer | KafkaError:
        """Send one heartbeat to the next broker."""
        answered: asyncio.Future[HeartbeatAnswer | KafkaError] = asyncio.get_running_loop().create_future()
        self.broker.consumers.answer(self.keys, request, answered.set_result)
        return await answered

    async def remove(self, member_id: str, instance_id: str | None = None) -> str:
        """Remove a member as LeaveGroup does; NONE or the error's name."""
        try:
            await self.broker.consumers.groups.run(self.keys, Removal(member_id, instance_id, "member_left"))
        except KafkaError as error:
            return error.code.name.upper()
        return "NONE"

    async def group(self) -> ConsumerGroup:
        """The stored group; what is overdue is expired first."""
        broker = self.broker
        await broker.consumers.groups.expire(self.keys)
        return await broker.consumers.groups.read(self.keys)

    async def state(self) -> tuple[str, int, int]:
        """State, group epoch, epoch of the target assignment."""
        group = await self.group()
        return group.state.value, group.epoch, group.target_epoch

    async def advance(self, ms: int, beating: Iterable[Peer] = ()) -> None:
        """Let time pass: deadlines swept, `beating` heartbeating."""
        peers = list(beating)
        while ms > 0:
            step = min(ms, STEP_MS)
            await self.clock.advance(step)
            ms -= step
            if self.mode is not Mode.UNSWEPT:
                await sweep_expiry(self.brokers[0].expiry)
            for peer in peers:
                await peer.heartbeat()


@dataclass
class Peer:
    """A member: what it asks, and what it was answered. Answers are `(epoch, partitions as text or None)` or a code."""

    world: ConsumerWorld
    name: str
    topics: frozenset[str] = frozenset()
    instance_id: str | None = None
    assignor: str | None = None
    regex: str | None = None
    rebalance_timeout_ms: int = 300_000
    epoch: int = 0
    assigned: Partitions = frozenset()
    own_id: str = field(default="")
    client_id: str = ""
    client_host: str = "/127.0.0.1"

    @property
    def member_id(self) -> str:
        return self.own_id or f"member-{self.name}"

    async def ask(self, epoch: int, **fields: Any) -> tuple[int, str | None] | str:
        """Send a heartbeat; remember the epoch and assignment of its answer."""
        request = HeartbeatRequest(
            self.member_id, epoch, client_id=self.client_id or self.name, client_host=self.client_host, **fields
        )
        answer = await self.world.ask(request)
        if isinstance(answer, KafkaError):
            return answer.code.name.upper()
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = answer.assignment
        return answer.member_epoch, self.world.topics.text(answer.assignment)

    async def join(self, *topics: str) -> tuple[int, str | None] | str:
        """Join or rejoin, owning nothing."""
        if topics:
            self.topics = frozenset(topics)
        return await self.full(epoch=0, own="")

    async def full(self, own: str, epoch: int | None = None) -> tuple[int, str | None] | str:
        """A full request."""
        return await self.ask(
            self.epoch if epoch is None else epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topics=self.topics,
            regex=self.regex,
            assignor=self.assignor,
            owned=self.world.topics.parse(own),
        )

    async def heartbeat(self, epoch: int | None = None, **fields: Any) -> tuple[int, str | None] | str:
        """A heartbeat that reports nothing but `fields`."""
        return await self.ask(self.epoch if epoch is None else epoch, **fields)

    async def own(self, text: str | None = None, epoch: int | None = None) -> tuple[int, str | None] | str:
        """A heartbeat that names the owned partitions; the truth by default."""
        owned = self.assigned if text is None else self.world.topics.parse(text)
        return await self.ask(self.epoch if epoch is None else epoch, owned=owned)

    async def leave(self, epoch: int = -1) -> tuple[int, str | None] | str:
        """Leave for good, or as a static member for a while (-2)."""
        answer = await self.ask(epoch, instance_id=self.instance_id)
        if not isinstance(answer, str):
            self.assigned = frozenset()
        return answer
