"""`python -m bench MEASURE --bootstrap HOST:PORT --pids PID,PID`: one measure of any Kafka endpoint, one JSON line.

`python -m bench all` measures our own cluster and, where Java and Maven Central can be had, Apache Kafka
beside it, turn by turn, and writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from bench import join_one, suite
from bench.endpoint import Endpoint
from bench.measures import MEASURES, add_options


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = top.add_subparsers(dest="measure", required=True)
    for name, measure in MEASURES.items():
        command = commands.add_parser(name, help=(measure.__doc__ or "").split("\n")[0])
        command.add_argument("--bootstrap", required=True, help="HOST:PORT,...")
        command.add_argument("--pids", default="", help="every process of the endpoint, Redis too: PID,PID")
        add_options(command)
    suite.add_options(commands.add_parser("all", help="our cluster and Apache Kafka, side by side"))
    join_one.add_options(commands.add_parser("join-one", help="one more member joins, heartbeats held or not"))
    return top


def main() -> int:
    """Run one measure, or all."""
    args = parser().parse_args()
    if args.measure == "all":
        return suite.main(args)
    if args.measure == "join-one":
        return join_one.main(args)
    args.run_id = f"{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
    endpoint = Endpoint(args.bootstrap, [int(pid) for pid in args.pids.split(",") if pid])
    found = suite.measured(endpoint, args.measure, args)
    print(json.dumps(found), flush=True)
    return 1 if "error" in found else 0


if __name__ == "__main__":
    sys.exit(main())
