"""Groups of KIP-848, KIP-932 and KIP-1071 are answered as Apache Kafka 4.4 answers them, but for what is allowed.

TIDEGATE_TEST_EPOCH_CONVERSATIONS       how many of each kind (60)
TIDEGATE_TEST_CONVERSATION_SEED         the first one's seed (1)
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest

from bench.jars import PeerUnavailable
from tests.conformance.differential.conftest import FIRST_SEED
from tests.conformance.differential.epoch_allowed import RULES
from tests.conformance.differential.epoch_consumer import consumer_conversation
from tests.conformance.differential.epoch_conversation import Conversation, Ended, Targets, running
from tests.conformance.differential.epoch_share import share_conversation
from tests.conformance.differential.epoch_streams import streams_conversation
from tests.conformance.differential.observed import Tally

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_200)]

KINDS: Final[Mapping[str, Callable[[Conversation], Awaitable[None]]]] = {
    "consumer": consumer_conversation,
    "share": share_conversation,
    "streams": streams_conversation,
}
_COUNT: Final = "TIDEGATE_TEST_EPOCH_CONVERSATIONS"
_ENOUGH: Final = 60
"""So many conversations show each allowed difference."""
_AT_ONCE: Final = 4


@dataclass
class Run:
    """What was held of one kind."""

    tally: Tally = field(default_factory=Tally)
    allowed: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def runs() -> Iterator[Mapping[str, Run]]:
    """All conversations; skips where Kafka cannot be had."""
    first, count = int(os.environ.get(FIRST_SEED, "1")), int(os.environ.get(_COUNT, str(_ENOUGH)))
    try:
        with running() as targets:
            yield {kind: asyncio.run(_hold(kind, range(first, first + count), targets)) for kind in KINDS}
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


async def _hold(kind: str, seeds: range, targets: Targets) -> Run:
    run, free = Run(), asyncio.Semaphore(_AT_ONCE)

    async def hold(seed: int) -> None:
        async with free:
            talk = Conversation(kind, seed, targets)
            try:
                await KINDS[kind](talk)
            except Ended:
                if talk.found:
                    run.different.append(talk.shown())
            except Exception:  # noqa: BLE001 - one conversation's trouble is reported, the others continue
                run.different.append(f"{talk.name}: {traceback.format_exc()}")
            finally:
                await talk.close()
            run.tally += talk.tally
            run.allowed += talk.allowed

    async with asyncio.TaskGroup() as group:
        for seed in seeds:
            group.create_task(hold(seed))
    answers = run.tally.answers
    print(
        f"\n{kind} groups: {len(seeds)} conversations, seeds {seeds[0]}-{seeds[-1]}, {answers.total()} answers of "
        f"{len(answers)} API versions, {run.tally.fields} fields, {len(run.tally.cases)} cases of API and error codes; "
        f"{len(run.different)} conversations differ; allowed differences: {dict(run.allowed) or 'none'}"
    )
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_random_conversations(runs: Mapping[str, Run], kind: str) -> None:
    different = runs[kind].different
    assert not different, f"{len(different)} conversations differ:\n" + "\n\n".join(different[:10])


@pytest.mark.parametrize("key", [rule.key for rule in RULES])
def test_allowed_difference_shows(runs: Mapping[str, Run], key: str) -> None:
    if _COUNT in os.environ:
        pytest.skip("the number of conversations was chosen")
    assert any(run.allowed[key] for run in runs.values()), "it does not occur any more: take it out of the table"
