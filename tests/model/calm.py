"""The end of every life: faults stop, clients behave, and the group must come to rest (P5, P6, I17, I23)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.model.world import PARTITION_COUNT, Client, Request
from tests.support.steps import sweep_expiry
from tidegate.errors import StoreUnavailable
from tidegate.groups.model import JoinRefused

if TYPE_CHECKING:
    from tests.model.life import Life

CALM_PROTOCOLS: Final = (("range", b"r"), ("coop", b"c"))
CALM_MAX_MS: Final = 120_000
"""Members of before may first have to expire, or miss a join phase and the wait for assignments."""
SILENCE_MS: Final = 90_000
"""Longer than a rebalance, a lease and a session one after the other."""
HEARTBEAT_MS: Final = 2_000
ANSWER_MS: Final = 1_000
"""A client's patience with a heartbeat."""


def calm_down(life: Life) -> None:
    """Let the group become Stable; kill a broker, which must cost nothing; then let all be silent."""
    world = life.world
    for link in world.network.links:
        if hasattr(link, "release"):
            link.release()
    while world.network.ghosts:
        world.network.haunt()
    world.network.muted.clear()
    life.go(100)
    for broker in world.brokers:
        broker.store.settings = broker.store.settings.model_copy(update={"group_max_size": 100})
    if not world.clients:
        return
    for client in world.clients:
        client.protocols = CALM_PROTOCOLS
    with behaving(life) as consumers:
        _until_stable(life, consumers)
        _kill_a_broker(life, consumers)
    _fall_silent(life)


@contextlib.contextmanager
def behaving(life: Life) -> Iterator[list[Consumer]]:
    """All clients behave as Kafka's do, for a while."""
    consumers = [Consumer(life, client) for client in life.world.clients]
    tasks = [life.world.spawn(consumer.live()) for consumer in consumers]
    yield consumers
    for task in tasks:
        task.cancel()
    life.go()


def _until_stable(life: Life, consumers: list[Consumer]) -> None:
    began_ms = life.world.now_ms
    while not _at_rest(life, consumers):
        life.go(500)
        assert life.world.now_ms - began_ms < CALM_MAX_MS, f"P6, I23: not Stable, but {_snapshot(life)}"
    generation = life.before.generation
    owned = sorted(partition for number, partition in life.known_replies.owner if number == generation)
    assert owned == list(range(PARTITION_COUNT)), f"P1: partitions owned are {owned}"


def _at_rest(life: Life, consumers: list[Consumer]) -> bool:
    now = life.before
    ids = {consumer.client.member_id for consumer in consumers}
    return (
        now.state == "Stable"
        and now.members.keys() == ids
        and all(consumer.assigned == now.generation for consumer in consumers)
    )


def _snapshot(life: Life) -> str:
    clients = [(client.name, client.member_id, client.generation, client.request) for client in life.world.clients]
    return f"{life.before.text}, members {life.before.members}, clients {clients}"


def _kill_a_broker(life: Life, consumers: list[Consumer]) -> None:
    generation = life.before.generation
    life.strike(0, "kill", 0)
    for _ in range(8):
        life.go(1_000)
    assert life.before.generation == generation and life.before.state == "Stable", "P5: a broker's end rebalanced"
    assert _at_rest(life, consumers)


def _fall_silent(life: Life) -> None:
    """Everything parked is answered, and the group comes to rest, even with nobody to look but the sweeper."""
    for _ in range(SILENCE_MS // 5_000):
        life.go(5_000)
        for broker in life.world.brokers:
            life.world.spawn(sweep_expiry(broker.expiry))
        life.go()
    assert not life.world.requests, "P6, I17: a request was never answered"
    assert life.before.state == "Empty", f"I13: silent members stay in {life.before.state}"


class Consumer:
    """A client that does what Kafka's do: join, sync, heartbeat, and join again after a rebalance."""

    def __init__(self, life: Life, client: Client) -> None:
        self.life, self.client = life, client
        self.assigned = -1

    async def live(self) -> None:
        while True:
            if await self._join() and await self._sync() and await self._sync():  # the second as if the first was lost
                self.assigned = self.client.generation
                await self._heartbeat()
                self.assigned = -1
            await asyncio.sleep(0.1)

    async def _join(self) -> bool:
        life, client = self.life, self.client
        error = await self._answer(client.request or life.world.join(client))
        return error is None and client.joined is not None and client.joined.member_id == client.member_id

    async def _sync(self) -> bool:
        client = self.client
        return await self._answer(self.life.world.sync(client, self.life.plan(client))) is None

    async def _answer(self, request: Request) -> BaseException | None:
        await asyncio.wait([request.task])
        if request.task.cancelled():
            return StoreUnavailable("the connection is gone")
        error = request.task.exception()
        assert isinstance(error, JoinRefused | Exception | None)
        return error

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.life.world.heartbeat(self.client, functools.partial(_report, code))
            self.life.act(self.client, "commit")
            try:
                known_replies = await asyncio.wait_for(code, ANSWER_MS / 1000)
            except TimeoutError:  # its broker is dead
                continue
            if known_replies in (25, 82):
                self.life.bury(self.client)
            if known_replies not in (0, 15):
                return


def _report(code: asyncio.Future[int], known_replies: int) -> None:
    if not code.done():
        code.set_result(known_replies)
