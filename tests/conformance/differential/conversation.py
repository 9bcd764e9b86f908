"""One conversation held with both targets in step: each request goes to both, and both are quiet before the next.

"No answer yet" is an observation too. A step is over when nothing more comes from either target for a moment and
both have answered the same requests; where they have not, the slower one is waited for generously.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.conformance.differential import allowed
from tests.conformance.differential.messages import VERSIONS, build
from tests.conformance.differential.normalise import leaves, normalise
from tests.conformance.differential.observed import PARKED, Difference, Tally, compare
from tests.conformance.differential.sides import Side, resolve
from tests.conformance.differential.targets import Targets

_QUIET_S: Final = 0.04
_SILENT_S: Final = 0.08
_PATIENCE_S: Final = 10.0
_EXCUSED_S: Final = 1.0
_ELAPSED_TOLERANCE_S: Final = 0.45
_RETRY_S: Final = (0.1, 0.3, 0.6, 1.2)

_CODE: Final = "error_code"
_PROBING: Final = "@probe"
_PROBE: Final = {"groups": (lambda side: side.group_id,), "include_authorized_operations": False}
MAY_PARK: Final = ("JoinGroup", "SyncGroup")


class Ended(Exception):
    """The two groups are not alike any more: by an allowed difference that lasts, or by a real one."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to both targets, and their answers so far."""

    step: int
    actor: str
    api: str
    version: int
    values: Mapping[str, Any]
    tasks: tuple[asyncio.Task[Any], asyncio.Task[Any]]
    answers: tuple[Any, Any] = (None, None)
    superseded: bool = False
    """The same member asked again while this was parked: if that was taken, Kafka never answers this one."""
    ended_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @property
    def done(self) -> tuple[bool, bool]:
        """Whether each target answered."""
        return self.tasks[0].done(), self.tasks[1].done()

    @property
    def is_uneven(self) -> bool:
        """One target owes an answer: it alone, or both for a request that is never parked."""
        if self.api in MAY_PARK:
            return self.done[0] != self.done[1]
        return not all(self.done)

    @property
    def code(self) -> str:
        """Kafka's error code by name, "" while it is parked."""
        return self.answers[0].get("error_code", "none") if isinstance(self.answers[0], dict) else ""

    @property
    def codes(self) -> str:
        """All of Kafka's error codes in the answer, those of partitions and members too."""
        return "+".join(sorted({value for path, value in leaves(self.answers[0]).items() if path.endswith(_CODE)}))

    @property
    def is_parked(self) -> bool:
        """Neither answered when the step was over."""
        return self.answers == (None, None)

    def expired(self) -> tuple[Any, Any]:
        """Each answer, or PARKED."""
        kafka, tidegate = ((PARKED if answer is None else answer) for answer in self.answers)
        return kafka, tidegate


