"""Fetches that wait for the same at a log's end: one read, one encoding, the same bytes as each by itself."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from tests.support.log_broker import Asked, Connection, fetch_request
from tests.unit.apis import fakes
from tests.unit.apis.fakes import BATCH, BATCH_BYTES, FakeBroker, FakeLog
from tidegate.apis import fetch, waiting_fetches
from tidegate.apis.fetch import Fetching
from tidegate.apis.waiting_fetches import FetchWaits
from tidegate.protocol import log_writers
from tidegate.records.batch import Codec

TICKS = 6
"""Turns of the event loop after which nothing happens any more."""
ONE = [("t", [(0, 0)])]


async def run_callbacks() -> None:
    for _ in range(TICKS):
        await asyncio.sleep(0)


@dataclass(slots=True)
class Reader:
    """A client that fetches its partitions from where it is, in a session or without one."""

    connection: Connection
    version: int
    partitions: Sequence[int]
    isolation: int = 0
    in_session: bool = False
    min_bytes: int = 1
    epochs: bool = False
    asked: Asked | None = None
    bodies: list[bytes] = field(default_factory=list)
    _session: tuple[int, int] = (0, -1)
    _offsets: dict[int, int] = field(default_factory=dict)
    _moved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._offsets = dict.fromkeys(self.partitions, 0)
        self._moved = set(self.partitions)
        if self.in_session:
            self._session = 0, 0

    def fetch(self) -> None:
        """Ask for more, if the last answer is here."""
        self.collect()
        if self.asked is not None:
            return
        wanted = sorted(self._moved) if self._session[1] > 0 else self.partitions
        more = {"current_leader_epoch": 0} if self.epochs and self.version >= 9 else {}
        more |= {"last_fetched_epoch": 0} if self.epochs and self.version >= 12 else {}
        topic = UUID(int=7) if self.version >= 13 else "t"
        request = fetch_request(
            [(topic, [(index, self._offsets[index], more) for index in wanted])] if wanted else [],
            version=self.version, max_wait_ms=60_000, min_bytes=self.min_bytes, max_bytes=10 * BATCH_BYTES,
            isolation_level=self.isolation, session=self._session,
        )  # fmt: skip
        self._moved = set()
        self.asked = self.connection.send(request)

    def collect(self) -> None:
        """Take the answer, if it is here, and continue behind it."""
        if self.asked is None or not self.asked.answer.done():
            return
        response = self.asked.answer.result()
        self.bodies.append(self.asked.body)
        self.asked = None
        if self.in_session:
            self._session = response.session_id, self._session[1] + 1
        for topic in response.responses:
            for part in topic.partitions:
                if part.records:
                    self._offsets[part.partition_index] += len(part.records) // BATCH_BYTES
                    self._moved.add(part.partition_index)


def change(logs: Sequence[FakeLog], log: FakeLog, action: str) -> None:
    """What happens to one log, or to all."""
    match action:
        case "grow":
            log.grow()
        case "grow all":
            for each in logs:
                each.grow(2)
        case "trim":
            log.start = log.end
            log.changed()
        case "epoch":
            log.epoch += 1
            log.changed()
        case "hold":
            log.held = not log.held


async def play(
    readers: Sequence[dict[str, Any]], steps: Sequence[tuple[Any, ...]], *, subscribed: bool = False
) -> list[list[bytes]]:
    """The bytes that each reader got."""
    logs = [FakeLog() for _ in range(3)]
    broker = FakeBroker(logs)
    for log in logs:
        log.aborts, log.subscribed = 7, subscribed
    playing = [Reader(broker.connect(number), **reader) for number, reader in enumerate(readers)]
    numbers = itertools.count(1)
    with patch.object(secrets, "randbelow", lambda _: next(numbers)):
        for action, index in steps:
            if action == "fetch":
                for reader in playing:
                    reader.fetch()
            elif action == "close":
                playing[index % len(playing)].connection.close()
            else:
                change(logs, logs[index], action)
            await run_callbacks()
            while any(log.waiting for log in logs):
                for log in logs:
                    log.release()
                await run_callbacks()
        broker.draining.set()
        await run_callbacks()
    for reader in playing:
        reader.collect()
        reader.connection.close()
    assert not any(log.listeners for log in logs) and not len(broker.context.first_fetches)
    return [reader.bodies for reader in playing]


async def play_both(readers: Sequence[dict[str, Any]], steps: Sequence[tuple[Any, ...]]) -> list[list[bytes]]:
    """What the readers got, the same whether they wait and are answered together or each by itself.

    A fetch that waits behind an equal one may learn of another epoch before it would by itself: steps without that.
    """
    calm = [step for step in steps if step[0] != "epoch"]
    together, subscribed = await play(readers, steps), await play(readers, calm, subscribed=True)
    with (
        patch.object(Fetching, "shared_key", lambda self, wanted: None),
        patch.object(fetch, "join", lambda call, request: False),
    ):
        assert await play(readers, steps) == together
        assert await play(readers, calm, subscribed=True) == subscribed
    return together


ROUNDS = [("fetch", 0), ("grow", 0), ("fetch", 0), ("grow", 0), ("fetch", 0)]


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("isolation", [0, 1])
async def test_every_version_gets_the_bytes_of_its_own_answer(version: int, isolation: int):
    common = {"version": version, "partitions": [0], "isolation": isolation}
    readers = [common, common, common | {"epochs": True}, common | {"in_session": version >= 7}]
    bodies = await play_both(readers, ROUNDS)

    assert bodies[0] == bodies[1] and len(bodies[0]) == 3  # two with records, one for the drain
    assert [len(body) > BATCH_BYTES for body in bodies[3]] == [True, True, False]


async def test_session_of_many_partitions_gets_those_that_changed():
    readers = [{"version": 17, "partitions": [0, 1, 2], "in_session": True}] * 3
    steps = [("fetch", 0), ("grow", 0), ("fetch", 0), ("grow", 1), ("fetch", 0), ("grow all", 1), ("fetch", 0)]
    bodies = await play_both(readers, steps)

    assert [body.count(BATCH[16:]) for body in bodies[0]] == [1, 1, 6, 0]
    assert len({body[:6] + body[10:] for bodies_of_one in bodies for body in bodies_of_one}) == len(bodies[0])


def random_reader(rng: Random) -> dict[str, Any]:
    version = rng.choice([4, 6, 7, 9, 11, 12, 13, 17, 18])
    return {
        "version": version,
        "partitions": rng.choice([[0], [0], [1], [0, 1], [0, 1, 2]]),
        "isolation": rng.choice([0, 1]),
        "in_session": version >= 7 and rng.random() < 0.5,
        "min_bytes": rng.choice([1, 1, 150]),
        "epochs": rng.random() < 0.5,
    }


@pytest.mark.parametrize("seed", range(40))
async def test_answers_are_those_of_each_fetch_by_itself(seed: int):
    rng = Random(seed)
    actions = ["fetch", "fetch", "fetch", "grow", "grow", "grow all", "trim", "epoch", "hold", "close"]
    readers = [random_reader(rng) for _ in range(rng.randint(2, 5))] * rng.randint(1, 2)
    steps = [(rng.choice(actions), rng.randrange(3)) for _ in range(25)]
    await play_both(readers, [("fetch", 0), *steps])


@pytest.mark.parametrize("held", [False, True])
async def test_one_read_and_one_encoding_however_many_wait(held: bool, monkeypatch: pytest.MonkeyPatch):
    log, encoded = FakeLog(), 0
    broker, write = FakeBroker([log]), log_writers.fetch

    def count(*args: Any) -> Any:
        nonlocal encoded
        encoded += 1
        return write(*args)

    monkeypatch.setattr(log_writers, "fetch", count)
    request = fetch_request(ONE, max_wait_ms=60_000)
    parked = [broker.connect(number).send(request) for number in range(1_000)]
    reads_before = len(log.reads)
    assert len(log.listeners) == 1
    log.held = held
    log.grow()
    await run_callbacks()
    log.release()
    await run_callbacks()

    assert len({asked.body for asked in parked if asked.answer.done()}) == 1
    assert all(asked.answer.done() for asked in parked)
    assert (len(log.reads) - reads_before, encoded) == (1, 1)
    assert not log.listeners and not len(broker.context.log_ends)


async def test_each_limit_and_isolation_is_read_for_by_itself():
    log = FakeLog()
    broker = FakeBroker([log])
    requests = [
        fetch_request(ONE, max_wait_ms=60_000, isolation_level=isolation, partition_max_bytes=size)
        for isolation in (0, 1) for size in (BATCH_BYTES, 1_000)
    ]  # fmt: skip
    parked = [broker.connect(number).send(request) for number, request in enumerate(requests * 3)]
    before = len(log.reads)
    log.grow(4)
    await run_callbacks()

    sizes = [len(asked.answer.result().responses[0].partitions[0].records) for asked in parked]
    assert sizes == [BATCH_BYTES, 4 * BATCH_BYTES] * 6
    assert len(log.reads) - before == 4


async def test_connection_that_fails_or_closes_delays_no_other(monkeypatch: pytest.MonkeyPatch):
    log = FakeLog()
    broker, request = FakeBroker([log]), fetch_request(ONE, max_wait_ms=60_000)
    connections = [broker.connect(number) for number in range(4)]
    first, closed, broken, last = [connection.send(request) for connection in connections]
    connections[1].close()
    answer = Fetching.answer_shared

    def fail(self: Fetching, wanted: Any, shared: Any) -> Any:
        if self._call.client is connections[2].client:
            raise RuntimeError("the connection is in a state that nobody foresaw")
        return answer(self, wanted, shared)

    monkeypatch.setattr(Fetching, "answer_shared", fail)
    log.grow()
    await run_callbacks()

    assert (first.answer.done(), last.answer.done()) == (True, True)
    assert (closed.answer.done(), broken.answer.done()) == (False, False)
    usage = broker.context.usage.topics["default/t"]
    assert (usage.fetch_requests, usage.fetched_bytes) == (2, 2 * BATCH_BYTES)


async def test_other_work_runs_between_many_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting_fetches, "ANSWERS_PER_TICK", 10)
    log = FakeLog()
    broker, request = FakeBroker([log]), fetch_request(ONE, max_wait_ms=60_000)
    parked = [broker.connect(number).send(request) for number in range(25)]
    log.grow()
    answered = []
    for _ in range(4):
        await asyncio.sleep(0)
        answered.append(sum(asked.answer.done() for asked in parked))

    assert answered == [10, 20, 25, 25]


async def test_batch_that_old_clients_cannot_read_is_refused_to_them_alone(monkeypatch: pytest.MonkeyPatch):
    log = FakeLog()
    broker = FakeBroker([log])
    old, new = [
        broker.connect(version).send(fetch_request(ONE, version=version, max_wait_ms=60_000)) for version in (9, 10)
    ]
    zstd = bytearray(BATCH)
    zstd[22] |= Codec.ZSTD
    monkeypatch.setattr(fakes, "BATCH", bytes(zstd))
    log.grow()
    await run_callbacks()

    errors = [asked.answer.result().responses[0].partitions[0].error_code.value for asked in (old, new)]
    assert errors == [76, 0]


TWO = [("t", [(0, 0), (1, 0)])]
MANY = 600


def parked_at_two_logs() -> tuple[FakeBroker, list[FakeLog], list[Asked]]:
    """Fetches whose answer depends on two logs, so that each reads by itself."""
    logs = [FakeLog(), FakeLog()]
    broker, request = FakeBroker(logs), fetch_request(TWO, max_wait_ms=60_000)
    return broker, logs, [broker.connect(number).send(request) for number in range(MANY)]


async def most_answered(parked: Sequence[Asked]) -> int:
    """How many of the fetches were answered in one round of the event loop, until all are."""
    answered = [0]
    while answered[-1] < len(parked):
        await asyncio.sleep(0)
        answered.append(sum(asked.answer.done() for asked in parked))
    return max(after - before for before, after in itertools.pairwise(answered))


async def test_other_work_runs_between_many_fetches_that_read_by_themselves():
    _, logs, parked = parked_at_two_logs()
    for log in logs:
        log.grow()

    assert await most_answered(parked) <= waiting_fetches.ANSWERS_PER_TICK


async def test_other_work_runs_between_many_fetches_of_a_log_without_records():
    log = FakeLog()
    broker, request = FakeBroker([log]), fetch_request(ONE, max_wait_ms=60_000)
    parked = [broker.connect(number).send(request) for number in range(MANY)]
    log.start = log.end = 5
    log.changed()

    assert await most_answered(parked) <= waiting_fetches.ANSWERS_PER_TICK


async def test_other_work_runs_between_many_fetches_of_a_drain():
    broker, _, parked = parked_at_two_logs()
    broker.draining.set()

    assert await most_answered(parked) <= waiting_fetches.ANSWERS_PER_TICK


async def test_other_work_runs_between_many_woken_fetches():
    waits, resumed = FetchWaits(), list[int]()

    class Woken:
        def resume(self) -> None:
            resumed.append(1)

    for _ in range(MANY):
        waits.wake(Woken())  # type: ignore[arg-type]
    counts = [0]
    while len(resumed) < MANY:
        await asyncio.sleep(0)
        counts.append(len(resumed))

    assert max(after - before for before, after in itertools.pairwise(counts)) <= waiting_fetches.ANSWERS_PER_TICK
