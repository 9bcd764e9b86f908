"""`python -m bench MEASURE --bootstrap HOST:PORT --pids PID,PID`: one measure of any Kafka endpoint, one JSON line.

`python -m bench all` measures our own cluster and, where Java and Maven Central can be had, Apache Kafka
beside it, turn by turn, and writes build/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Final

from bench import (
    cold,
    compaction,
    curves,
    decoder,
    formats,
    incidents,
    join_one,
    key_order,
    mixed,
    spark_source,
    start,
    suite,
)
from bench.endpoint import Endpoint
from bench.measures import MEASURES, add_options

_COMMANDS: Final = {
    "all": suite.main,
    "cold": cold.main,
    "compaction": compaction.main,
    "curves": curves.main,
    "formats": formats.main,
    "join-one": join_one.main,
    "key-order": key_order.main,
    "incidents": incidents.main,
    "mixed": mixed.main,
    "decoder": decoder.main,
    "spark": spark_source.main,
    "start": start.main,
}


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
    cold.add_options(commands.add_parser("cold", help="old offsets from the archive, by three clients"))
    compaction.add_options(commands.add_parser("compaction", help="one partition to the last value of each key"))
    curves.add_options(commands.add_parser("curves", help="cost by members, connections, partitions, brokers"))
    formats.add_options(commands.add_parser("formats", help="topics of format record beside format batch"))
    key_order.add_options(commands.add_parser("key-order", help="share consumers in order of each key"))
    join_one.add_options(commands.add_parser("join-one", help="one more member joins, heartbeats held or not"))
    incidents.add_options(commands.add_parser("incidents", help="incidents of groups, made and found by the pipeline"))
    mixed.add_options(commands.add_parser("mixed", help="heartbeats beside bulk produce, joins and Metadata"))
    decoder.add_options(commands.add_parser("decoder", help="the pipeline's decoder beside clients' parsers"))
    spark_source.add_options(commands.add_parser("spark", help="the source tidegate beside Spark's Kafka connector"))
    start.add_options(commands.add_parser("start", help="first answer and memory of a broker"))
    return top


def main() -> int:
    """Run one measure, or all."""
    args = parser().parse_args()
    if args.measure in _COMMANDS:
        return _COMMANDS[args.measure](args)
    args.run_id = f"{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
    endpoint = Endpoint(args.bootstrap, [int(pid) for pid in args.pids.split(",") if pid])
    found = suite.measured(endpoint, args.measure, args)
    print(json.dumps(found), flush=True)
    return 1 if "error" in found else 0


if __name__ == "__main__":
    sys.exit(main())
