"""How many bytes of neighbouring partitions share a task: more, where many tasks are left for the cores."""

from __future__ import annotations

from itertools import chain

import pytest

from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.planning import PlannedRange
from tidegate_pipeline.sources.splitting import pack
from tidegate_pipeline.sources.tiers import Tier

MIB = 1 << 20
OPTIONS = TopicOptions.model_validate({"redis.url": "redis://127.0.0.1:1", "subscribe": "orders"})


def partitions(count: int, size: int) -> list[PlannedRange]:
    return [
        PlannedRange("orders", "id", partition, Tier.REDIS, 0, 10, 0, 10, 1, 10, size) for partition in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "size", "together", "tasks"),
    [
        (64, MIB // 8, 8, 8),
        (64, MIB // 2, 4, 16),
        (64, 5 * MIB // 2, 3, 22),
        (1_000, MIB, 8, 125),
        (64, 8 * MIB, 1, 64),
        (10, MIB, 1, 10),
    ],
)
def test_neighbours_share_tasks_of_what_is_left_for_sixteen(count: int, size: int, together: int, tasks: int) -> None:
    ranges = partitions(count, size)
    packed = pack(ranges, OPTIONS)
    assert list(chain.from_iterable(packed)) == ranges
    assert max(map(len, packed)) == together
    assert len(packed) == tasks
