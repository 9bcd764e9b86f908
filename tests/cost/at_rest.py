"""`python -m tests.cost.at_rest`: Redis commands a minute that a broker causes at rest, as JSON.

With few groups and partitions and with ten times as many, each after a while in which nothing changed.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from tests.cost.cluster import Cluster, run
from tests.cost.operations import Member, set_up
from tests.kit.wire import request

FEW: Final = 20
MANY: Final = 10 * FEW
IDLE_BEFORE_S: Final = 200.0
"""Until what is new was sampled and measured as often as caches need."""
COUNTED_MIN: Final = 5
_CREATE: Final = 19


async def _commands_per_minute(partition_count: int, group_count: int, cluster: Cluster) -> float:
    await set_up(cluster)
    client = await cluster.client()
    topic = {
        "name": "rest", "num_partitions": partition_count, "replication_factor": -1, "assignments": [], "configs": [],
    }  # fmt: skip
    asked = request(_CREATE, 7, topics=[topic], timeout=5_000, validate_only=False)
    assert (await client.ask(asked)).topics[0].error_code is ErrorCode.none
    for number in range(group_count):
        answer = await client.ask(Member(client, f"rest-{number}").commit(1, 0))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
    await asyncio.sleep(IDLE_BEFORE_S)
    cluster.server.reset(cluster.redis.now_ms())
    await asyncio.sleep(60 * COUNTED_MIN)
    return cluster.server.commands_run(cluster.redis.now_ms()) / COUNTED_MIN


def main() -> None:
    """Print the commands a minute of each."""
    sizes = {"few": (FEW, FEW), "many_groups": (FEW, MANY), "many_partitions": (MANY, FEW)}
    print(json.dumps({name: run(partial(_commands_per_minute, *size)) for name, size in sizes.items()}))


if __name__ == "__main__":
    main()
