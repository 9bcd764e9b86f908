"""Random conversations about share groups (KIP-932): members fetch and acknowledge records of one topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance.differential.deliveries import Deliveries
from tests.conformance.differential.lockstep import Conversation, Target, make_topics
from tests.kit.wire import RawClient, request
from tests.support.logs import batch_bytes

_STEPS: Final = (20, 45)
_RECORDS_MAX: Final = 6
_WAIT_MS: Final = 300
_LOCK_MS: Final = "60000"
"""Longer than a conversation."""
_MANY: Final = 500
_READY_S: Final = 60.0
Batches = list[tuple[int, int, list[int]]]
"""First and last offset, and the types of acknowledgement."""


@dataclass
class Worker:
    """A member: its share session, and what it was given and has not acknowledged."""

    name: str
    topic: str
    partition_count: int = 1
    session: int = 0
    held: dict[int, set[int]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """Its member epoch, by the target's name."""


async def share_conversation(talk: Conversation) -> None:
    """Members fetch and acknowledge; at the end the start offsets and the lag are compared."""
    chance = talk.chance
    limit = chance.choice("235")
    await talk.configure(
        share_auto_offset_reset="earliest", share_delivery_count_limit=limit, share_record_lock_duration_ms=_LOCK_MS
    )
    topic = f"{talk.group}-records"
    partition_count = chance.randint(1, 2)
    talk.known = Deliveries(int(limit), dict.fromkeys(range(partition_count), 0))
    await make_topics(talk.targets, {topic: partition_count})
    workers = [Worker(f"worker-{number}", topic, partition_count) for number in range(chance.randint(2, 3))]
    for target in talk.targets:
        await _prepare(talk, target, workers)
    for _ in range(chance.randint(*_STEPS)):
        await _step(talk, chance.choice(workers), workers)
    for target in talk.targets:
        await _reach_targets(talk, target, workers)
    await talk.ask(77, 1, group_ids=(talk.group,), include_authorized_operations=False)
    described = {"topic_name": topic, "partitions": tuple(range(partition_count))}
    await talk.ask(90, 1, groups=[{"group_id": talk.group, "topics": [described]}])


async def _prepare(talk: Conversation, target: Target, workers: list[Worker]) -> None:
    """Let the members join until each has partitions, and fetch until these are initialised: Kafka takes a while."""
    async with await RawClient.connect(target.addresses[0]) as client, asyncio.timeout(_READY_S):
        topic, partition_count = workers[0].topic, workers[0].partition_count
        for worker in workers:
            while not await _heartbeat(talk, target, client, worker):
                await asyncio.sleep(0.05)
        partitions = [{"partition_index": index, "acknowledgement_batches": []} for index in range(partition_count)]
        fetch = {
            "group_id": talk.group, "member_id": "first", "max_wait": 200, "min_bytes": 1, "max_bytes": 1 << 20,
            "max_records": 1, "batch_size": 1, "forgotten_topics_data": [],
        }  # fmt: skip
        ready = 0
        while ready < partition_count:
            topics = [{"topic_id": target.topics[topic], "partitions": partitions}]
            answer = await client.ask(request(78, 1, **fetch, share_session_epoch=0, topics=topics))
            assert answer.error_code.name == "none", answer
            ready = sum(one.error_code.name == "none" for found in answer.responses for one in found.partitions)
        await client.ask(request(78, 1, **fetch, share_session_epoch=-1, topics=[]))


async def _heartbeat(talk: Conversation, target: Target, client: RawClient, worker: Worker) -> bool:
    """One heartbeat, or the join; whether the answer has partitions."""
    epoch = worker.epochs.get(target.name, 0)
    names = [worker.topic] if epoch == 0 else None
    values = {"group_id": talk.group, "member_id": worker.name, "member_epoch": epoch, "rack_id": None}
    answer = await client.ask(request(76, 1, **values, subscribed_topic_names=names))
    assert answer.error_code.name == "none", answer
    worker.epochs[target.name] = answer.member_epoch
    return answer.assignment is not None and bool(answer.assignment.topic_partitions)


async def _reach_targets(talk: Conversation, target: Target, workers: list[Worker]) -> None:
    """Let each member have its partitions of the newest epoch: those that joined first have more of them until then."""
    async with await RawClient.connect(target.addresses[0]) as client, asyncio.timeout(_READY_S):
        epochs = None
        while epochs is None or len(epochs) > 1:
            for worker in workers:
                await _heartbeat(talk, target, client, worker)
            epochs = {worker.epochs[target.name] for worker in workers}


async def _step(talk: Conversation, worker: Worker, workers: Sequence[Worker]) -> None:
    chance = talk.chance
    if worker.session == 0:
        await _fetch(talk, worker)
        return
    action = chance.choices(["produce", "fetch", "acknowledge", "odd", "close"], [3, 5, 5, 1.2, 0.4])[0]
    if action == "produce":
        index, count = chance.randrange(worker.partition_count), chance.randint(1, _RECORDS_MAX)
        data = [{"index": index, "records": batch_bytes(count)}]
        topics = [{"name": worker.topic, "partition_data": data}]
        await talk.ask(0, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=topics)
        talk.known.ends[index] += count
        await _ends(talk, workers, index)
    elif action == "fetch":
        await _fetch(talk, worker)
    elif action == "acknowledge":
        await _acknowledge(talk, worker, _some_held(talk, worker))
    elif action == "close":
        await _fetch(talk, worker, epoch=-1)
    else:
        await _odd(talk, worker)


