"""Deliveries of one read to several clients are noted as those of each client."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tidegate.log import mirror_news
from tidegate.log.mirror_news import PartitionNews
from tidegate.store.keys import LogKeys

CONNECTIONS = [("client", "/10.0.0.1", number) for number in range(6)]


def partition() -> PartitionNews:
    return PartitionNews("default", LogKeys.of("tidegate", "default", "t", 0, "0" * 32))


def noted(news: PartitionNews) -> list[Any]:
    """Positions, and the events of each step."""
    steps = [
        ({one: (found.bases, found.position) for one, found in step.delivered.items()}, step.committed, step.rewound)
        for step in news.take()
    ]
    return [[news.position(one) for one in CONNECTIONS], steps]


@pytest.mark.parametrize("readers_max", [4, 10_000])
@pytest.mark.parametrize("seed", range(10))
def test_fetched_together_is_fetched_by_each(seed: int, readers_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_news, "_READERS_MAX", readers_max)
    rng, together, each = Random(seed), partition(), partition()
    for _ in range(30):
        connections = rng.sample(CONNECTIONS, rng.randint(1, len(CONNECTIONS)))
        offset = rng.randrange(20)
        end, bases = offset + 2, sorted({rng.randrange(offset + 1), offset})
        if rng.random() < 0.2:
            for news in (together, each):
                news.committed("g", offset)
        together.fetched_together(connections, offset, end, bases, 1.0)
        for connection in connections:
            each.fetched(connection, offset, end, bases, 1.0)

    assert noted(together) == noted(each)
