"""Brokers and clients of one group on the network: requests go out, and their answers are noted as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.model.network import Executed, LinkedStore, Network, Server
from tidegate.errors import StoreUnavailable
from tidegate.groups import classic
from tidegate.groups.commits import Commit
from tidegate.groups.expiry import GroupExpiry
from tidegate.groups.heartbeat_snapshots import MemberSnapshot
from tidegate.groups.heartbeats import Heartbeats
from tidegate.groups.model import Joined, JoinRequest, Leaving, MemberRef, SyncRequest
from tidegate.groups.offsets import Committed, Offsets, entry_json
from tidegate.groups.waiting import GroupWaits
from tidegate.settings import Settings
from tidegate.store.outcome import Failure

GROUP: Final = "orders"
PARTITION_COUNT: Final = 4

Protocols = tuple[tuple[str, bytes], ...]


class Broker:
    """One broker's services for groups. `disturbed_ms` is when something came between it and Redis."""

    def __init__(self, network: Network, settings: Settings, name: str, sweeping: bool) -> None:
        self.name, self.sweeping = name, sweeping
        self.store = LinkedStore(settings, network, name)
        self.waits = GroupWaits(self.store, settings, lambda: name)
        self.heartbeats = Heartbeats(self.store, settings, lambda: name, network.loop.time)
        self.offsets = Offsets(self.store, lambda: name)
        self.expiry = GroupExpiry(self.store, lambda _: True, lambda: name)
        self.disturbed_ms: list[int] = []
        for link in self.store.lanes():
            link.on_down.append(lambda _: self.disturbed_ms.append(network.now_ms))

    async def start(self) -> None:
        await self.store.start()
        await self.waits.start()
        await self.heartbeats.start()
        if self.sweeping:
            await self.expiry.start()

    async def close(self) -> None:
        await self.expiry.close()
        await self.heartbeats.close()
        await self.waits.close()


@dataclass(slots=True, eq=False)
class Client:
    """A consumer, alive all the time; what it knows of its membership is what replies said."""

    name: str
    instance_id: str | None
    version: int
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    broker: int = 0
    member_id: str = ""
    generation: int = -1
    joined: Joined | None = None
    request: Request | None = None
    """Its join or sync that is not answered."""
    newest: int = -1
    """The newest generation that a reply named."""

    @property
    def owner(self) -> str:
        """Who owns a partition: a static member over its restarts, else the member."""
        return self.instance_id or self.member_id


@dataclass(slots=True, eq=False)
class Request:
    """A join or a sync at a broker, and how it ended. Nobody listens to one that its client gave up."""

    client: Client
    broker: Broker
    member_id: str
    instance_id: str | None
    generation: int
    entry: str
    """What distinguishes its script from others': the reason of a join, the member of a sync."""
    task: asyncio.Task[Any]
    sent_ms: int
    ended_ms: int = -1

    @property
    def reported(self) -> bool:
        return self.client.request is self


