"""The demonstration (`make demo`): a cluster under load loses a broker, drains one and gains one; nobody notices.

Six consumers of one group and a producer, all unmodified aiokafka with default settings (the producer
idempotent), on three broker processes over one embedded server. One broker is killed with SIGKILL,
another drained, a third added. What is printed comes from what the clients saw. The exit code is 0 only
when no acknowledged record was lost and the group's generation never changed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import Cluster

TOPIC = "demo"
GROUP = "demo-group"


@dataclass(slots=True)
class Observations:
    """What the clients saw."""

    acknowledged: set[int] = field(default_factory=set)
    produced: int = 0
    produce_errors: int = 0
    received: Counter[int] = field(default_factory=Counter)
    positions: Counter[tuple[int, int]] = field(default_factory=Counter)
    longest_pause_s: dict[int, float] = field(default_factory=dict)
    assignments: Counter[int] = field(default_factory=Counter)


class _ClientLog(logging.Handler):
    """Counts what the clients log (lost connections, retries) instead of printing every line."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """One more line."""
        self.count += 1


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, number: int, observed: Observations) -> None:
        self.number, self.observed = number, observed

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to hand over: offsets are committed by the consumer itself."""

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Count rounds."""
        self.observed.assignments[self.number] += 1


async def produce(bootstrap: str, observed: Observations, rate: int, stop: asyncio.Event) -> None:
    """Send numbered records at `rate` a second until stopped; remember which were acknowledged."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5)
    await producer.start()
    pending: set[asyncio.Task[None]] = set()

    async def confirm(number: int, future: asyncio.Future[Any]) -> None:
        try:
            await future
        except Exception as error:  # noqa: BLE001 - whatever the client raises counts as not acknowledged
            observed.produce_errors += 1
            print(f"  record {number} was not acknowledged: {error!r}", flush=True)
        else:
            observed.acknowledged.add(number)

    started, number = time.monotonic(), 0
    while not stop.is_set():
        due = int((time.monotonic() - started) * rate)
        while number < due:
            future = await producer.send(TOPIC, str(number).encode(), partition=number % 12)
            task = asyncio.ensure_future(confirm(number, future))
            pending.add(task)
            task.add_done_callback(pending.discard)
            number += 1
        await asyncio.sleep(0.005)
    observed.produced = number
    await producer.stop()
    await asyncio.gather(*pending)


async def consume(consumer: AIOKafkaConsumer, number: int, observed: Observations) -> None:
    """Read until cancelled; remember every record and the longest time without one."""
    last = time.monotonic()
    async for record in consumer:
        now = time.monotonic()
        observed.longest_pause_s[number] = max(observed.longest_pause_s.get(number, 0.0), now - last)
        last = now
        observed.received[int(record.value)] += 1
        observed.positions[record.partition, record.offset] += 1


def generations(consumers: list[AIOKafkaConsumer]) -> set[int]:
    """The generations that the members are in now (a client's own view)."""
    return {consumer._coordinator.generation for consumer in consumers}


async def expired(consumers: list[AIOKafkaConsumer], timeout_s: float = 60.0) -> int:
    """Wait until all members share one generation and every partition has an owner; that generation."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        owned = [tp for consumer in consumers for tp in consumer.assignment()]
        if len(owned) == len(set(owned)) == 12 and len(generations(consumers)) == 1:
            return generations(consumers).pop()
        await asyncio.sleep(0.1)
    raise RuntimeError("the group did not become stable")


async def run(args: argparse.Namespace) -> int:
    """The whole demonstration; returns the exit code."""
    observed, client_log = Observations(), _ClientLog(logging.WARNING)
    logging.getLogger("aiokafka").addHandler(client_log)
    logging.getLogger("aiokafka").propagate = False
    with Cluster(brokers=3) as cluster:
        print(f"cluster of three: {cluster.bootstrap}", flush=True)
        bootstrap = cluster.bootstrap
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, num_partitions=12, replication_factor=1)])
        await admin.close()
        consumers: list[AIOKafkaConsumer] = []
        for number in range(6):
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap, group_id=GROUP, client_id=f"demo-{number}", auto_offset_reset="earliest"
            )
            consumer.subscribe([TOPIC], listener=_Listener(number, observed))
            consumers.append(consumer)
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        before = await expired(consumers)
        print(f"six consumers share generation {before}; {args.rate} records/s", flush=True)

        stop = asyncio.Event()
        reading = [asyncio.create_task(consume(consumer, n, observed)) for n, consumer in enumerate(consumers)]
        writing = asyncio.create_task(produce(bootstrap, observed, args.rate, stop))
        await asyncio.sleep(args.seconds)
        victim, leaver = cluster.brokers[0], cluster.brokers[1]
        print(f"SIGKILL {victim.address}", flush=True)
        victim.kill()
        await asyncio.sleep(args.seconds)
        cluster.add_broker()
        print(f"added {cluster.brokers[-1].address}", flush=True)
        await asyncio.sleep(args.seconds)
        print(f"SIGTERM {leaver.address}", flush=True)
        code = await asyncio.to_thread(leaver.drain)
        print(f"drained {leaver.address}, exit code {code}", flush=True)
        await asyncio.sleep(args.seconds)
        stop.set()
        await writing
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not observed.acknowledged <= observed.received.keys():
            await asyncio.sleep(0.1)
        after = generations(consumers)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
        print(f"\n(the clients logged {client_log.count} lines about lost connections and retries)", flush=True)
        return report(observed, before, after, code)


def report(observed: Observations, before: int, after: set[int], drain_code: int) -> int:
    """Print what the clients saw; the exit code."""
    lost = observed.acknowledged - observed.received.keys()
    twice = sum(count - 1 for count in observed.positions.values())
    stored_twice = sum(count - 1 for count in observed.received.values()) - twice
    changes = max(after) - before if len(after) == 1 else len(after)
    rounds = max(observed.assignments.values()) - 1
    print()
    print(f"records produced       {observed.produced:>8}  (acknowledged {len(observed.acknowledged)})")
    print(f"records consumed       {len(observed.received):>8}")
    print(f"lost                   {len(lost):>8}")
    print(f"delivered twice        {twice:>8}  (stored twice {stored_twice})")
    print(f"generation             {before:>8}  before, {', '.join(map(str, sorted(after)))} after")
    print(f"generation changes     {changes:>8}  (rounds seen by members after the first {rounds})")
    print(f"longest pause          {max(observed.longest_pause_s.values()):>8.2f}  s, of any consumer")
    print(f"exit code of the drain {drain_code:>8}", flush=True)
    good = not lost and changes == 0 and rounds == 0 and observed.acknowledged and drain_code == 0
    print("nobody noticed" if good else "NOT as promised", flush=True)
    return 0 if good else 1


def main() -> None:
    """Arguments, then the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds between what happens")
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
