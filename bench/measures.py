"""Every measure by its name, and the options that they share."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench import epoch_groups, fan_out, groups, hot, logs, transactions
from bench.endpoint import Endpoint

Measure = Callable[[Endpoint, argparse.Namespace], Awaitable[dict[str, Any]]]

MEASURES: Final[dict[str, Measure]] = {
    "produce": logs.produce,
    "batches": logs.batches,
    "consume": logs.consume,
    "latency": logs.latency,
    "groups": groups.groups,
    "rebalance": groups.rebalance,
    "heartbeats": hot.heartbeats,
    "commits": hot.commits,
    "offset-fetches": hot.offset_fetches,
    "epoch-heartbeats": epoch_groups.heartbeats,
    "epoch-rebalance": epoch_groups.rebalance,
    "share": epoch_groups.share,
    "fan-out": fan_out.fan_out,
    "transactions": transactions.transactions,
    "consume-committed": transactions.consume_committed,
}


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of a measure; each takes what it needs."""
    command.add_argument("--seconds", type=float, default=4.0, help="length of the window")
    command.add_argument("--warmup", type=float, default=1.0, help="seconds before it")
    command.add_argument("--connections", type=int, default=16)
    command.add_argument("--depth", type=int, default=4, help="requests in flight on each connection")
    command.add_argument("--partitions", type=int, default=1, help="of one commit or offset fetch")
    command.add_argument("--megabytes", type=float, default=200.0, help="produced or consumed")
    command.add_argument("--size", type=int, default=1_000, help="bytes of a record's value")
    command.add_argument("--batch-records", type=int, default=64, help="records of a prebuilt batch")
    command.add_argument("--idempotent", action="store_true")
    command.add_argument("--rate", type=int, default=1_000, help="records a second")
    command.add_argument("--groups", type=int, default=200)
    command.add_argument("--members", type=int, default=5, help="of each group")
    command.add_argument("--heartbeat-ms", type=int, default=100, help="interval of the members' heartbeats")
    command.add_argument("--learn-s", type=float, default=0.0, help="seconds of heartbeats before the first try")
    command.add_argument("--tries", type=int, default=5, help="times that one more member joins")
