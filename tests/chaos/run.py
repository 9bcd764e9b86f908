"""`python -m tests.chaos.run`: seeded runs of real processes under faults, and a table of what was found.

The same seed draws the same faults; what they meet depends on the machine. Histories of runs with violations are kept
where `--keep` says, and `tests.kit.checker` reads them again.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exception
from typing import Any, Final

from bench.clients import newest_java_program
from bench.jars import PeerUnavailable
from tests.chaos.runs import TOPOLOGIES, Plan, Report, run_plan
from tests.kit.checker import Rule
from tests.kit.cluster import faketime

ENDS_AFTER_S: Final = 540.0
"""Beside the seconds of faults: the time that a run may take until its process prints where it stands, and ends."""


def main() -> int:
    options = _options()
    first = random.SystemRandom().randrange(1, 1 << 30) if options.first == "random" else int(options.first)
    seeds = range(first, first + options.seeds)
    reports: list[Report] = []
    with ThreadPoolExecutor(options.jobs) as waiting:
        java = _java()
        if faketime() is None:
            print("without steps of Redis's clock: libfaketime is not installed", flush=True)
        plans = [Plan.of(seed, options.seconds, options.redis, java) for seed in seeds]
        for run in as_completed(waiting.submit(run_alone, plan, options.keep) for plan in plans):
            report = run.result()
            reports.append(report)
            print(report.line(), flush=True)
            if report.violations:
                print(report.details(), flush=True)
    print(table(reports))
    return 1 if any(report.violations for report in reports) else 0


def _java() -> tuple[str, ...]:
    """What starts Java's clients; empty, and said, where they cannot be had."""
    try:
        return tuple(newest_java_program("GroupJournal")())
    except PeerUnavailable as unavailable:
        print(f"without Java: {unavailable}", flush=True)
        return ()


def run_alone(plan: Plan, keep: Path | None) -> Report:
    """A run in a process of its own, with all that it started.

    librdkafka may abort it at close (its issue 4792), or not return from there: no test can end that thread.
    """
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run_and_send, args=(plan, keep, sending))
    process.start()
    assert process.pid is not None
    sending.close()
    try:
        return receiving.recv()  # type: ignore[no-any-return]
    except EOFError:
        process.join()
        return Report(plan, violations=[f"not judged: its process ended with {process.exitcode}"])
    finally:
        with suppress(ProcessLookupError):  # of a run that ended early, clients' threads still run
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _run_and_send(plan: Plan, keep: Path | None, sending: Connection) -> None:
    os.setsid()
    faulthandler.dump_traceback_later(plan.seconds + ENDS_AFTER_S, exit=True)
    try:
        report = run_plan(plan, keep)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        report = Report(plan, violations=["not judged: " + "".join(format_exception(error))])
    sending.send(report)


def table(reports: Sequence[Report]) -> str:
    """The sum of some runs."""
    faults: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
        operations.update(report.operations)
    kinds = Counter(report.plan.kind for report in reports)
    rows: list[tuple[str, object]] = [
        ("runs", len(reports)),
        ("  with Java", sum(bool(report.plan.java) for report in reports)),
        *((f"  {kind}", count) for kind, count in sorted(kinds.items())),
        ("runs with violations", sum(bool(report.violations) for report in reports)),
        ("violations", sum(len(report.violations) for report in reports)),
        ("faults", faults.total()),
        *((f"  {kind}", count) for kind, count in sorted(faults.items())),
        *sorted(operations.items()),
        ("judged by rule", ""),
        *((f"  {rule}", sum(report.judged.get(rule, 0) for report in reports)) for rule in Rule),
    ]
    return "\n".join(f"{name:<42}{value:>12}" for name, value in rows)


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__.splitlines()[0])
    parser.add_argument("--first", default="1", help="the first seed, or 'random' (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--seconds", type=float, default=30, help="of faults in each (default 30)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at one time (default 1)")
    parser.add_argument("--redis", choices=TOPOLOGIES, help="all runs on this; else the seed decides")
    parser.add_argument("--keep", type=Path, help="directory for the histories of runs with violations")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
