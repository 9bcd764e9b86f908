"""Requests that share a script, a read or a decision: what raises while one is answered ends no other's wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.groups import waiting
from tidegate.groups.commits import Commit
from tidegate.groups.decision_queue import DecisionQueue
from tidegate.groups.epoch_heartbeats import EpochHeartbeats
from tidegate.groups.heartbeats import Heartbeats
from tidegate.groups.model import JoinRefused, MemberRef
from tidegate.groups.offsets import Committed, Offsets, entry_json
from tidegate.groups.waiters import GroupStatus, Waiter
from tidegate.groups.waiting import GroupWaits
from tidegate.memory import MemoryShares
from tidegate.settings import Settings
from tidegate.store.keys import ClusterKeys, GroupKeys
from tidegate.store.outcome import Failure, Unknown

NONE, COORDINATOR_NOT_AVAILABLE = 0, 15
KEYS = GroupKeys.of("t", 1, "default", "g")
OTHER = GroupKeys.of("t", 1, "default", "other")
VALUE = (entry_json(7, -1, "", "") + ',"commit_time":1}').encode()


class FakeStore:
    """A store whose scripts and commands the test answers; `full`: no script can be built."""

    def __init__(self) -> None:
        self.full = False
        self.is_sharded = False
        self.cluster = None
        self.settings = Settings(coordinator_shards=1)
        self.cluster_keys = ClusterKeys("t")
        self.clock = SimpleNamespace(is_known=False)
        self.metadata_node = SimpleNamespace(outage=SimpleNamespace(recently_recovered=False))
        self.scripts: list[Callable[[Any], None]] = []
        self.sent: list[tuple[Sequence[Any], Callable[[Any], None]]] = []
        self.replies: dict[str, Any] = {}

    def node(self, key: str) -> Any:
        return SimpleNamespace(control=SimpleNamespace(failover_epoch=1))

    def send_script(self, script: Any, keys: Any, args: Any, on_reply: Callable[[Any], None]) -> None:
        if self.full:
            raise MemoryError
        self.scripts.append(on_reply)

    def send(self, args: Sequence[Any], on_reply: Callable[[Any], None]) -> None:
        self.sent.append((args, on_reply))

    async def command(self, *args: Any) -> Any:
        return self.replies[args[1]]

    async def read(self, *args: Any) -> Any:
        return self.replies.get(args[1])

    async def wait_up(self, key: str) -> None:
        return None


class Answers:
    """The answers of several requests; the first answer of the second one raises."""

    def __init__(self) -> None:
        self.of: list[list[Any]] = [[], [], []]

    def callbacks(self) -> list[Callable[[Any], None]]:
        def failing(answer: Any) -> None:
            self.of[1].append(answer)
            if len(self.of[1]) == 1:
                raise MemoryError

        return [self.of[0].append, failing, self.of[2].append]


@pytest.fixture
def store() -> Any:
    return FakeStore()


@pytest.fixture
def answers() -> Answers:
    return Answers()


def commit() -> Commit:
    return Commit(-1, "", None, ["t:0", entry_json(7, -1, "", "")])


@pytest.mark.parametrize("is_proved", [False, True])
async def test_commits_behind_one_that_raises_are_answered(store: Any, answers: Answers, is_proved: bool) -> None:
    proofs: list[Callable[[bool], None]] = []
    offsets = Offsets(store, prove=(lambda node, on_proved: proofs.append(on_proved)) if is_proved else None)
    for on_code in answers.callbacks():
        offsets.commit(KEYS, commit(), on_code)
    await asyncio.sleep(0)
    store.scripts[0]([NONE] * 4)
    for on_proved in proofs:
        on_proved(True)

    assert answers.of[0] == answers.of[2] == [NONE]
    assert answers.of[1][1:] == [COORDINATOR_NOT_AVAILABLE]


async def test_commits_are_answered_where_their_proof_cannot_begin(store: Any, answers: Answers) -> None:
    def prove(node: Any, on_proved: Any) -> None:
        raise MemoryError

    offsets = Offsets(store, prove=prove)
    offsets.commit(KEYS, commit(), answers.of[0].append)
    await asyncio.sleep(0)
    store.scripts[0]([NONE] * 2)

    assert answers.of[0] == [COORDINATOR_NOT_AVAILABLE]


async def test_commits_in_a_script_that_cannot_be_built_are_answered(store: Any, answers: Answers) -> None:
    offsets, fetched = Offsets(store), list[Any]()
    store.full = True
    offsets.fetch(OTHER, ["t:0"], fetched.append)
    for on_code in answers.callbacks():
        offsets.commit(KEYS, commit(), on_code)
    await asyncio.sleep(0)
    assert answers.of[0] == answers.of[2] == [COORDINATOR_NOT_AVAILABLE]
    assert answers.of[1][1:] == [COORDINATOR_NOT_AVAILABLE]

    offsets.fetch(OTHER, ["t:0"], fetched.append)
    reads = [on_reply for args, on_reply in store.sent if args[0] == "HMGET"]
    for on_reply in reads:
        on_reply([VALUE])
    assert len(reads) == len(fetched) == 2


async def test_fetches_behind_one_that_raises_are_answered(store: Any, answers: Answers) -> None:
    offsets, of_values = Offsets(store), Answers()
    for on_fetched, on_values in zip(answers.callbacks(), of_values.callbacks(), strict=True):
        offsets.fetch(KEYS, ["t:0"], on_fetched)
        offsets.fetch_values(KEYS, ("t:0",), on_values)
    store.sent[0][1]([VALUE])

    assert answers.of[0] == answers.of[2] == [{"t:0": Committed(7, -1, "", "")}]
    assert of_values.of[0] == of_values.of[2] == [[VALUE]]
    assert isinstance(answers.of[1][1], Failure)
    assert isinstance(of_values.of[1][1], Failure)


async def test_fetch_of_a_damaged_offset_is_answered_with_a_failure(store: Any, answers: Answers) -> None:
    offsets = Offsets(store)
    offsets.fetch(KEYS, ["t:0"], answers.of[0].append)
    store.sent[0][1]([b"{"])

    assert isinstance(answers.of[0][0], Failure)


@pytest.mark.parametrize("reply", [[NONE] * 4, Unknown("no answer")])
async def test_heartbeats_behind_one_that_raises_are_answered(store: Any, answers: Answers, reply: Any) -> None:
    heartbeats = Heartbeats(store, store.settings)
    for on_code in answers.callbacks():
        heartbeats.add(KEYS, MemberRef("m", 1, None), on_code)
    await asyncio.sleep(0)
    store.scripts[0](reply)

    code = NONE if isinstance(reply, list) else COORDINATOR_NOT_AVAILABLE
    assert answers.of[0] == answers.of[2] == [code]
    assert answers.of[1][1:] == [COORDINATOR_NOT_AVAILABLE]


async def test_heartbeats_in_a_script_that_cannot_be_built_are_answered(store: Any, answers: Answers) -> None:
    heartbeats = Heartbeats(store, store.settings)
    store.full = True
    for on_code in answers.callbacks():
        heartbeats.add(KEYS, MemberRef("m", 1, None), on_code)
    await asyncio.sleep(0)

    assert answers.of[0] == answers.of[2] == [COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize("reply", [[NONE, 3_000, 0] + [NONE] * 3, Unknown("no answer")])
async def test_epoch_heartbeats_behind_one_that_raises_are_answered(store: Any, answers: Answers, reply: Any) -> None:
    snapshots: Any = SimpleNamespace(find=lambda *_: None, begin=lambda _: None, now_s=float, discard_all=lambda: None)
    heartbeats = EpochHeartbeats(store, snapshots, lambda: 1)
    for on_reply in answers.callbacks():
        heartbeats.answer(KEYS, MemberRef("m", 1, None), on_reply)
    await asyncio.sleep(0)
    store.scripts[0](reply)

    assert answers.of[0] == answers.of[2] == [3_000 if isinstance(reply, list) else reply]
    assert isinstance(answers.of[1][1], Failure)


async def test_epoch_heartbeats_in_a_script_that_cannot_be_built_are_answered(store: Any, answers: Answers) -> None:
    snapshots: Any = SimpleNamespace(find=lambda *_: None, begin=lambda _: None, now_s=float, discard_all=lambda: None)
    heartbeats = EpochHeartbeats(store, snapshots, lambda: 1)
    store.full = True
    heartbeats.answer(KEYS, MemberRef("m", 1, None), answers.of[0].append)
    await asyncio.sleep(0)

    assert isinstance(answers.of[0][0], Failure)


async def test_joins_in_a_script_that_cannot_be_built_fail(store: Any) -> None:
    waits = GroupWaits(store, store.settings)
    store.full = True
    joins = [asyncio.create_task(waits.joins.submit(KEYS, ["m", "10000 20000 1 1 0"])) for _ in range(2)]

    for join in joins:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(join, 60)


@pytest.mark.parametrize("record", [b"{", b"{}"])
async def test_damaged_record_of_one_member_fails_its_request_only(store: Any, record: bytes) -> None:
    status = GroupStatus("PreparingRebalance", 4, 10, 7, "consumer", "range", "leader", 4, -1)
    loop = asyncio.get_running_loop()
    damaged, rejoined = (Waiter(member_id, None, 4, 7, loop.create_future()) for member_id in ("a", "b"))
    store.replies = {KEYS.members: [record, b'{"join_round":0}'], KEYS.group: b"10"}

    assert await GroupWaits(store, store.settings)._judge(KEYS, status, [damaged, rejoined])

    refusal = damaged.answer.exception()
    assert isinstance(refusal, JoinRefused) and type(refusal.error) is KafkaError
    assert rejoined.answer.done()


async def test_waiting_request_fails_where_its_group_stays_unreadable(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any) -> Any:
        raise ValueError("no status")

    monkeypatch.setattr(waiting, "POLL_MS", 1)
    store.run = run
    waits = GroupWaits(store, store.settings.model_copy(update={"redis_command_timeout_ms": 1}))

    with waits.watch(KEYS) as watch, pytest.raises(StoreUnavailable):
        await asyncio.wait_for(watch.synced("m", None, 4, -1), 60)


class Decisions(DecisionQueue[str, str, Any]):
    """Decides nothing: the answer is the work."""

    async def _read_for(self, keys: GroupKeys, works: Sequence[str | None]) -> Any:
        return None

    async def _decide(self, keys: GroupKeys, base: Any, works: Sequence[str | None]) -> Sequence[str | KafkaError]:
        return [str(work) for work in works]


async def test_decision_is_answered_with_an_error_after_its_answer_raised(store: Any, answers: Answers) -> None:
    decisions = Decisions(store, "test", MemoryShares.of(0))
    for on_decided in answers.callbacks():
        decisions.submit(KEYS, "work", on_decided)
    await decisions.run(KEYS, "last")

    assert answers.of[0] == answers.of[2] == ["work"]
    assert isinstance(answers.of[1][1], KafkaError)
