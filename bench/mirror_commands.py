"""`python -m bench.mirror_commands`: Redis CPU of the ways to keep a consumer group, by reads of entries of some size.

`XRANGE` is a plain read, which the broker's tail cache often saves; `XREADGROUP` reads and keeps the group in one;
`log/deliver` keeps the group alone. The last two leave the same pending entries and position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from bench.cluster import Cluster
from bench.processes import cpu_seconds
from tidegate.log.entries import id_before, id_of
from tidegate.log.mirror import DELIVER

_SIZES: Final = ((1_000, 50, 400), (16_384, 16, 400), (65_536, 16, 100))
"""Bytes of an entry, entries of a read, reads."""
_ROUNDS: Final = 5
_RECORD: Final = "{}"


def main() -> None:
    """Measure and print a table."""
    with Cluster(0) as cluster:
        server: Any = redis.Redis(port=cluster.redis_port)
        server.response_callbacks.clear()
        print("| entries of a read | XRANGE, µs | XREADGROUP, µs | log/deliver, µs |\n|---|---|---|---|")
        for size, per_read, reads in _SIZES:
            server.execute_command("UNLINK", "log")
            for base in range(per_read * reads):
                server.execute_command("XADD", "log", id_of(base), "w", "bench:1", "b", os.urandom(size))
            ways = (_range(per_read), _readgroup(per_read), _deliver(server, per_read))
            costs = [_cost(server, cluster.redis_pid, way, range(0, per_read * reads, per_read)) for way in ways]
            print(f"| {per_read} of {size:,} bytes | {' | '.join(f'{cost:.0f}' for cost in costs)} |", flush=True)


Way = Callable[[str, int], list[Any]]
"""A read as a command, by group and first base."""


def _range(per_read: int) -> Way:
    return lambda group, base: ["XRANGE", "log", id_before(base), "+", "COUNT", per_read]


def _readgroup(per_read: int) -> Way:
    return lambda group, base: ["XREADGROUP", "GROUP", group, "m", "COUNT", per_read, "STREAMS", "log", ">"]


def _deliver(server: Any, per_read: int) -> Way:
    server.execute_command("SCRIPT", "LOAD", DELIVER.source)

    def command(group: str, base: int) -> list[Any]:
        ids = [id_of(one) for one in range(base, base + per_read)]
        return ["EVALSHA", DELIVER.sha, 2, "log", "owners", group, _RECORD, "m", ids[-1], 1 << 30, 0, *ids]

    return command


def _cost(server: Any, pid: int, way: Way, bases: Sequence[int]) -> float:
    """CPU of the server by read, µs."""
    spent = 0.0
    for number in range(_ROUNDS):
        group = f"g{number}"
        server.execute_command("HSET", "owners", group, _RECORD)
        server.execute_command("XGROUP", "CREATE", "log", group, "0")
        commands = [way(group, base) for base in bases]
        before = cpu_seconds(pid)
        for command in commands:
            server.execute_command(*command)
        spent += cpu_seconds(pid) - before
        server.execute_command("XGROUP", "DESTROY", "log", group)
    return spent / _ROUNDS / len(bases) * 1e6


if __name__ == "__main__":
    main()
