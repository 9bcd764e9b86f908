"""Groups of KIP-848, KIP-932 and KIP-1071 are answered as Apache Kafka 4.4 answers them, but for what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.conformance.differential.epoch_allowed import RULES
from tests.conformance.differential.epoch_consumer import consumer_conversation
from tests.conformance.differential.epoch_share import share_conversation
from tests.conformance.differential.epoch_streams import streams_conversation
from tests.conformance.differential.lockstep_runs import Kind, Run, check_allowance, runs_of

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_200)]

KINDS: Final[Mapping[str, Kind]] = {
    "consumer": Kind(consumer_conversation, RULES),
    "share": Kind(share_conversation, RULES),
    "streams": Kind(streams_conversation, RULES),
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Mapping[str, Run]]:
    yield from runs_of(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_random_conversations(runs: Mapping[str, Run], kind: str) -> None:
    runs[kind].check()


@pytest.mark.parametrize("key", [rule.key for rule in RULES])
def test_allowed_difference_shows(runs: Mapping[str, Run], key: str) -> None:
    check_allowance(runs, key)
