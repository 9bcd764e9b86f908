"""`python -m tests.simulation`: run seeds and print what was simulated; a seed that breaks a promise ends it.

The same seed, groups and hours replay the same run. `--plant` plants a bug first (tests/simulation/planted_bugs.py).
"""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from tests.simulation.planted_bugs import PLANTED_BUGS
from tests.simulation.report import Plan, Report, table
from tests.simulation.seeds import run


def main() -> int:
    options = _options()
    seeds = [_seed(options.seed) + i for i in range(options.seeds)]
    reports: list[Report] = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as workers:
        size = (options.groups, options.hours, options.partitions)
        size += (options.epoch_groups, options.streams_groups, options.share_groups)
        futures = [workers.submit(run, Plan(seed, *size), options.plant) for seed in seeds]
        for future in as_completed(futures):
            report = future.result()
            reports.append(report)
            print(report.line(), flush=True)
            if report.violation:
                print(report.violation, "\n", report.command(options.plant), sep="")
                for other in futures:
                    other.cancel()
                break
    print(table(reports))
    return 1 if any(report.violation for report in reports) else 0


def _seed(text: str) -> int:
    return random.SystemRandom().randrange(1, 1_000_000) if text == "random" else int(text)


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default="1", help="the first seed, or 'random' (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other (default 1)")
    parser.add_argument("--hours", type=float, default=0.25, help="virtual hours of each seed (default 0.25)")
    parser.add_argument("--groups", type=int, default=200, help="groups in each seed's cluster (default 200)")
    parser.add_argument("--partitions", type=int, default=24, help="that are produced to and read (default 24)")
    parser.add_argument("--epoch-groups", type=int, default=20, help="of KIP-848 in each cluster (default 20)")
    parser.add_argument("--streams-groups", type=int, default=8, help="of KIP-1071 in each cluster (default 8)")
    parser.add_argument("--share-groups", type=int, default=4, help="of KIP-932 in each cluster (default 4)")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at one time, each with a server (default 1)")
    parser.add_argument("--plant", choices=sorted(PLANTED_BUGS), help="plant this bug; the run must find it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