class World:
    """The brokers, the clients, and the way between them."""

    def __init__(
        self,
        server: Server,
        settings: Settings,
        sweeping: bool,
        observe: Callable[[Executed], None],
        on_request: Callable[[Request], None],
        on_answered: Callable[[World, Broker, MemberSnapshot], None],
    ) -> None:
        self.settings, self.sweeping, self._on_request = settings, sweeping, on_request
        self._on_answered = on_answered
        self.network = Network(server, observe)
        self.loop = self.network.loop
        asyncio.set_event_loop(self.loop)
        self.clients: list[Client] = []
        self.requests: list[Request] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.made = 0
        self.brokers = [self.new_broker() for _ in range(2)]
        self.keys = self.brokers[0].store.group_keys("default", GROUP)
        self.network.group = self.keys.group

    def close(self) -> None:
        """End all; what scripts do on the way is not judged any more."""
        self.requests.clear()
        self.network.observe = lambda _: None
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        try:
            self.loop.run()
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    @property
    def now_ms(self) -> int:
        return self.network.now_ms

    def number(self) -> int:
        """Another number each time: for names, tokens and values."""
        self.made += 1
        return self.made

    # -- brokers

    def new_broker(self) -> Broker:
        broker = Broker(self.network, self.settings, str(self.number()), self.sweeping)
        self.spawn(broker.start())
        self.loop.run()
        return broker

    def kill(self, index: int, executed: int, late: bool) -> None:
        """A broker dies with all that waits on it; another process takes its port."""
        broker = self.brokers[index]
        self.disturb(broker)
        for link in broker.store.all_links():
            link.die(executed if link.name == "control" else 0, late)
        for request in [one for one in self.requests if one.broker is broker]:
            self.give_up(request)
        self.spawn(broker.close())
        self.brokers[index] = self.new_broker()

    def disturb(self, broker: Broker) -> None:
        """From now on what waits there may be held by nobody."""
        broker.disturbed_ms.append(self.now_ms)

    def is_well(self, broker: Broker) -> bool:
        """Whether its commands get through."""
        return all(link.connected and link.undisturbed for link in broker.store.lanes())

    # -- requests

    def spawn(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin something that may only fail because Redis is away."""
        task = self.loop.create_task(what)
        self._tasks.add(task)  # one of a dead broker never ends
        task.add_done_callback(self._note_fault)
        return task

    def _note_fault(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            self.loop.faults.append(error)

    def join_request(self, client: Client) -> JoinRequest:
        return JoinRequest(
            member_id=client.member_id,
            instance_id=client.instance_id,
            client_id=client.name,
            client_host="/127.0.0.1",
            session_timeout_ms=client.session_timeout_ms,
            rebalance_timeout_ms=client.rebalance_timeout_ms,
            protocol_type="consumer",
            protocols=client.protocols,
            id_required=client.version >= 4,
            static_leader_list=client.version >= 9,
            token=f"t{self.number()}",
            suffix=str(number := self.number()),
            reason=f"join {number}",
        )

    def join(self, client: Client) -> Request:
        broker = self.brokers[client.broker]
        request = self.join_request(client)
        joining = classic.join(broker.store, broker.waits, self.keys, request)
        return self._ask(client, broker, joining, request.reason)

    def sync(self, client: Client, plan: dict[str, bytes], **changes: Any) -> Request:
        broker = self.brokers[client.broker]
        member_ref = MemberRef(client.member_id, client.generation, client.instance_id)
        request = SyncRequest(member_ref, assignments=tuple(plan.items()))._replace(**changes)
        syncing = classic.sync(broker.waits, self.keys, request)
        return self._ask(client, broker, syncing, f"sync {client.member_id}")

    def _ask(self, client: Client, broker: Broker, asked: Coroutine[Any, Any, Any], entry: str) -> Request:
        request = Request(
            client,
            broker,
            client.member_id,
            client.instance_id,
            client.generation,
            entry,
            self.loop.create_task(asked),
            self.now_ms,
        )
        request.task.add_done_callback(lambda _: self._ended(request))
        self.requests.append(request)
        client.request = request
        return request

    def _ended(self, request: Request) -> None:
        request.ended_ms = self.now_ms
        if request in self.requests:
            self.requests.remove(request)
            self._on_request(request)

    def give_up(self, request: Request) -> None:
        """The connection is gone: no answer reaches the client."""
        self.requests.remove(request)
        request.ended_ms = self.now_ms
        request.task.cancel()
        if request.reported:
            request.client.request = None

    def heartbeat(self, client: Client, on_code: Callable[[int], None]) -> None:
        member_ref = MemberRef(client.member_id, client.generation, client.instance_id)
        broker = self.brokers[client.broker]
        snapshot = broker.heartbeats.answer(self.keys, member_ref, on_code)
        if snapshot is not None:
            self._on_answered(self, broker, snapshot)

    def commit(self, client: Client, partition: int, on_code: Callable[[int], None]) -> str:
        """Commit another offset of a partition; returns it."""
        offset = str(self.number())
        commit = Commit(client.generation, client.member_id, client.instance_id)
        commit.entries += (f"t:{partition}", entry_json(int(offset), -1, "", ""))
        self.brokers[client.broker].offsets.commit(self.keys, commit, on_code)
        return offset

    def fetch(self, broker: int, on_fetched: Callable[[dict[str, Committed] | Failure], None]) -> None:
        fields = [f"t:{partition}" for partition in range(PARTITION_COUNT)]
        self.brokers[broker].offsets.fetch(self.keys, fields, on_fetched)

    def leave(self, broker: int, leaving: Sequence[Leaving]) -> asyncio.Task[list[int]]:
        store = self.brokers[broker].store
        return self.spawn(classic.leave(store, self.keys, leaving))
