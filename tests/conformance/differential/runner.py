"""Hold many conversations with both targets; what differs is tried again in a fresh group before it counts."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.jars import PeerUnavailable
from tests.conformance.differential.catalogue import Script, Scripted
from tests.conformance.differential.conversation import Conversation, Ended
from tests.conformance.differential.randomised import profile_of, random_conversation
from tests.conformance.differential.report import Outcome, Report
from tests.conformance.differential.targets import PROFILES, Targets, running

_AT_ONCE: Final = 8
_TRIES: Final = 3
"""A difference is real when it shows each time; others are in the report."""
_CONVERSATION_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    script: Script
    seed: int | None = None


def run(scripted: Sequence[Scripted], seeds: Sequence[int]) -> Report:
    """Everything, one profile after the other. A peer that cannot be had is said in `skipped`."""
    report = Report()
    for profile in PROFILES.values():
        mine = [one for one in scripted if one.profile is profile]
        jobs = [_Job(one.name, one.script) for one in mine if not one.by_the_clock]
        jobs += [
            _Job(f"random-{seed}", random_conversation(seed), seed) for seed in seeds if profile_of(seed) is profile
        ]
        timed = [_Job(one.name, one.script) for one in mine if one.by_the_clock]
        if not jobs and not timed:
            continue
        try:
            with running(profile) as targets:
                asyncio.run(_hold_all(targets, jobs, timed, report))
        except PeerUnavailable as unavailable:
            report.skipped = str(unavailable)
            break
    return report


async def _hold_all(targets: Targets, jobs: Iterable[_Job], timed: Iterable[_Job], report: Report) -> None:
    free = asyncio.Semaphore(_AT_ONCE)

    async def held(job: _Job) -> None:
        async with free:
            await _hold(targets, job, report)

    await asyncio.gather(*(held(job) for job in jobs))
    await asyncio.gather(*(_hold(targets, job, report) for job in timed))


async def _hold(targets: Targets, job: _Job, report: Report) -> None:
    outcome = first = await _try(targets, job, report)
    for _ in range(_TRIES - 1):
        if outcome.found and not outcome.error:
            outcome = await _try(targets, job, report)
    if not outcome.found:
        report.once += first.found
    report.outcomes.append(outcome)


async def _try(targets: Targets, job: _Job, report: Report) -> Outcome:
    talk = Conversation(job.name, targets, job.seed or 0)
    outcome = Outcome(job.name, job.seed, talk.found, talk.transcript)
    try:
        async with asyncio.timeout(_CONVERSATION_S):
            await job.script(talk)
    except Ended:
        report.ended_early += not talk.found
    except Exception:  # noqa: BLE001 - one conversation's trouble is reported, the others continue
        outcome.error = traceback.format_exc()
    finally:
        await talk.close()
    report.tally += talk.tally
    report.allowed += talk.allowed
    report.examples = talk.examples | report.examples
    return outcome
