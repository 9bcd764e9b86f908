"""The end of every life: faults stop, clients behave, and the group must come to rest (P5, P6, I17, I23)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.errors import StoreUnavailable
from broker.groups.model import JoinRefused
from tests.model.world import PARTITION_COUNT, Client, Request

if TYPE_CHECKING:
    from tests.model.machine import Groups

CALM_PROTOCOLS: Final = (("range", b"r"), ("coop", b"c"))
CALM_MAX_MS: Final = 120_000
"""Members of before may first have to expire, or miss a join phase and the wait for assignments."""
SILENCE_MS: Final = 90_000
"""Longer than a rebalance, a lease and a session one after the other."""
BEAT_MS: Final = 2_000
ANSWER_MS: Final = 1_000
"""A client's patience with a heartbeat."""


def calm_down(machine: Groups) -> None:
    """Let the group become Stable; kill a broker, which must cost nothing; then let all be silent."""
    world = machine.world
    for link in world.network.links:
        if hasattr(link, "release"):
            link.release()
    while world.network.ghosts:
        world.network.haunt()
    world.network.muted.clear()
    machine.go(100)
    for broker in world.brokers:
        broker.store.settings = broker.store.settings.model_copy(update={"group_max_size": 100})
    if not world.clients:
        return
    for client in world.clients:
        client.protocols = CALM_PROTOCOLS
    with behaving(machine) as consumers:
        _until_stable(machine, consumers)
        _kill_a_broker(machine, consumers)
    _fall_silent(machine)


@contextlib.contextmanager
def behaving(machine: Groups) -> Iterator[list[Consumer]]:
    """All clients behave as Kafka's do, for a while."""
    consumers = [Consumer(machine, client) for client in machine.world.clients]
    lives = [machine.world.spawn(consumer.live()) for consumer in consumers]
    yield consumers
    for life in lives:
        life.cancel()
    machine.go()


def _until_stable(machine: Groups, consumers: list[Consumer]) -> None:
    began_ms = machine.world.now_ms
    while not _at_rest(machine, consumers):
        machine.go(500)
        assert machine.world.now_ms - began_ms < CALM_MAX_MS, f"P6, I23: not Stable, but {_picture(machine)}"
    generation = machine.before.generation
    owned = sorted(partition for number, partition in machine.told.owner if number == generation)
    assert owned == list(range(PARTITION_COUNT)), f"P1: partitions owned are {owned}"


def _at_rest(machine: Groups, consumers: list[Consumer]) -> bool:
    now = machine.before
    ids = {consumer.client.member_id for consumer in consumers}
    return (
        now.state == "Stable"
        and now.members.keys() == ids
        and all(consumer.assigned == now.generation for consumer in consumers)
    )


def _picture(machine: Groups) -> str:
    clients = [(client.name, client.member_id, client.generation, client.request) for client in machine.world.clients]
    return f"{machine.before.text}, members {machine.before.members}, clients {clients}"


def _kill_a_broker(machine: Groups, consumers: list[Consumer]) -> None:
    generation = machine.before.generation
    machine.strike(0, "kill", 0)
    for _ in range(8):
        machine.go(1_000)
    assert machine.before.generation == generation and machine.before.state == "Stable", "P5: a broker's end rebalanced"
    assert _at_rest(machine, consumers)


def _fall_silent(machine: Groups) -> None:
    """Everything parked is answered, and the members expire, even with nobody to look but the sweeper."""
    for _ in range(SILENCE_MS // 5_000):
        machine.go(5_000)
        for broker in machine.world.brokers:
            machine.world.spawn(broker.expiry.sweep_now())
        machine.go()
    assert not machine.world.requests, "P6, I17: a request was never answered"
    assert machine.before.state == "Empty", f"I13: silent members stay in {machine.before.state}"


class Consumer:
    """A client that does what Kafka's do: join, sync, heartbeat, and begin again when told so."""

    def __init__(self, machine: Groups, client: Client) -> None:
        self.machine, self.client = machine, client
        self.assigned = -1

    async def live(self) -> None:
        while True:
            if await self._join() and await self._sync() and await self._sync():  # the second as if the first was lost
                self.assigned = self.client.generation
                await self._beat()
                self.assigned = -1
            await asyncio.sleep(0.1)

    async def _join(self) -> bool:
        machine, client = self.machine, self.client
        error = await self._answer(client.request or machine.world.join(client))
        return error is None and client.joined is not None and client.joined.member_id == client.member_id

    async def _sync(self) -> bool:
        client = self.client
        return await self._answer(self.machine.world.sync(client, self.machine.plan(client))) is None

    async def _answer(self, request: Request) -> BaseException | None:
        await asyncio.wait([request.task])
        if request.task.cancelled():
            return StoreUnavailable("the connection is gone")
        error = request.task.exception()
        assert isinstance(error, JoinRefused | Exception | None)
        return error

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_MS / 1000)
            code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.machine.world.beat(self.client, lambda told, code=code: code.done() or code.set_result(told))
            self.machine.act(self.client, "commit")
            try:
                told = await asyncio.wait_for(code, ANSWER_MS / 1000)
            except TimeoutError:  # its broker is dead
                continue
            if told in (25, 82):
                self.machine.bury(self.client)
            if told not in (0, 15):
                return
