"""OffsetFetch in one walk: the bytes of the general way, for every version and kind of stored value."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidegate.admissions import Admissions
from tidegate.apis import fetched_offsets, plain_offset_fetch
from tidegate.apis.fetched_offsets import offset_fetch
from tidegate.groups.offsets import UNSTABLE_FIELD, entry_json, parse_values
from tidegate.protocol import group_writers
from tidegate.store.outcome import Failure, Unknown
from tidegate.store.tasks import TaskSet

TASKS = TaskSet()
TOPICS = {"t": UUID(int=7), "ünïcode": UUID(int=8)}


def stored(offset: int, epoch: int, topic: str, metadata: str) -> bytes:
    return (entry_json(offset, epoch, TOPICS[topic].hex, metadata) + ',"commit_time":1}').encode()


class FakeOffsets:
    """Stored values, read at once. `values_reads` and `reads` count the two ways."""

    def __init__(self, values: dict[str, bytes], failure: Failure | None = None) -> None:
        self.values, self.failure = values, failure
        self.values_reads = self.reads = 0

    def fetch_values(self, keys: Any, fields: tuple[str, ...], on_values: Any) -> None:
        self.values_reads += 1
        on_values(self.failure or [self.values.get(name) for name in fields])

    def fetch(self, keys: Any, fields: Any, on_fetched: Any) -> None:
        self.reads += 1
        fields = self.values if fields is None else fields
        on_fetched(self.failure or parse_values(fields, [self.values.get(name) for name in fields]))

    async def fetch_all(self, keys: Any) -> dict[bytes, bytes]:
        self.reads += 1
        return {name.encode(): value for name, value in self.values.items()}


class LateOffsets(FakeOffsets):
    """The same, read after the handler has returned."""

    def fetch_values(self, keys: Any, fields: tuple[str, ...], on_values: Any) -> None:
        asyncio.get_running_loop().call_soon(super().fetch_values, keys, fields, on_values)

    def fetch(self, keys: Any, fields: Any, on_fetched: Any) -> None:
        asyncio.get_running_loop().call_soon(super().fetch, keys, fields, on_fetched)


def answered(offsets: FakeOffsets, request: Any, version: int, record_topics: int = 0) -> bytes:
    """The response to a request."""
    bodies: list[bytes] = []
    offset_fetch(call_of(offsets, version, record_topics, bodies.append), request)
    [body] = bodies
    return body


def call_of(
    offsets: FakeOffsets, version: int, record_topics: int, reply: Any, close: Any = None, run_alone: Any = lambda: None
) -> Any:
    """A request of a broker with `TOPICS`."""
    topics = {
        name: SimpleNamespace(name=name, topic_id=topic_id, topic_hex=topic_id.hex, partition_count=9)
        for name, topic_id in TOPICS.items()
    }
    catalog = SimpleNamespace(
        record_topics=record_topics,
        get=lambda org, name: topics.get(name),
        by_id=lambda org, topic_id: next((one for one in topics.values() if one.topic_id == topic_id), None),
    )
    return SimpleNamespace(
        version=version, org="default", client=SimpleNamespace(org="default"), reply=reply, close=close,
        context=SimpleNamespace(catalog=catalog, offsets=offsets, offset_answers=Admissions(1)),
        answer_later=lambda work, request: TASKS.start(work),
        run_alone=run_alone,
        store=SimpleNamespace(group_keys=lambda org, group_id: None),
    )  # fmt: skip


def request_for(wanted: list[tuple[str, list[int]]], require_stable: bool = False, **fields: Any) -> Any:
    topics = [
        SimpleNamespace(name=name, topic_id=TOPICS.get(name, UUID(int=99)), partition_indexes=tuple(indexes))
        for name, indexes in wanted
    ]
    group = SimpleNamespace(**({"group_id": "grüppe", "member_id": None, "topics": topics} | fields))
    return SimpleNamespace(groups=[group], require_stable=require_stable)


def both(monkeypatch: pytest.MonkeyPatch, values: dict[str, bytes], request: Any, version: int) -> tuple[bytes, int]:
    """The response, and how many values reads gave it; the general way has the same bytes."""
    offsets = FakeOffsets(values)
    plain = answered(offsets, request, version)
    with monkeypatch.context() as patched:
        patched.setattr(fetched_offsets, "start_plain", lambda call, request, other_way: False)
        assert answered(FakeOffsets(values), request, version) == plain
    return plain, offsets.values_reads


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("seed", range(6))
def test_every_version_has_the_bytes_of_the_general_way(version: int, seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = Random(seed)
    names = [*TOPICS] if version == 10 else [*TOPICS, "unknown"]
    wanted = [(name, [rng.randrange(9) for _ in range(rng.randint(0, 5))]) for name in rng.sample(names, 2)]
    values = {
        f"{name}:{index}": stored(
            rng.choice([0, 5, (1 << 63) - 1]), rng.choice([-1, 3]), name, rng.choice(["", "m", "é" * 100, "x" * 200])
        )
        for name, indexes in wanted
        for index in indexes
        if name in TOPICS and rng.random() < 0.7
    }
    require_stable = rng.random() < 0.5
    _, values_reads = both(monkeypatch, values, request_for(wanted, require_stable), version)

    assert values_reads == any(indexes for _, indexes in wanted)


@pytest.mark.parametrize("version", [1, 5, 8, 10])
def test_offset_fetch_escapes_and_staged_offsets_use_the_general_path(version: int, monkeypatch: pytest.MonkeyPatch):
    escaped = {"t:0": stored(1, -1, "t", 'a "quoted" \\ text'), "t:1": stored(2, 0, "t", "")}
    body, values_reads = both(monkeypatch, escaped, request_for([("t", [0, 1])]), version)
    assert values_reads == 1 and b'a "quoted" \\ text' in body
    staged = {"t:1": stored(2, 0, "t", ""), UNSTABLE_FIELD: stored(0, -1, "t", "t:1")}
    body, values_reads = both(monkeypatch, staged, request_for([("t", [1])], require_stable=True), version)
    assert values_reads == 1 and (88).to_bytes(2, "big") in body


@pytest.mark.parametrize("version", [1, 5, 8, 10])
@pytest.mark.parametrize(
    "text",
    [
        '{"offset": 5, "leader_epoch": 3, "topic_id": "%s", "metadata": "m", "commit_time": 1}',
        '{"offset": 5,"leader_epoch": 3,"topic_id":"%s","metadata":"","commit_time":1}',
        '{"offset":5,"leader_epoch":3,"topic_id":"%s","metadata":"a,b","commit_time":1,"expire_time":2}',
        '{"metadata":"","leader_epoch":3,"topic_id":"%s","offset":5}',
        '{"topic_id":"%s","metadata":"","leader_epoch":3,"offset":5}',
    ],
)
def test_value_that_a_program_wrote_has_the_bytes_of_the_general_way(
    version: int, text: str, monkeypatch: pytest.MonkeyPatch
):
    body, _ = both(monkeypatch, {"t:0": (text % TOPICS["t"].hex).encode()}, request_for([("t", [0])]), version)

    assert (5).to_bytes(8, "big") in body


@pytest.mark.parametrize(
    ("request_", "version", "record_topics"),
    [
        (request_for([("t", [0])]), 0, 0),
        (request_for([("t", [0])]), 8, 1),
        (request_for([("t", [0])], member_id="m", member_epoch=1), 9, 0),
        (request_for([("t", [])]), 8, 0),
        (request_for([]), 8, 0),
        (request_for([("t", [0])], topics=None), 8, 0),
        (request_for([("unknown", [0])]), 10, 0),
    ],
)
def test_other_kinds_of_requests_are_left_to_the_general_way(request_: Any, version: int, record_topics: int):
    offsets = FakeOffsets({})
    asked: list[Any] = []
    catalog = SimpleNamespace(record_topics=record_topics, by_id=lambda org, topic_id: None, get=lambda org, name: None)
    call: Any = SimpleNamespace(
        version=version, org="default", client=SimpleNamespace(org="default"),
        context=SimpleNamespace(catalog=catalog, offsets=offsets),
    )  # fmt: skip

    assert not fetched_offsets.start_plain(call, request_, lambda *args: asked.append(args))
    assert (offsets.values_reads, asked) == (0, [])


@pytest.mark.parametrize("version", [1, 7, 9])
def test_failure_has_the_bytes_of_the_general_way(version: int, monkeypatch: pytest.MonkeyPatch):
    failure = Unknown("away")
    request = request_for([("t", [0, 1])])
    plain = answered(FakeOffsets({}, failure), request, version)
    monkeypatch.setattr(fetched_offsets, "start_plain", lambda call, request, other_way: False)

    assert answered(FakeOffsets({}, failure), request, version) == plain


UNKNOWN_SERVER_ERROR = (-1).to_bytes(2, "big", signed=True)


async def test_offset_fetch_value_that_cannot_be_read_is_answered():
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    offsets = LateOffsets({"t:0": b"{"})

    offset_fetch(call_of(offsets, 8, 0, answers.put_nowait), request_for([("t", [0])]))

    async with asyncio.timeout(30):
        assert UNKNOWN_SERVER_ERROR in await answers.get()


@pytest.mark.parametrize("wanted", [{}, {"topics": None}])
async def test_offset_fetch_that_fails_after_its_read_is_answered(
    wanted: dict[str, None], monkeypatch: pytest.MonkeyPatch
):
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    def fail(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(plain_offset_fetch, "_body", fail)
    monkeypatch.setattr(fetched_offsets._FetchReply, "_of_other_topics", fail)

    def reply(body: bytes | list[bytes]) -> None:
        answers.put_nowait(body if isinstance(body, bytes) else b"".join(body))

    request = request_for([("t", [0])], member_epoch=-1, **wanted)
    offset_fetch(call_of(LateOffsets({"t:0": stored(1, 0, "t", "")}), 8, 0, reply), request)

    async with asyncio.timeout(30):
        assert UNKNOWN_SERVER_ERROR in await answers.get()


async def test_offset_fetch_without_an_answer_closes_the_connection(monkeypatch: pytest.MonkeyPatch):
    reasons: asyncio.Queue[str] = asyncio.Queue()

    def fail(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(group_writers, "offset_fetch", fail)
    request = request_for([("t", [])])
    offset_fetch(call_of(LateOffsets({}), 8, 0, None, reasons.put_nowait), request)

    async with asyncio.timeout(30):
        assert await reasons.get()


@pytest.mark.parametrize(("wanted", "alone"), [({}, False), ({"topics": None}, True)])
async def test_offset_fetch_of_all_commits_makes_later_requests_wait(wanted: dict[str, None], alone: bool):
    answers: asyncio.Queue[Any] = asyncio.Queue()
    made_wait: list[bool] = []
    call = call_of(LateOffsets({}), 8, 0, answers.put_nowait, run_alone=lambda: made_wait.append(True))

    offset_fetch(call, request_for([("t", [0])], member_epoch=-1, **wanted))

    assert made_wait == [True] * alone
    async with asyncio.timeout(30):
        assert await answers.get()
