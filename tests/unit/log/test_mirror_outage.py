"""Events of a mirror that Redis did not take: kept until it is back, in bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.log.test_owners import record
from tidegate.errors import KafkaError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log import mirror as mirrors
from tidegate.log.mirror import Mirror
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.outcome import FaultyKeys, StoreRefused

TOPIC: Any = SimpleNamespace(
    org="default", name="t", topic_hex="0" * 32, format="kafka", config=SimpleNamespace(mirror=True)
)
READER = ("a", "/127.0.0.1", 1)
GONE = StoreUnavailable("gone")


class FakeStore:
    """A Redis that fails, while there is an `error`, what is in `failing`; `orders` owns the partition."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.failing = {"log/acknowledge", "log/deliver", "HGETALL", "HMGET"}
        self.acknowledged: list[int] = []
        self.delivered: list[list[str]] = []
        self.clock_s = 100.0

    def log_keys(self, org: str, name: str, index: int, topic_hex: str, _: str) -> LogKeys:
        return LogKeys.of("tidegate", org, name, index, topic_hex)

    def stored_group_keys(self, *_: str) -> Any:
        return SimpleNamespace(group="group")

    def _fail(self, name: str) -> None:
        if self.error is not None and name in self.failing:
            raise self.error

    async def run(self, script: Any, keys: Any, *args: Any) -> list[Any]:
        if script.name == "log/acknowledge":
            self.acknowledged.append(args[1])
        else:
            self.delivered.append([*args[6:]])
        self._fail(script.name)
        return [0, 0]

    async def command(self, name: str, *_: Any) -> Any:
        self._fail(name)
        return {b"orders": record()} if name == "HGETALL" else [b"cgp_1", b"3"]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
async def mirror(store: FakeStore) -> Mirror:
    made = Mirror(store, Settings())  # type: ignore[arg-type]
    made._loop = SimpleNamespace(time=lambda: store.clock_s)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("error", [GONE, StoreRefused("READONLY")])
async def test_commit_during_an_outage_is_written_once_redis_is_back(
    mirror: Mirror, store: FakeStore, error: KafkaError
) -> None:
    store.error = error
    mirror.committed(TOPIC, 0, "orders", 5)
    for _ in range(3):
        await mirror.write()
        store.clock_s += 3_600
    store.error = None
    for _ in range(3):
        await mirror.write()

    assert store.acknowledged == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("later", "written"), [([9], [9]), ([3], [5, 3]), ([9, 3], [9, 3]), ([3, 4], [5, 4]), ([5], [5])]
)
async def test_commit_during_an_outage_is_written_with_newer_ones(
    mirror: Mirror, store: FakeStore, later: list[int], written: list[int]
) -> None:
    store.error = GONE
    mirror.committed(TOPIC, 0, "orders", 5)
    await mirror.write()
    store.error, store.acknowledged = None, []
    for offset in later:
        mirror.committed(TOPIC, 0, "orders", offset)
    await mirror.write()

    assert store.acknowledged == written
    assert not mirror._pending_positions


async def test_newer_commit_during_the_attempt_is_not_undone(mirror: Mirror, store: FakeStore) -> None:
    async def run(*args: Any) -> list[Any]:
        mirror.committed(TOPIC, 0, "orders", 9)
        raise GONE

    mirror.committed(TOPIC, 0, "orders", 5)
    works, store.run = store.run, run  # type: ignore[method-assign]
    await mirror.write()
    store.run = works  # type: ignore[method-assign]
    await mirror.write()

    assert store.acknowledged == [9]


@pytest.mark.parametrize("error", [UnknownTopicOrPartition(), FaultyKeys("WRONGTYPE")])
async def test_commit_that_a_repeat_would_not_write_is_dropped(
    mirror: Mirror, store: FakeStore, error: KafkaError
) -> None:
    store.error = error
    mirror.committed(TOPIC, 0, "orders", 5)
    await mirror.write()

    assert not mirror._pending_positions


async def test_mirror_pauses_between_attempts_while_redis_is_away(
    mirror: Mirror, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    ended = asyncio.Event()
    pass_on: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 3:
            store.error = None
        if len(pauses) == 4:
            ended.set()
        await pass_on(0)

    monkeypatch.setattr(mirrors.asyncio, "sleep", sleep)
    store.error = GONE
    mirror.committed(TOPIC, 0, "orders", 5)
    await mirror.start()
    await ended.wait()
    await mirror.close()

    assert pauses[:4] == [mirrors._RETRY_S] * 3 + [mirrors._INTERVAL_S]
    assert store.acknowledged == [5] * 4


@pytest.mark.parametrize("failing", ["log/deliver", "HGETALL", "HMGET"])
async def test_deliveries_during_an_outage_are_written_once_redis_is_back(
    mirror: Mirror, store: FakeStore, failing: str
) -> None:
    store.error, store.failing = GONE, {failing}
    mirror.fetched(TOPIC, 0, READER, 0, 5, [0, 3])
    for _ in range(3):
        await mirror.write()
        store.clock_s += 5
    mirror.fetched(TOPIC, 0, READER, 5, 6, [5])
    store.error, store.delivered = None, []
    await mirror.write()

    assert store.delivered == [["0-1", "3-1", "5-1"]]
    assert not mirror._pending_positions


async def test_deliveries_during_an_outage_are_bounded(mirror: Mirror, store: FakeStore) -> None:
    store.error = GONE
    for base in range(3 * mirrors.PENDING_MAX):
        mirror.fetched(TOPIC, 0, READER, base, base + 1, [base])
    await mirror.write()
    [partition] = mirror._pending_positions
    [news] = partition._news
    assert len(news.delivered[READER].bases) == mirrors.PENDING_MAX
    store.clock_s += mirrors._AWAY_S
    await mirror.write()

    assert not mirror._pending_positions


@pytest.mark.parametrize("failing", ["log/deliver", "HGETALL"])
async def test_deliveries_that_a_repeat_would_not_write_are_dropped(
    mirror: Mirror, store: FakeStore, failing: str
) -> None:
    store.error, store.failing = FaultyKeys("WRONGTYPE"), {failing}
    mirror.fetched(TOPIC, 0, READER, 0, 5, [0, 3])
    await mirror.write()
    store.clock_s += mirrors._UNOWNED_S
    await mirror.write()

    assert not mirror._pending_positions
