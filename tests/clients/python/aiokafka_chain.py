"""Consume, transform, produce in transactions by aiokafka; see `tests/support/chains.py` for the arguments."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

BOOTSTRAP, SOURCE, SINK, GROUP, TRANSACTIONAL_ID, SEED, ABORTED, BATCH = sys.argv[1:]
numbers = itertools.count()


def note(what: str, transaction: str, *words: str) -> None:
    print(what, transaction, time.time_ns(), *words, flush=True)


async def member(draw: random.Random, stop: asyncio.Event) -> None:
    consumer = AIOKafkaConsumer(
        SOURCE, bootstrap_servers=BOOTSTRAP, group_id=GROUP, isolation_level="read_committed",
        enable_auto_commit=False, auto_offset_reset="earliest",
    )  # fmt: skip
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=TRANSACTIONAL_ID)
    try:
        await producer.start()  # first: what an earlier member left open ends before offsets are read
        await consumer.start()
        while not stop.is_set():
            await transaction(consumer, producer, draw)
    except KafkaError as error:
        print(f"begins again: {error!r}", flush=True)
        await asyncio.sleep(0.2)
    finally:
        for client in (producer, consumer):
            try:
                await client.stop()
            except KafkaError as error:
                print(f"stopped with {error!r}", flush=True)


async def transaction(consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, draw: random.Random) -> None:
    found = await consumer.getmany(timeout_ms=1_000, max_records=int(BATCH))
    if not found:
        return
    await producer.begin_transaction()
    name = f"{TRANSACTIONAL_ID}-{next(numbers)}"
    made = [(place.partition, b"%d" % (2 * int(one.value))) for place, messages in found.items() for one in messages]
    note("begin", name, *(f"{partition}:{value.decode()}" for partition, value in made))
    for partition, value in made:
        await producer.send(SINK, value, key=name.encode(), partition=partition)
    await producer.flush()
    offsets = {partition: messages[-1].offset + 1 for partition, messages in found.items()}
    await producer.send_offsets_to_transaction(offsets, GROUP)
    if draw.random() >= float(ABORTED):
        note("end", name, "commit")
        await producer.commit_transaction()
        note("ended", name, "commit")
        return
    note("end", name, "abort")
    await producer.abort_transaction()
    note("ended", name, "abort")
    for partition, messages in found.items():
        consumer.seek(TopicPartition(SOURCE, partition.partition), messages[0].offset)


async def main() -> None:
    stop = asyncio.Event()

    async def end() -> None:
        await asyncio.to_thread(sys.stdin.read)
        stop.set()

    ending = asyncio.create_task(end())
    draw = random.Random(int(SEED))
    while not stop.is_set():
        await member(draw, stop)
    await ending


asyncio.run(main())
