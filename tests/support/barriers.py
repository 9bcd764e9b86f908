"""What cases about a group's two barriers share: members that can change brokers, and the group as the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from kio.schema.errors import ErrorCode

from bench.cluster import BrokerProcess, Cluster
from tests.kit.member import Member
from tests.kit.wire import RawClient
from tests.support.proxy import Proxy
from tidegate.store.keys import GroupKeys

LONG_MS, SHORT_MS = 120_000, 5_000
"""Timeouts of members that are to stay, and of those that are to be missed: longer than a loaded machine stalls."""

Value = TypeVar("Value")


class Group:
    """One group of a running cluster: makes its members, and reads its state past every broker."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self._redis = redis.Redis.from_url(cluster.redis_url, decode_responses=True)
        self._keys = GroupKeys.of("tidegate", 50, "default", group_id)
        self._clients: list[RawClient] = []
        self._proxies: list[Proxy] = []

    async def close(self) -> None:
        """Close what the members opened."""
        for proxy in self._proxies:
            await proxy.close()
        for client in self._clients:
            await client.close()
        self._redis.close()

    # -- members

    async def connect(self, broker: BrokerProcess) -> RawClient:
        """A connection straight to a broker."""
        self._clients.append(await RawClient.connect(broker.address))
        return self._clients[-1]

    async def connect_through(self, broker: BrokerProcess) -> tuple[RawClient, Proxy]:
        """A connection of its own network to a broker."""
        proxy = Proxy(broker.port)
        await proxy.start()
        self._proxies.append(proxy)
        self._clients.append(await RawClient.connect(f"127.0.0.1:{proxy.port}"))
        return self._clients[-1], proxy

    async def member(self, broker: BrokerProcess, **traits: Any) -> Member:
        """One who has not joined yet; its timeouts are long unless said otherwise."""
        given: dict[str, Any] = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS, **traits}
        return Member(await self.connect(broker), self.group_id, **given)

    async def member_through(self, broker: BrokerProcess, **traits: Any) -> tuple[Member, Proxy]:
        """The same behind a network of its own."""
        member = await self.member(broker, **traits)
        member.client, proxy = await self.connect_through(broker)
        return member, proxy

    async def stable(self, *members: Member) -> list[Member]:
        """All of them in one Stable generation, the leader first."""
        await stabilize(*members)
        assert self["state"] == "Stable"
        return sorted(members, key=lambda member: not member.is_leader)

    # -- the group

    def __getitem__(self, name: str) -> str:
        """A field of its hash."""
        return str(self._redis.hget(self._keys.group, name) or "")

    @property
    def generation(self) -> int:
        """Its generation now."""
        return int(self["generation"] or 0)

    @property
    def member_ids(self) -> set[str]:
        """Who is in it."""
        found: Any = self._redis.hkeys(self._keys.members)
        return set(found)

    def all_events(self) -> list[dict[str, str]]:
        """What the coordinator says of it, in order."""
        entries: Any = self._redis.xrange(self._keys.shard_keys.events)
        return [entry for _, entry in entries if entry["group"] == self._keys.ref]

    def events(self, kind: str) -> list[dict[str, str]]:
        """Its events of one kind, in order."""
        return [event for event in self.all_events() if event["kind"] == kind]

    def lacks(self, member_id: str) -> Callable[[], bool]:
        """Whether a member is gone, whenever it is asked."""
        return lambda: member_id not in self.member_ids

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for the store to say so. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise TimeoutError(f"{self._redis.hgetall(self._keys.group)}") from None

    async def until_joined(self, count: int) -> None:
        """Wait until so many are in the join barrier."""
        await self.until(lambda: self["state"] == "PreparingRebalance" and self["joined_count"] == str(count))

    async def until_synced(self, awaiting: int) -> None:
        """Wait until only so many have not come to the sync barrier."""
        await self.until(lambda: self["state"] == "CompletingRebalance" and self["awaiting_sync"] == str(awaiting))


async def stabilize(*members: Member, until: Callable[[], bool] = lambda: True, timeout_s: float = 60.0) -> None:
    """Each follows its replies until `until` holds and all, asked after that, are in one generation.

    The leader hands each member its own id.
    """
    done = asyncio.Event()
    condition_holds = False
    calm: dict[str, int] = {}

    async def live(member: Member) -> None:
        while not done.is_set():
            in_step, asked_after = member.generation == member.synced >= 0, condition_holds
            code = await member.heartbeat() if in_step else ErrorCode.rebalance_in_progress
            if code is ErrorCode.none:
                if asked_after:
                    calm[member.member_id] = member.generation
                await asyncio.sleep(0.02)
                continue
            calm.clear()
            assert code is ErrorCode.rebalance_in_progress, code
            await member.round()

    runs = [asyncio.create_task(live(member)) for member in members]
    try:
        async with asyncio.timeout(timeout_s):
            while not (len(calm) == len(members) and len(set(calm.values())) == 1):
                condition_holds = condition_holds or until()
                await asyncio.wait(runs, timeout=0.02, return_when=asyncio.FIRST_EXCEPTION)
                for task in runs:
                    if task.done():
                        task.result()
            done.set()
            await asyncio.gather(*runs)
    finally:
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert all(member.assignment == member.member_id.encode() for member in members)


def plan(joined: Any) -> dict[str, bytes]:
    """A leader's plan that hands each member its own id."""
    return {member.member_id: member.member_id.encode() for member in joined.members}
