"""`python -m bench key-order`: many share consumers work on one partition, in order of each key, with failing records.

Three brokers of ours; the consumers are `tidegate.share` in this process, so their own work is part of the time. A
record whose value says so fails at every delivery, until it goes to the dead-letter topic. Each delivery is checked:
all earlier records of its key are finished. Prints one JSON line; `--plot` draws records finished over time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.client_groups import create_topic
from bench.cluster import Cluster
from bench.kafka_wire import MeasureFailed
from tidegate.share import ShareConsumer, ShareRecord

kafka_admin: Any = confluent_kafka.admin
GROUP, TOPIC, DEAD_LETTERS = "workers", "work", "dlq.work"
DELIVERIES: Final = 5
_POISON: Final = b"fails"
_DEADLINE_S: Final = 600.0
_CONFIGS: Final = {
    "share.ordering": "key",
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": str(DELIVERIES),
    "share.partition.max.record.locks": "10000",
    "share.record.lock.duration.ms": "60000",
    "errors.deadletterqueue.topic.name": DEAD_LETTERS,
}


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `key-order`."""
    command.add_argument("--consumers", type=int, default=100)
    command.add_argument("--records", type=int, default=20_000)
    command.add_argument("--keys", type=int, default=10_000)
    command.add_argument("--failing", type=float, default=0.01, help="share of the records that fail at each delivery")
    command.add_argument("--plot", type=Path, help="PNG of records finished over time")


@dataclass(slots=True)
class Work:
    """The records of the run, and what has happened to them."""

    keys: list[int]
    failing: set[int]
    earlier: list[int | None] = field(default_factory=list)
    """The record of the same key before each one."""
    finished: set[int] = field(default_factory=set)
    deliveries: int = 0
    out_of_order: int = 0
    """Deliveries before an earlier record of the key was finished."""
    delivered_again: int = 0
    """Deliveries of finished records: their acknowledgements were late."""
    finished_at_s: list[float] = field(default_factory=list)
    is_done: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def draw(cls, args: argparse.Namespace) -> Work:
        """Keys at random; the failing records are spread over them."""
        draw = random.Random(1)
        work = cls(
            [draw.randrange(args.keys) for _ in range(args.records)],
            set(draw.sample(range(args.records), round(args.records * args.failing))),
        )
        last: dict[int, int] = {}
        for number, key in enumerate(work.keys):
            work.earlier.append(last.get(key))
            last[key] = number
        return work

    def deliver(self, record: ShareRecord) -> bool:
        """Count a delivery and check its order; whether the record is accepted."""
        number = record.offset
        self.deliveries += 1
        earlier = self.earlier[number]
        self.out_of_order += earlier is not None and earlier not in self.finished
        self.delivered_again += number in self.finished
        is_accepted = number not in self.failing
        if number not in self.finished and (is_accepted or record.delivery_count >= DELIVERIES):
            self.finished.add(number)
            self.finished_at_s.append(time.monotonic())
        if len(self.finished) == len(self.keys):
            self.is_done.set()
        return is_accepted


def _produce(bootstrap: str, work: Work) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})
    for number, key in enumerate(work.keys):
        producer.produce(TOPIC, _POISON if number in work.failing else b"works", str(key), partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise MeasureFailed("not all records were produced")


def _configure(bootstrap: str) -> None:
    change = kafka_admin.AlterConfigOpType.SET
    entries = [kafka_admin.ConfigEntry(name, one, incremental_operation=change) for name, one in _CONFIGS.items()]
    resource = kafka_admin.ConfigResource(kafka_admin.ResourceType.GROUP, GROUP, incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": bootstrap})
    for changed in client.incremental_alter_configs([resource]).values():
        changed.result(30)


async def _consume(bootstrap: str, work: Work) -> None:
    async with ShareConsumer(bootstrap, group=GROUP, topics=[TOPIC], max_records=50, timeout_s=60.0) as consumer:
        while not work.is_done.is_set():
            for record in await consumer.poll(0.5):
                if work.deliver(record):
                    consumer.accept(record)
                else:
                    consumer.release(record)
        await consumer.commit()


async def _dead_letter_count(bootstrap: str, expected: int) -> int:
    """Letters that are written within a minute."""
    admin, deadline = AdminClient({"bootstrap.servers": bootstrap}), time.monotonic() + 60
    while True:
        asked = admin.list_offsets({TopicPartition(DEAD_LETTERS, 0): kafka_admin.OffsetSpec.latest()})
        (found,) = [one.result(30).offset for one in asked.values()]
        if found >= expected or time.monotonic() > deadline:
            return int(found)
        await asyncio.sleep(0.5)


async def _run(bootstrap: str, args: argparse.Namespace, work: Work) -> float:
    began_s = time.monotonic()
    async with asyncio.timeout(_DEADLINE_S), asyncio.TaskGroup() as tasks:
        for _ in range(args.consumers):
            tasks.create_task(_consume(bootstrap, work))
    return began_s


def _plot(path: Path, began_s: float, work: Work) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.plot([at - began_s for at in work.finished_at_s], range(1, len(work.finished_at_s) + 1))
    axes.set_xlabel("seconds since the first consumer started")
    axes.set_ylabel("records finished")
    axes.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(args: argparse.Namespace) -> int:
    """Run it once."""
    work = Work.draw(args)
    with Cluster(3) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 1)
        create_topic(cluster.bootstrap, DEAD_LETTERS, 1, errors_deadletterqueue_group_enable="true")
        _configure(cluster.bootstrap)
        _produce(cluster.bootstrap, work)
        began_s = asyncio.run(_run(cluster.bootstrap, args, work))
        letters = asyncio.run(_dead_letter_count(cluster.bootstrap, len(work.failing)))
    took_s = work.finished_at_s[-1] - began_s
    print(
        json.dumps(
            {
                "records": len(work.keys), "keys": args.keys, "consumers": args.consumers,
                "deliveries": work.deliveries, "out_of_order": work.out_of_order,
                "delivered_again": work.delivered_again, "failing": len(work.failing),
                "dead_letters": letters, "seconds": round(took_s, 1), "records_per_s": round(len(work.keys) / took_s),
                "load_1m": os.getloadavg()[0],
            }
        )
    )  # fmt: skip
    if args.plot is not None:
        _plot(args.plot, began_s, work)
    return 0 if not work.out_of_order and letters == len(work.failing) else 1
