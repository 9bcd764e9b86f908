"""Seven client libraries, unmodified, in groups of their own, with held heartbeats and without: what each suffers.

Of each client a group of five lives through joins, closes, commits of three kinds, a static restart and a crash,
while records come in all the time. Checked: no rebalance but those that were caused, every record consumed, commits
at the end of the log when all have closed, closes in time, records not late while heartbeats are held.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from bench.clients import CLIENTS, Client, Command
from bench.jars import PeerUnavailable
from tests.clients.matrix import Outcome, live
from tests.clients.table import table

HOLDS_MS = {"off": 0, "on": 3_000}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    made.add_argument("--clients", default=",".join(CLIENTS), help="which, by name")
    made.add_argument("--holds", default="off,on", help="off, on or both")
    made.add_argument("--tries", type=int, default=8, help="times that one more member joins")
    made.add_argument("--parallel", type=int, default=3, help="clients at a time")
    return made


async def run(clients: list[tuple[Client, Command]], args: argparse.Namespace) -> list[Outcome]:
    """Every client under every setting."""
    free = asyncio.Semaphore(args.parallel)

    async def one(client: Client, command: Command, holds: str) -> Outcome:
        async with free:
            settings = {"TIDEGATE_HEARTBEAT_DELAY_MAX_MS": str(HOLDS_MS[holds])}
            outcome = await live(client, command, holds, settings, args.tries)
            print(outcome.line(), flush=True)
            return outcome

    return await asyncio.gather(*(one(*each, holds) for each in clients for holds in args.holds.split(",")))


def main() -> int:
    """Build what can be built, run, print the table."""
    args = parser().parse_args()
    clients, skipped = [], []
    for name in args.clients.split(","):
        try:
            clients.append((CLIENTS[name], CLIENTS[name].prepare()))
        except PeerUnavailable as error:
            skipped.append(f"skipped: {name}: {error}")
            print(skipped[-1], flush=True)
    outcomes = asyncio.run(run(clients, args))
    print(table(outcomes), *skipped, sep="\n", flush=True)
    failures = [f"{each.client} {each.holds}: {failure}" for each in outcomes for failure in each.failures]
    print(*failures, sep="\n", flush=True)
    return 1 if failures or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