async def _ends(talk: Conversation, workers: Sequence[Worker], index: int) -> None:
    """The log's end by each member's broker, which knows the records then: another one has appended them."""
    partitions = [{"partition_index": index, "timestamp": -1}]
    for worker in workers:
        topics = [{"name": worker.topic, "partitions": partitions}]
        await talk.ask(2, 3, worker.name, replica_id=-1, isolation_level=0, topics=topics)


async def _odd(talk: Conversation, worker: Worker) -> None:
    """A request that should be refused, mostly."""
    chance, session = talk.chance, worker.session
    anything = (chance.randrange(8), chance.randrange(8), [1])
    await chance.choice([
        lambda: _fetch(talk, worker, epoch=session + 3),
        lambda: _acknowledge(talk, worker, {0: [(0, 0, [1])]}, epoch=session + 2),
        lambda: _acknowledge(talk, worker, {0: [anything]}),
        lambda: _acknowledge(talk, worker, {0: [(0, 1, [9])]}),
        lambda: _acknowledge(talk, worker, {0: [(0, 2, [1, 2])]}),
        lambda: _acknowledge(talk, worker, {worker.partition_count: [(0, 0, [1])]}),
        lambda: _acknowledge(talk, Worker("stranger", worker.topic, session=4), {0: [(0, 0, [1])]}),
        lambda: talk.ask(68, 1, "consumer", **_CONSUMER_JOIN),
        lambda: talk.ask(42, 2, groups_names=(talk.group,)),
    ])()  # fmt: skip


_CONSUMER_JOIN: Final = {
    "member_id": "consumer", "member_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": 120_000,
    "subscribed_topic_names": ["t1"], "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
}  # fmt: skip
"""Of a group of another type."""


def _topics(topic: str, batches: Mapping[int, Batches]) -> list[Any]:
    partitions = [
        {
            "partition_index": index,
            "acknowledgement_batches": [
                {"first_offset": first, "last_offset": last, "acknowledge_types": types} for first, last, types in some
            ],
        }
        for index, some in batches.items()
    ]
    return [{"topic_id": lambda target: target.topics[topic], "partitions": partitions}] if partitions else []


async def _fetch(talk: Conversation, worker: Worker, epoch: int | None = None) -> None:
    """ShareFetch of all partitions. One that is full after a few records answers for one of them, in turn."""
    asked = worker.session if epoch is None else epoch
    max_records = talk.chance.choice((_MANY, _MANY, _MANY, 3, 1)) if worker.partition_count == 1 else _MANY
    note = "" if max_records == _MANY else f"at most {max_records} records"
    answer = await talk.ask(
        78, 1, worker.name, note, member_id=worker.name, share_session_epoch=asked, max_wait=_WAIT_MS, min_bytes=1,
        max_bytes=1 << 20, max_records=max_records, batch_size=100, forgotten_topics_data=[],
        topics=_topics(worker.topic, {index: [] for index in range(worker.partition_count)} if asked == 0 else {}),
    )  # fmt: skip
    if answer["error_code"] != "none":
        return
    worker.session = 0 if asked == -1 else asked + 1
    if asked == -1:
        worker.held.clear()
        talk.known.close(worker.name)
    talk.known.acquire(worker.name, answer)
    for one in (partition for found in answer["responses"] for partition in found["partitions"]):
        for records in one["acquired_records"]:
            held = worker.held.setdefault(one["partition_index"], set())
            held.update(range(records["first_offset"], records["last_offset"] + 1))


def _some_held(talk: Conversation, worker: Worker) -> dict[int, Batches]:
    """Some of the records that it was given: gap, accepted, released or rejected."""
    chance = talk.chance
    return {
        index: [(offset, offset, [chance.choice((0, 1, 1, 2, 2, 3))]) for offset in sorted(some)]
        for index, held in worker.held.items()
        if (some := [offset for offset in sorted(held) if chance.random() < 0.6])
    }


async def _acknowledge(
    talk: Conversation, worker: Worker, batches: Mapping[int, Batches], epoch: int | None = None
) -> None:
    """ShareAcknowledge."""
    asked = worker.session if epoch is None else epoch
    answer = await talk.ask(
        79, 1, worker.name, member_id=worker.name, share_session_epoch=asked, topics=_topics(worker.topic, batches)
    )
    if answer["error_code"] != "none":
        return
    worker.session = asked + 1
    for one in (partition for found in answer["responses"] for partition in found["partitions"]):
        if one["error_code"] == "none":
            for first, last, kinds in batches[one["partition_index"]]:
                if first <= last and len(kinds) == 1:
                    offsets = range(first, last + 1)
                    taken = [(one["partition_index"], offset) for offset in offsets]
                    talk.known.acknowledge([(place, kinds[0]) for place in taken if place in talk.known.held])
                worker.held.get(one["partition_index"], set()).difference_update(range(first, last + 1))
