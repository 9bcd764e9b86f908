"""`archive/plan_range` on the real server against the same walk written plainly, over logs that chance made."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.support.logs import batch_bytes
from tests.support.topics import WrittenTopic
from tidegate.records.batch import Batch
from tidegate_pipeline.sources.walking import UNLIMITED, Limits, LogWalker, Step

SEED = int(os.environ.get("TIDEGATE_SEED", "0")) or random.randrange(1, 1 << 32)
LOGS, WALKS = 60, 12
TIMES = (-1, 0, 5, (1 << 31) - 2, 1 << 32, 1_700_000_000_000)
LAST_DELTA = struct.Struct(">i")


class Entry(NamedTuple):
    """What the log was given."""

    base: int
    end: int
    records: int
    size: int
    max_timestamp: int


def test_log_walk_equals_a_plain_one(client: Any) -> None:
    for seed in range(SEED, SEED + LOGS):
        chance = random.Random(seed)
        client.flushall()
        topic = WrittenTopic(client, "orders")
        entries = [added(topic, chance) for _ in range(chance.randint(1, 60))]
        end, shown = entries[-1].end, 0
        if chance.random() < 0.3:
            shown = chance.randint(0, end)
            client.hset(topic.keys().meta, "log_start", shown)
        walker = LogWalker(client, topic.keys(), 5.0)

        for _ in range(WALKS):
            one, other = chance.choice(entries), chance.choice(entries)
            start = chance.choice((chance.randint(0, end), one.base, one.end))
            stop = chance.choice((-1, chance.randint(0, end), other.base, other.end))
            limits = Limits(
                size=chance.choice((UNLIMITED, chance.randint(1, 20_000))),
                records=chance.choice((UNLIMITED, chance.randint(0, 50))),
                at_least_one=chance.random() < 0.5,
                grain_size=chance.choice((UNLIMITED, chance.randint(1, 9_000))),
                grain_records=chance.choice((UNLIMITED, chance.randint(1, 20))),
            )
            walked = walker.walk(start, stop, limits)

            reported = walked.position, walked.steps
            assert reported == plainly(entries, max(start, shown), end if stop < 0 else stop, limits), (
                f"TIDEGATE_SEED={seed}"
            )


def added(topic: WrittenTopic, chance: random.Random) -> Entry:
    """One to three batches; compaction may have taken records from the end of one, or whole batches before it."""
    batches, base = [], topic.ends.get(0, 0) + chance.choice((0, 0, 0, 1, 70_000))
    for _ in range(chance.randint(1, 3)):
        times = [max(chance.choice(TIMES), -1)] * chance.randint(1, 6)
        batch = bytearray(batch_bytes(timestamps=times, value=bytes(chance.choice((0, 1, 100, 3_000)))))
        LAST_DELTA.pack_into(batch, 23, len(times) - 1 + chance.choice((0, 0, 1, 300, 70_000, 1 << 24)))
        batches.append(bytes(batch))
    parsed = [Batch(memoryview(batch)) for batch in batches]
    return Entry(
        base,
        topic.append(*batches, at=base),
        sum(batch.record_count for batch in parsed),
        sum(map(len, batches)),
        max(batch.max_timestamp for batch in parsed),
    )


def plainly(entries: Sequence[Entry], start: int, stop: int, limits: Limits) -> tuple[int, list[Step]]:
    """Where a walk from `start`, an offset in Redis, stops, and its steps."""
    steps: list[Step] = []
    if start >= stop:
        return start, steps
    position, taken = start, Step(0, 0, 0, 0, 0, -1)
    for entry in entries:
        if entry.end <= start or entry.base >= stop:
            continue
        passed = Step(entry.base, min(entry.end, stop), 1, entry.records, entry.size, entry.max_timestamp)
        is_first = limits.at_least_one and not steps
        begin = max(entry.base, start)
        wanted = min(entry.records, entry.end - begin)
        free = max(limits.records - taken.records, int(is_first))
        if (taken.size + passed.size > limits.size and not is_first) or (wanted and not free):
            return position, steps
        if wanted > free:
            passed = passed._replace(end=min(begin + free, stop))
        taken = taken.join(passed._replace(records=wanted))
        position = passed.end
        joined = steps[-1].join(passed) if steps else None
        if joined and joined.size <= limits.grain_size and joined.records <= limits.grain_records:
            steps[-1] = joined
        else:
            steps.append(passed)
        if wanted > free:
            return position, steps
    return stop, steps
