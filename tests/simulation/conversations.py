"""Conversations of a few clients with whole brokers on a real server, each decided by its seed.

They reach, in a second, what the traffic of a simulation does not have: transactions, members that read what they own,
fetch sessions, share groups without an order. `tests.kit.checker` judges what the clients noted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from tests.kit.checker import Violation, check
from tests.simulation.conversation_clients import (
    TOPIC,
    Conversation,
    Member,
    Producer,
    Reader,
    SentBatch,
    ShareMember,
)
from tests.support.transactions import brokers_of
from tests.support.valkey import ValkeyServer
from tidegate.settings import Settings

ROUNDS: Final = 8
JOIN_DELAY_MS: Final = 50
_LATE_S: Final = 0.02


async def _send(rng: random.Random, producer: Producer, batches: list[SentBatch]) -> None:
    """Pipelined; one in three that are not alone arrives after its successor, and one in three is repeated."""
    late = rng.randrange(len(batches)) if len(batches) > 1 and rng.random() < 1 / 3 else -1
    sends = (
        producer.send(batch, repeated=rng.random() < 1 / 3, delay_s=_LATE_S if at == late else 0.0)
        for at, batch in enumerate(batches)
    )
    await asyncio.gather(*sends)


async def records(talk: Conversation) -> None:
    """Two producers at two brokers, a reader of whatever they have stored, and one afterwards of a little at a time."""
    rng, writers = talk.rng, [await Producer(talk, f"w{at}", at).init() for at in range(2)]
    reader = Reader(talk, "reader")
    reader.positions = {0: 0}
    for _ in range(ROUNDS):
        queues = [[writer.batch() for _ in range(rng.randint(1, 4))] for writer in writers]
        waiting = reader.poll(1 << 20, min_bytes=rng.choice((1, 2_000)), max_wait_ms=200)
        sends = (_send(rng, writer, queue) for writer, queue in zip(writers, queues, strict=True))
        await asyncio.gather(waiting, *sends)
        await reader.poll(rng.randint(100, 500))
    ends = dict(enumerate(await talk.note_bounds()))
    await reader.read_to(ends)
    afterwards = Reader(talk, "afterwards")
    afterwards.positions = {0: 0}
    await afterwards.read_to(ends, lambda: rng.randint(100, 500))


async def transactions(talk: Conversation) -> None:
    """A producer of transactions and one without, and a reader that polls before and after each end."""
    rng = talk.rng
    writer, plain = await Producer(talk, "t", 0, "T").init(), await Producer(talk, "w").init()
    reader = Reader(talk, "reader")
    reader.positions = {0: 0}
    for _ in range(ROUNDS):
        await _send(rng, writer, [writer.batch() for _ in range(rng.randint(2, 4))])
        await plain.send(plain.batch())
        await reader.poll()
        await writer.end(rng.random() < 0.6)
        await reader.poll(max_wait_ms=100)
    await writer.send(writer.batch())
    await writer.end(True)
    await reader.read_to(dict(enumerate(await talk.note_bounds())))


async def group(talk: Conversation) -> None:
    """Two members of a classic group read, commit, join and leave."""
    writer = await Producer(talk, "w").init()
    one, other = Member(talk, "a"), Member(talk, "b")

    async def work(*members: Member) -> None:
        for _ in range(talk.rng.randint(2, 3)):
            for index in range(talk.topic.partition_count):
                await writer.send(writer.batch(index))
            for member in members:
                await member.poll_in_session()
                await member.commit()
                await member.committed(member.positions)

    async def rebalance(*members: Member) -> None:
        joins = []
        for member in members:  # who is new comes first: the others join while the group waits for them
            joins.append(asyncio.create_task(member.join()))
            if len(joins) < len(members):
                await member.preparing()
        await asyncio.gather(*joins)
        for member in sorted(members, key=lambda member: not member.is_leader):
            await member.sync()

    await rebalance(one)
    await work(one)
    former = one.generation
    await rebalance(other, one)
    await work(one, other)
    await one.commit(generation=former)
    await work(one, other)
    for member in (other, one):
        await member.leave()
        await rebalance(one)
        await work(one)


async def sharing(talk: Conversation) -> None:
    """Two members of a share group accept and release, and each tries to accept what the other one has."""
    rng, writer = talk.rng, await Producer(talk, "w").init()
    await talk.share_groups()
    members = [await ShareMember(talk, name).join() for name in ("a", "b")]
    for _ in range(ROUNDS):
        await asyncio.gather(*(writer.send(writer.batch()) for _ in range(3)))
        for member, other in (members, members[::-1]):
            given = await member.fetch(rng.randint(1, 4))
            if given:
                await other.acknowledge(given[:1])
            released = [offset for offset in given if rng.random() < 1 / 3]
            await member.acknowledge([offset for offset in given if offset not in released], released)
    while given := await members[0].fetch(50):
        await members[0].acknowledge(given)
    await talk.note_share_bounds()


CONVERSATIONS: Final[dict[str, tuple[Callable[[Conversation], Awaitable[None]], int]]] = {
    "records": (records, 1),
    "transactions": (transactions, 1),
    "group": (group, 2),
    "sharing": (sharing, 1),
}
"""Name -> the conversation, and the partitions of its topic."""


@asynccontextmanager
async def _opened(settings: Settings, rng: random.Random, partition_count: int) -> AsyncIterator[Conversation]:
    async with brokers_of(settings, 2) as brokers:
        await brokers.create(TOPIC, partition_count)
        topic = brokers.all[0].context.catalog.get("default", TOPIC)
        assert topic is not None
        try:
            yield Conversation(brokers.all, rng, topic)
        finally:
            for broker in brokers.all:
                await broker.context.shares.close()


async def _converse(settings: Settings, name: str, seed: int) -> list[Violation]:
    talks, partition_count = CONVERSATIONS[name]
    async with _opened(settings, random.Random(f"{name} {seed}"), partition_count) as talk:
        await talks(talk)
    return check(talk.history)


def converse(name: str, seed: int) -> list[Violation]:
    """Hold a conversation with brokers on a server of its own: what the checker finds in its history."""
    server = ValkeyServer()
    try:
        settings = Settings(redis_url=server.url, group_initial_rebalance_delay_ms=JOIN_DELAY_MS)
        return asyncio.run(_converse(settings, name, seed))
    finally:
        server.stop()