class Conversation:
    """What is said, what came back, and how it compared. `seed` decides which broker gets which request."""

    def __init__(self, name: str, targets: Targets, seed: int = 0) -> None:
        self.name, self.chance = name, random.Random(f"{name} {seed}")
        group_id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.sides = (Side(targets.kafka, group_id), Side(targets.tidegate, group_id))
        self.tally, self.found, self.allowed = Tally(), list[Difference](), Counter[str]()
        self.examples: dict[str, Difference] = {}
        self.transcript: list[str] = []
        self.notes: set[str] = {"unborn", "unwritten"}
        self.leader, self.state = "", "Dead"
        self._outstanding: list[Exchange] = []

    async def report(
        self,
        actor: str,
        api: str,
        version: int | None = None,
        probe: bool = True,
        client_id: str = "client",
        **values: Any,
    ) -> Exchange:
        """One step: a request to both, and what follows. Callable values are asked of each side.

        With `probe`, the group is then described at both. Raises Ended.
        """
        self.tally.steps += 1
        exchange = self._send(actor, api, VERSIONS[api][-1] if version is None else version, client_id, values)
        await self.compare()
        if probe:
            await self._observe(after=api)
        if exchange.is_parked:
            self._note_parked(exchange)
        return exchange

    def _note_parked(self, exchange: Exchange) -> None:
        self.transcript.append(f"    {exchange.actor} {exchange.api}: parked at both")
        self.tally.parked += 1
        self.tally.fields += 1
        self.tally.cases.add((self.state, exchange.api, PARKED))
        if exchange.api == "JoinGroup":
            self.notes.discard("unborn")

    async def _observe(self, after: str) -> None:
        """Describe the group. Where that differs one of them may be slow to get there: look again before it counts."""
        for pause_s in (*_RETRY_S, None):
            observe = self._send(_PROBING, "DescribeGroups", 6, "probe", _PROBE)
            await self._even(after)
            self._learn()
            observe.answers = self._answers(observe)
            differs = any(allowed.find(difference) is None for difference in self._unlike(observe, after)[1])
            if pause_s is None or not differs:
                break
            self._outstanding.remove(observe)
            await asyncio.sleep(pause_s)
        self._take(after)

    def _send(self, actor: str, api: str, version: int, client_id: str, values: Mapping[str, Any]) -> Exchange:
        self._supersede(api, values)
        if api == "JoinGroup" and values.get("group_instance_id") and not resolve(values["member_id"], self.sides[0]):
            self.notes.add("static restart")
        if api == "JoinGroup" and values.get("rebalance_timeout", 1) <= 0:
            self.notes.add("no rebalance timeout")
        place = self.chance.randrange(2)
        requests = [resolve({"group_id": lambda side: side.group_id} | dict(values), side) for side in self.sides]
        tasks = [
            asyncio.create_task(side.ask(actor, place, api, build(api, version, request), client_id))
            for side, request in zip(self.sides, requests, strict=True)
        ]
        exchange = Exchange(self.tally.steps, actor, api, version, requests[0], (tasks[0], tasks[1]))
        started = asyncio.get_running_loop().time()
        for index, task in enumerate(tasks):
            task.add_done_callback(partial(self._clock, exchange, index, started))
        self._outstanding.append(exchange)
        shown = self.sides[0].names.plain(requests[0])
        self.transcript.append(f"{exchange.step:3} {actor} -> {api} v{version} {shown}")
        return exchange

    def _clock(self, exchange: Exchange, index: int, started: float, _: asyncio.Task[Any]) -> None:
        exchange.ended_s[index] = asyncio.get_running_loop().time() - started

    def _supersede(self, api: str, values: Mapping[str, Any]) -> None:
        member_id = resolve(values.get("member_id", ""), self.sides[0])
        if api not in MAY_PARK or not member_id:
            return
        for earlier in self._outstanding:
            if earlier.api == api and earlier.values["member_id"] == member_id:
                earlier.superseded = True

    async def compare(self, after: str = "") -> None:
        """Wait until both are quiet and even, then compare what was answered. Raises Ended."""
        await self._even(after)
        self._learn()
        self._take(after)

    async def _even(self, after: str) -> None:
        """Wait until both are quiet and have answered the same, or until one is clearly not going to."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            await self._quiet()
            uneven = [one for one in self._outstanding if one.is_uneven]
            awaited = loop.time() - started
            if not uneven or awaited > _PATIENCE_S:
                break
            if awaited > _EXCUSED_S and all(self._excused(one, after) for one in uneven):
                break

    async def _quiet(self) -> None:
        """Nothing came for a moment; a longer one while there is no answer at all."""
        answered = -1
        while True:
            count = sum(sum(one.done) for one in self._outstanding)
            if count == answered:
                return
            answered = count
            waiting = [task for one in self._outstanding for task in one.tasks if not task.done()]
            limit = _QUIET_S if count else _SILENT_S
            if waiting:
                await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            elif count:
                return

    def _excused(self, exchange: Exchange, after: str) -> bool:
        kafka, tidegate = (
            (normalise(exchange.api, task.result(), side.names) if task.done() else PARKED)
            for task, side in zip(exchange.tasks, self.sides, strict=True)
        )
        return allowed.find(self._difference(exchange, after, "", kafka, tidegate, (kafka, tidegate))) is not None

    def _learn(self) -> None:
        for exchange in self._outstanding:
            for side, task in zip(self.sides, exchange.tasks, strict=True):
                if task.done():
                    side.learn(exchange.actor, exchange.api, task.result())

    def _take(self, after: str) -> None:
        ready = [one for one in self._outstanding if any(one.done)]
        differences: list[Difference] = []
        for exchange in ready:
            exchange.answers = self._answers(exchange)
            self._write_down(exchange)
        if any(exchange.code == "group_max_size_reached" for exchange in ready):
            self.notes.add("refused for size")
        for exchange in ready:
            differences += self._compared(exchange, after)
        self._outstanding = [one for one in self._outstanding if not any(one.done)]
        self._judge(differences)
        self._note(ready)

    def _answers(self, exchange: Exchange) -> tuple[Any, Any]:
        kafka, tidegate = (
            normalise(exchange.api, task.result(), side.names) if task.done() else None
            for task, side in zip(exchange.tasks, self.sides, strict=True)
        )
        return kafka, tidegate

    def _write_down(self, exchange: Exchange) -> None:
        kafka, tidegate = exchange.expired()
        self.transcript.append(f"    {exchange.actor} {exchange.api} v{exchange.version}: {kafka}")
        if kafka != tidegate:
            self.transcript.append(f"    ... tidegate: {tidegate}")

    def _compared(self, exchange: Exchange, after: str) -> list[Difference]:
        count, differences = self._unlike(exchange, after)
        self.tally.fields += count
        self.tally.answers[f"{exchange.api} v{exchange.version}"] += 1
        return differences

    def _unlike(self, exchange: Exchange, after: str) -> tuple[int, list[Difference]]:
        whole = exchange.expired()
        count, unlike = compare(*whole)
        return count, [self._difference(exchange, after, *values, whole) for values in unlike]

    def _difference(
        self, exchange: Exchange, after: str, path: str, kafka: Any, tidegate: Any, whole: tuple[Any, Any]
    ) -> Difference:
        notes = self.notes | ({"superseded"} if exchange.superseded else set()) | {f"leader {self.leader}"}
        return Difference(
            self.name,
            self.tally.steps,
            exchange.api,
            exchange.version,
            path,
            kafka,
            tidegate,
            after,
            frozenset(notes),
            whole,
        )

    def _judge(self, differences: list[Difference]) -> None:
        rules = [(difference, allowed.find(difference)) for difference in differences]
        lasting = [rule for _, rule in rules if rule is not None and rule.lasts]
        for difference, rule in rules:
            if rule is not None:
                self.allowed[rule.key] += 1
                self.examples.setdefault(rule.key, difference)
            elif not lasting:  # else a consequence
                self.found.append(difference)
        if lasting or self.found:
            raise Ended

    def _note(self, ready: list[Exchange]) -> None:
        for exchange in ready:
            answer = exchange.answers[0]
            if exchange.actor == _PROBING:
                self.state = answer["groups"][0]["group_state"]
            else:
                self.tally.cases.add((self.state, exchange.api, exchange.codes or "none"))
            if exchange.api == "OffsetCommit" and "'none'" in str(answer):
                self.notes -= {"unborn", "unwritten"}
            if exchange.api == "SyncGroup" and exchange.code == "none":
                self.notes.discard("unwritten")
            if exchange.api == "DeleteGroups" and "'none'" in str(answer):
                self.notes |= {"unborn", "unwritten"}
            if exchange.api == "JoinGroup" and exchange.code == "none":
                self.leader = answer["leader"]
                self.notes.discard("unborn")

    async def rest(self, seconds: float) -> None:
        """Let time pass at both, then compare what was answered meanwhile. Raises Ended."""
        await asyncio.sleep(seconds)
        await self.compare()

    async def until_answered(self, *exchanges: Exchange, within_s: float = 20.0) -> None:
        """Wait for both answers to each, and compare how long they took as well. Raises Ended."""
        tasks = [task for exchange in exchanges for task in exchange.tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        took = [exchange for exchange in exchanges if all(exchange.done)]
        await self.compare()
        late = []
        for exchange in took:
            kafka_s, tidegate_s = exchange.ended_s
            self.tally.fields += 1
            if abs(kafka_s - tidegate_s) > _ELAPSED_TOLERANCE_S:
                values = (f"{kafka_s:.2f} s", f"{tidegate_s:.2f} s")
                late.append(self._difference(exchange, "", "(elapsed)", *values, whole=exchange.expired()))
        self._judge(late)

    async def close(self) -> None:
        """Give up what is outstanding."""
        tasks = [task for exchange in self._outstanding for task in exchange.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(side.close() for side in self.sides))
