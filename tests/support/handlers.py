"""Groups written straight into the store, and the API handlers without sockets: for tests of offsets and admin APIs."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

from tests.support.asking import ask_handler
from tests.support.built import build_broker
from tidegate.apis.call import BrokerContext, Client
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

FAR_MS = 9_000_000_000_000


@dataclass(frozen=True, slots=True)
class FakeTopic:
    """A topic as far as offsets look at it."""

    name: str
    topic_id: UUID
    partition_count: int
    format: str = "batch"
    config: ClassVar = SimpleNamespace(mirror=False)

    @property
    def topic_hex(self) -> str:
        """The id as it is stored."""
        return self.topic_id.hex


class FakeCatalog:
    """A catalogue: `known` is this broker's cache, `stored` what a look at the store would find."""

    def __init__(self, *topics: FakeTopic) -> None:
        self.version = 0
        self.stored_version = 0
        self.record_topics = 0
        self.known = {topic.name: topic for topic in topics}
        self.stored = dict(self.known)
        self.observations = 0

    def get(self, org: str, name: str) -> FakeTopic | None:
        """From the cache."""
        return self.known.get(name)

    def by_id(self, org: str, topic_id: UUID) -> FakeTopic | None:
        """From the cache."""
        return next((topic for topic in self.known.values() if topic.topic_id == topic_id), None)

    async def find(self, org: str, name: str) -> FakeTopic | None:
        """From the cache, else after a look."""
        if name not in self.known:
            await self.refresh()
        return self.known.get(name)

    async def refresh(self) -> None:
        """Look at the store."""
        self.observations += 1
        await asyncio.sleep(0)
        self.known = dict(self.stored)


def topic(name: str, partition_count: int = 4, number: int = 1) -> FakeTopic:
    """A topic whose id follows from `number`."""
    return FakeTopic(name, UUID(int=number), partition_count)


@dataclass
class Broker:
    """The handlers of one broker over a store; `ask` sends a request through codec, handler and writer."""

    store: Store
    catalog: FakeCatalog
    node_id: int = 1
    brokers: list[Any] = field(default_factory=lambda: [SimpleNamespace(node_id=1)])
    others: Sequence[Store] = ()
    """Links of further brokers: each request then goes to the next broker."""
    context: Any = None

    def __post_init__(self) -> None:
        self.context = self._context(self.store)
        self._steps = itertools.cycle([self.context, *map(self._context, self.others)])

    def _context(self, store: Store) -> BrokerContext:
        lease = SimpleNamespace(
            node_id=self.node_id, shown_node_id=lambda listener: self.node_id, nameable=lambda listener: self.brokers,
            ends_ms=0,
        )  # fmt: skip
        return build_broker(store, self.node_id, broker_lease=lease, catalog=self.catalog, mirror=None).context

    async def lose_store(self) -> None:
        """No broker reaches Redis any more."""
        for store in (self.store, *self.others):
            await store.close()

    async def ask(self, request: Any) -> Any:
        """Answer a kio request of any version as a client would get it."""
        return await ask_handler(next(self._steps), request, Client(1, "127.0.0.1", 50_000))


def subscription(protocols: Mapping[str, bytes]) -> bytes:
    """A member's protocols as they are stored."""
    return b"".join(
        struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(metadata)) + metadata
        for name, metadata in protocols.items()
    )


async def given_group(
    store: Store,
    keys: GroupKeys,
    *,
    state: str = "Stable",
    generation: int = 1,
    members: Sequence[str] = ("m-1",),
    instances: Mapping[str, str] | None = None,
    protocol_type: str = "consumer",
    subscribed: Sequence[str] | None = ("t1",),
    deadline: int = FAR_MS,
    state_since: int = 0,
    **fields: str | int,
) -> None:
    """A group of dynamic members (static where `instances` maps instance to member id) as the scripts write it."""
    hash_fields: dict[str, str | int] = {
        "id": "cgp_01test",
        "type": "classic",
        "state": state,
        "prev_state": "Empty",
        "generation": generation,
        "version": 1,
        "round": 1,
        "protocol_type": protocol_type,
        "protocol": "range" if state in ("Stable", "CompletingRebalance") else "",
        "leader": members[0] if members else "",
        "state_since": state_since,
        "joined_count": 0,
        "awaiting_sync": len(members) if state == "CompletingRebalance" else 0,
        "join_deadline": FAR_MS if state == "PreparingRebalance" else 0,
        "sync_deadline": FAR_MS if state == "CompletingRebalance" else 0,
    }
    if subscribed is not None:
        hash_fields |= {"subscribed": json.dumps(list(subscribed)), "subscribed_generation": generation}
    hash_fields |= fields
    static = {member_id: instance for instance, member_id in (instances or {}).items()}
    await store.command("HSET", keys.group, *[part for pair in hash_fields.items() for part in pair])
    await store.command("HSET", keys.shard_keys.groups, keys.ref, f"classic {state} {protocol_type}")
    for member_id in members:
        record = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "join_round": 0,
            "sync_generation": generation if state == "Stable" else 0,
            "added_round": 1,
            "join_by": 0,
            "joined_at": 1,
            "join_generation": generation - 1,
            "join_token": "",
            "sync_token": "",
            "told_leader": "",
            "instance_id": static.get(member_id, ""),
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "protocols": ["range"],
        }
        text = json.dumps(record, separators=(",", ":"))
        await store.command("HSET", keys.members, member_id, text)
        await store.command(
            "HSET", keys.subscriptions, member_id, subscription({"range": b"wants " + member_id.encode()})
        )
        await store.command("HINCRBY", keys.protocols, "range", 1)
        await store.command("ZADD", keys.sessions, deadline, member_id)
        if state == "Stable":
            await store.command("HSET", keys.assignments, member_id, b"has " + member_id.encode())
    for instance, member_id in (instances or {}).items():
        await store.command("HSET", keys.instances, instance, member_id)


def settings_of(store: Store, **changed: Any) -> Settings:
    """The settings of a store with some changed."""
    return store.settings.model_copy(update=changed)
