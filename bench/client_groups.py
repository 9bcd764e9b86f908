"""A group of real clients, watched through what their programs print: who owns what since when, what was consumed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.clients import Client, Command, Program
from bench.kafka_wire import MeasureFailed

STABLE_TIMEOUT_S: Final = 60.0
_PRODUCE_EVERY_S: Final = 0.25


@dataclass(slots=True)
class Observations:
    """One member, as its program reports it."""

    program: Program
    joining_s: float = 0.0
    assigned_s: float = 0.0
    partitions: frozenset[int] = frozenset()
    closed_ms: int | None = None


@dataclass(slots=True)
class ClientGroup:
    """The members of one group, in any number of programs."""

    client: Client
    command: Command
    bootstrap: str
    topic: str
    group_id: str
    partitions: int
    members: dict[int, Observations] = field(default_factory=dict)
    """Those that were asked to join and not to close."""
    gone: dict[int, Observations] = field(default_factory=dict)
    consumed: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(partition, offset) -> how often it was consumed."""
    arrived_s: dict[tuple[int, int], float] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    _programs: list[Program] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def program(self, session_ms: int = 0) -> Program:
        """One more process for members."""
        made = Program(self._listener)
        self._programs.append(made)
        return await made.start(self.command, self.bootstrap, self.topic, self.group_id, session_ms)

    async def close(self) -> None:
        """Kill every process."""
        for program in self._programs:
            await program.kill()

    # -- what members do

    def join(self, program: Program, number: int, mode: str = "auto", instance: str = "") -> None:
        """Have a member join; see `expired`."""
        self.members[number] = Observations(program)
        program.send(f"join {number} {mode} {instance}".rstrip())

    async def leave(self, number: int) -> int:
        """Have a member close; how long its close took, ms."""
        observed = self.gone[number] = self.members.pop(number)
        observed.program.send(f"close {number}")
        await self.until(lambda: observed.closed_ms is not None, f"member {number} did not close")
        assert observed.closed_ms is not None
        return observed.closed_ms

    async def crash(self, program: Program) -> None:
        """Kill a process and forget its members."""
        self.members = {
            number: observed for number, observed in self.members.items() if observed.program is not program
        }
        await program.kill()

    async def expired(self, since_s: float) -> float:
        """When every member has got partitions since then, each partition once."""
        await self.until(lambda: self._is_stable(since_s), "not stable")
        return max(observed.assigned_s for observed in self.members.values())

    async def joined(self, program: Program, number: int, mode: str = "auto", instance: str = "") -> float:
        """One more member joins: seconds from its start until all have their new partitions."""
        since_s = asyncio.get_running_loop().time()
        self.join(program, number, mode, instance)
        return await self.expired(since_s) - self.members[number].joining_s

    def _is_stable(self, since_s: float) -> bool:
        owned = sorted(partition for observed in self.members.values() for partition in observed.partitions)
        return owned == list(range(self.partitions)) and all(
            observed.assigned_s >= since_s for observed in self.members.values()
        )

    async def until(self, condition: Callable[[], bool], failure: str) -> None:
        """Wait until what programs say makes it true. Raises MeasureFailed."""
        try:
            async with asyncio.timeout(STABLE_TIMEOUT_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            owners = {number: sorted(observed.partitions) for number, observed in self.members.items()}
            raise MeasureFailed(f"{self.client.name}: {failure}; owners {owners}; {self.troubles[-3:]}") from None

    # -- what programs say

    def _listener(self, program: Program, event: dict[str, Any], now_s: float) -> None:
        number, kind = event["m"], event["e"]
        if kind == "records":  # also of a process that was killed meanwhile
            for offset in range(event["a"], event["b"] + 1):
                self.consumed[event["p"], offset] += 1
                self.arrived_s.setdefault((event["p"], offset), now_s)
        observed = self.members.get(number) or self.gone.get(number)
        if observed is None or observed.program is not program or kind == "records":
            self._changed.set()
            return
        if kind == "joining":
            observed.joining_s = now_s
        elif kind == "assigned":
            observed.assigned_s, observed.partitions = now_s, frozenset(event["p"])
        elif kind == "revoked":
            observed.partitions = frozenset()
        elif kind == "closed":
            observed.closed_ms = event["ms"]
        else:
            self.troubles.append(f"{kind} {event.get('error', '')}".strip())
        self._changed.set()


class Records:
    """One record a partition every so often, until stopped; when each was sent."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.sent_s: dict[tuple[int, int], float] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topic, self._partitions = topic, partitions
        self._task = asyncio.create_task(self._produce())

    async def _produce(self) -> None:
        loop, offset = asyncio.get_running_loop(), 0
        while True:
            for partition in range(self._partitions):
                self.sent_s[partition, offset] = loop.time()
                self._producer.produce(self._topic, b"x", partition=partition)
            self._producer.poll(0)
            offset += 1
            await asyncio.sleep(_PRODUCE_EVERY_S)

    async def stop(self) -> None:
        """Send what is to be sent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._producer.flush, 10)


def create_topic(bootstrap: str, topic: str, partitions: int, **configs: str) -> None:
    """Make a topic, and wait for it. Configs by name, with `_` for `.`."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {name.replace("_", "."): value for name, value in configs.items()}
    for made in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        made.result(30)
