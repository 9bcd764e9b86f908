"""Topics that Spark reads in the benchmarks: the same batches to any Kafka endpoint, by raw Produce requests."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kio.schema.errors import ErrorCode

from bench.kafka_wire import MeasureFailed, Wire
from bench.logs import produce_frame, refusal
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch

PARTITIONS: Final = 2
_PARTITION_COUNTS: Final = (1, 8, 64)
_KEY_BYTES: Final = 16
_DISTINCT_BATCHES: Final = 50
_LANES: Final = 4
_PRIME_TRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Work:
    """What is read: `rows` records with values of `value_bytes` (half of each random) in batches of `batch_records`."""

    topic: str
    title: str
    value_bytes: int
    codec: Codec
    batch_records: int
    rows: int
    partitions: int = PARTITIONS


def works(scale: float) -> list[Work]:
    """Records of two sizes, uncompressed and packed, in few and many partitions; `scale` 1 is 2 GB of each.

    Uncompressed 100 B records come first: they warm a session.
    """
    found = []
    for (size, value_bytes, batch_records, count), codec, partitions in product(
        (("100 B", 100, 1_000, 4_000_000), ("1 KiB", 1_024, 100, 2_000_000)), (Codec.NONE, Codec.LZ4), _PARTITION_COUNTS
    ):
        packed = "" if codec is Codec.NONE else f" {codec.name.lower()}"
        title = f"{size}{packed}, {partitions}"
        unit = partitions * batch_records
        rows = max(round(count * scale / unit), 1) * unit
        topic = re.sub("[ ,]+", "-", title)
        found.append(Work(topic, title, value_bytes, codec, batch_records, rows, partitions))
    return found


def written(scale: float) -> list[Work]:
    """What Spark writes: records of two sizes to 8 partitions, half as many as are read."""
    return [
        Work(f"written-{size}-B", f"{size} B", size, Codec.NONE, 0, round(count * scale), 8)
        for size, count in ((100, 2_000_000), (1_024, 1_000_000))
    ]


FEW: Final = Work("few", "2,000 rows", 100, Codec.NONE, 1_000, 2_000)
"""A query whose cost is fixed."""


def fill(bootstrap: str, work: Work) -> None:
    """Create a work's topic and produce its records. Raises MeasureFailed, OSError."""
    asyncio.run(_fill(bootstrap, work))


def create(bootstrap: str, work: Work) -> None:
    """Create a work's topic, empty. Raises OSError."""
    asyncio.run(_create(bootstrap, work))


async def _create(bootstrap: str, work: Work) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(work.topic, work.partitions, 1)])
    await admin.close()


async def _fill(bootstrap: str, work: Work) -> None:
    await _create(bootstrap, work)
    batches = list(batches_of(work))
    each = work.rows // work.batch_records // work.partitions
    address = bootstrap.split(",")[0]
    await asyncio.gather(*(_push(address, work.topic, index, batches, each) for index in range(work.partitions)))


def drop(bootstrap: str, work: Work) -> None:
    """Delete a work's topic: its bytes are needed for the next one's. Raises OSError."""
    asyncio.run(_drop(bootstrap, work))


async def _drop(bootstrap: str, work: Work) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([work.topic])
    await admin.close()


async def _push(address: str, topic: str, partition: int, batches: Sequence[bytes], count: int) -> None:
    frames = [produce_frame(topic, partition, batch) for batch in batches]
    wire = await Wire.connect(address)
    iterations = iter(range(count))

    async def lane() -> None:
        for iteration in iterations:
            await _sent(wire, frames[iteration % len(frames)])

    try:
        await asyncio.gather(*(lane() for _ in range(_LANES)))
    finally:
        wire.close()


async def _sent(wire: Wire, frame: bytes) -> None:
    """Acknowledged; a new topic's leader may refuse for a moment."""
    for _ in range(_PRIME_TRIES):
        code = refusal(await wire.send(frame))
        if code is ErrorCode.none:
            return
        if code not in (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower):
            break
        await asyncio.sleep(0.05)
    raise MeasureFailed(f"Produce: {code.name}")


def batches_of(work: Work) -> Iterator[bytes]:
    """The batches that a partition gets again and again; the same at each call but for their time."""
    chance, now_ms = random.Random(1), int(time.time() * 1_000)
    half = work.value_bytes // 2
    for _ in range(_DISTINCT_BATCHES):
        yield build_batch(
            [
                NewRecord(
                    chance.randbytes(half) + bytes(work.value_bytes - half),
                    chance.randbytes(_KEY_BYTES),
                    now_ms + index // 10,
                )
                for index in range(work.batch_records)
            ],
            codec=work.codec,
        )
