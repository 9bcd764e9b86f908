"""Random conversations in lockstep, some at a time, and what was held of one kind.

TIDEGATE_TEST_LOCKSTEP_CONVERSATIONS    how many of each kind (60)
TIDEGATE_TEST_CONVERSATION_SEED         the first one's seed (1)
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from bench.jars import PeerUnavailable
from tests.conformance.differential.conftest import FIRST_SEED
from tests.conformance.differential.lockstep import Conversation, Ended, Targets, running
from tests.conformance.differential.observed import Allowed, Tally

COUNT: Final = "TIDEGATE_TEST_LOCKSTEP_CONVERSATIONS"
_ENOUGH: Final = 60
"""So many conversations show each allowed difference."""
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """Conversations of one kind: what they ask, what may differ, and how they read answers."""

    hold: Callable[[Any], Awaitable[None]]
    rules: Sequence[Allowed]
    conversation: Callable[[str, int, Targets, Sequence[Allowed]], Conversation] = Conversation
    enough: int = _ENOUGH
    at_once: int = _AT_ONCE


@dataclass
class Run:
    """What was held of one kind."""

    tally: Tally = field(default_factory=Tally)
    allowed: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Fail with the first conversations that differ."""
        shown = "\n\n".join(self.different[:10])
        assert not self.different, f"{len(self.different)} conversations differ:\n{shown}"


def runs_of(kinds: Mapping[str, Kind]) -> Iterator[Mapping[str, Run]]:
    """All conversations of these kinds, for a fixture; skips where Kafka cannot be had."""
    first = int(os.environ.get(FIRST_SEED, "1"))
    seeds = {name: range(first, first + int(os.environ.get(COUNT, kind.enough))) for name, kind in kinds.items()}
    try:
        with running() as targets:
            yield {name: asyncio.run(_hold(name, kinds[name], seeds[name], targets)) for name in kinds}
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


def check_allowance(runs: Mapping[str, Run], key: str) -> None:
    """Fail if an allowed difference does not show; skips where the number of conversations was chosen."""
    if COUNT in os.environ:
        pytest.skip("the number of conversations was chosen")
    assert any(run.allowed[key] for run in runs.values()), "it does not occur any more: take it out of the table"


async def _hold(name: str, kind: Kind, seeds: range, targets: Targets) -> Run:
    run, free = Run(), asyncio.Semaphore(kind.at_once)

    async def hold(seed: int) -> None:
        async with free:
            talk = kind.conversation(name, seed, targets, kind.rules)
            try:
                await kind.hold(talk)
            except Ended:
                if talk.found:
                    run.different.append(talk.shown())
            except Exception:  # noqa: BLE001 - one conversation's trouble is reported, the others continue
                run.different.append(f"{talk.shown()}\n{talk.name}: {traceback.format_exc()}")
            finally:
                await talk.close()
            run.tally += talk.tally
            run.allowed += talk.allowed

    async with asyncio.TaskGroup() as group:
        for seed in seeds:
            group.create_task(hold(seed))
    answers = run.tally.answers
    print(
        f"\n{name}: {len(seeds)} conversations, seeds {seeds[0]}-{seeds[-1]}, {answers.total()} answers of "
        f"{len(answers)} API versions, {run.tally.fields} fields, {len(run.tally.cases)} cases of API and error codes; "
        f"{len(run.different)} conversations differ; allowed differences: {dict(run.allowed) or 'none'}"
    )
    return run
