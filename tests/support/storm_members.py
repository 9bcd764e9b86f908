"""Raw members that behave as a good client library does, and on demand as a bad one; each writes its own history.

A member finds its coordinator, joins, syncs, asks for committed offsets, heartbeats and commits, and tries again
elsewhere whenever an answer does not come. Offsets that it commits say who may have overwritten whom: generation
times `STRIDE`, plus a number that grows.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from bench.cluster import BrokerProcess
from tests.kit.member import Member, coordinator
from tests.kit.wire import RawClient
from tests.support.proxy import Proxy

TOPIC: Final = "t"
STRIDE: Final = 1_000_000
SESSION_MS, REBALANCE_MS = 4_000, 4_000
HEARTBEAT_S, ANSWER_S, BARRIER_S = 0.4, 1.2, 9.0
AGAIN_S: Final = 0.15


class Lapse(Enum):
    """Where a member stops, for a while, as if its process stood still."""

    HEARTBEATS = "it is Stable and says nothing"
    JOIN = "it has asked to join, and does not get the reply"
    SYNC = "it has joined, and never syncs"
    PLAN = "it has asked to sync, and does not get the reply"


@dataclass(frozen=True, slots=True)
class Observations:
    """One answered request: when it was sent and answered (s since 1970), and what it said."""

    sent: float
    answered: float
    kind: str
    member_id: str
    generation: int
    code: ErrorCode
    assignment: tuple[int, ...] = ()
    offsets: dict[int, int] = field(default_factory=dict)


class StormMember:
    """One member of one group with a network of its own to every broker."""

    def __init__(self, group_id: str, name: str, brokers: list[BrokerProcess], seed: int, partitions: int) -> None:
        self.group_id = group_id
        self.name = name
        self.brokers = brokers
        self.partitions = partitions
        self.random = random.Random(seed)
        self.networks = {broker.port: Proxy(broker.port) for broker in brokers}
        self.history: list[Observations] = []
        self.unanswered: list[tuple[int, int]] = []
        """Commits whose outcome is unknown: partition, offset."""
        self.lapse: tuple[Lapse, float] | None = None
        self.leaving = False
        self.synced_generation = -1
        self._member = self._fresh(None)
        self._members: set[str] = set()
        """The members in its last join response: all, where it leads."""
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._clients: list[RawClient] = []

    def _fresh(self, client: Any) -> Member:
        return Member(client, self.group_id, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS)

    async def start(self) -> None:
        """Begin its life."""
        for network in self.networks.values():
            await network.start()
        self._task = asyncio.create_task(self._live())

    async def leave(self) -> None:
        """LeaveGroup as soon as it can, and no more. Raises what ended its life otherwise."""
        self.leaving = True
        assert self._task is not None
        await self._task

    def observe(self) -> None:
        """Raises what ended its life, if anything did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Its process is gone."""
        while self._task is not None and not self._task.done():
            self._task.cancel()  # again and again: `wait_for` of Python 3.11 may swallow one
            await asyncio.wait([self._task], timeout=0.2)
        for client in self._clients:
            client.writer.transport.abort()
        for network in self.networks.values():
            await network.close()

    # -- its life

    async def _live(self) -> None:
        while not self.leaving:
            try:
                await self._connect()
                await self._membership()
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(AGAIN_S)
            finally:
                if self._member.client is not None:
                    self._member.client.writer.transport.abort()
        if self._member.member_id:
            with suppress(OSError, EOFError, TimeoutError):
                await self._connect()
                await asyncio.wait_for(self._member.leave(), ANSWER_S)
                self._member.client.writer.transport.abort()

    async def _connect(self) -> None:
        """Ask any broker who the coordinator is, and go there."""
        asked = await self._open(self.random.choice(self.brokers).port)
        try:
            port = await coordinator(asked, self.group_id, ANSWER_S)
        finally:
            asked.writer.transport.abort()
        self._member.client = await self._open(port if port in self.networks else self.brokers[0].port)

    async def _open(self, port: int) -> RawClient:
        """A connection into its own network, which takes it whatever has become of the broker."""
        client = await RawClient.connect(f"127.0.0.1:{self.networks[port].port}", self.name)
        self._clients.append(client)
        return client

    async def _membership(self) -> None:
        """Rounds and heartbeats, as long as the connection answers."""
        while not self.leaving:
            if self.synced_generation != self._member.generation or self.synced_generation < 0:
                if not await self._round():
                    await asyncio.sleep(AGAIN_S)
                continue
            await self._is_stopped(Lapse.HEARTBEATS)
            code = (await self._ask("heartbeat", self._member.heartbeat(), ANSWER_S, lambda answer: answer)).code
            if code is ErrorCode.none:
                await self._commit()
                await asyncio.sleep(HEARTBEAT_S * self.random.uniform(0.7, 1.3))
            else:
                self._refused(code)

    async def _round(self) -> bool:
        member = self._member
        self.synced_generation = -1
        joining = self._ask("join", member.join(BARRIER_S), BARRIER_S + 1, lambda answer: answer.error_code)
        joined = await self._or_stand_still(Lapse.JOIN, joining)
        if joined.code is not ErrorCode.none:
            self._refused(joined.code)
            return False
        await self._is_stopped(Lapse.SYNC)
        syncing = self._ask(
            "sync", member.sync(self._plan(), BARRIER_S), BARRIER_S + 1, lambda answer: answer.error_code
        )
        synced = await self._or_stand_still(Lapse.PLAN, syncing)
        if synced.code is not ErrorCode.none:
            self._refused(synced.code)
            return False
        self.synced_generation = member.generation
        owned = self.owned
        if owned:
            sent = time.time()
            found = await member.committed(TOPIC, owned, ANSWER_S)
            self.history.append(self._observed("fetched", sent, ErrorCode.none, offsets=found))
        return True

    def _refused(self, code: ErrorCode) -> None:
        self.synced_generation = -1
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            self._member = self._fresh(self._member.client)

    @property
    def owned(self) -> list[int]:
        """Its partitions in the generation it is synced in."""
        return json.loads(self._member.assignment or b"[]") if self.synced_generation >= 0 else []

    def _plan(self) -> dict[str, bytes]:
        """As the leader: partition numbers dealt over the members."""
        members = sorted(self._members)
        return {
            member_id: json.dumps(list(range(place, self.partitions, len(members)))).encode()
            for place, member_id in enumerate(members)
        }

    async def _commit(self) -> None:
        owned = self.owned
        if not owned:
            return
        self._number += 1
        offset = self._member.generation * STRIDE + self._number
        offsets = dict.fromkeys(owned, offset)
        mine = [(partition, offset) for partition in owned]
        self.unanswered += mine
        sent = time.time()
        codes = await self._member.commit(TOPIC, offsets, ANSWER_S)
        code = codes[owned[0]]
        assert set(codes.values()) == {code}, codes
        del self.unanswered[-len(mine) :]
        self.history.append(self._observed("commit", sent, code, offsets=offsets))

    # -- asking

    async def _ask(
        self, kind: str, asking: Coroutine[Any, Any, Any], timeout_s: float, code_of: Callable[[Any], ErrorCode]
    ) -> Observations:
        sent = time.time()
        answer = await asyncio.wait_for(asking, timeout_s)
        code = code_of(answer)
        if kind == "join":
            self._members = {one.member_id for one in answer.members}
        assignment = tuple(json.loads(answer.assignment)) if kind == "sync" and code is ErrorCode.none else ()
        observed = self._observed(kind, sent, code, assignment)
        self.history.append(observed)
        return observed

    def _observed(
        self,
        kind: str,
        sent: float,
        code: ErrorCode,
        assignment: tuple[int, ...] = (),
        offsets: dict[int, int] | None = None,
    ) -> Observations:
        member = self._member
        return Observations(
            sent, time.time(), kind, member.member_id, member.generation, code, assignment, offsets or {}
        )

    # -- lapses

    async def _is_stopped(self, where: Lapse) -> None:
        if self.lapse is not None and self.lapse[0] is where:
            seconds, self.lapse = self.lapse[1], None
            await asyncio.sleep(seconds)

    async def _or_stand_still(self, where: Lapse, asking: Coroutine[Any, Any, Observations]) -> Observations:
        if self.lapse is None or self.lapse[0] is not where:
            return await asking
        seconds, self.lapse = self.lapse[1], None
        asked = asyncio.create_task(asking)
        await asyncio.wait([asked], timeout=0.2)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(seconds)
        raise TimeoutError
