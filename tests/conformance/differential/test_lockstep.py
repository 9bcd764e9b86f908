"""Groups of KIP-848, KIP-932 and KIP-1071, the log, topics and transactions are answered as Apache Kafka 4.4 answers
them, but for what is allowed.

Not compared: damage to batches that Kafka repairs where it writes them anew (`log_batches`); transactional batches that
are wrong in two ways at once, or sent again after their transaction's end; changes of internal topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.conformance.differential import epoch_allowed, log_allowed
from tests.conformance.differential.epoch_consumer import consumer_conversation
from tests.conformance.differential.epoch_share import share_conversation
from tests.conformance.differential.epoch_streams import streams_conversation
from tests.conformance.differential.lockstep_runs import Kind, Run, check_allowance, runs_of
from tests.conformance.differential.log_conversation import Conversation
from tests.conformance.differential.log_topics import topics_conversation
from tests.conformance.differential.log_transactions import transactions_conversation
from tests.conformance.differential.log_walk import log_conversation

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_200)]

# Kafka's broker verifies the batches of several producers in one request, and answers all as the first one's version.
KINDS: Final[Mapping[str, Kind]] = {
    "consumer": Kind(consumer_conversation, epoch_allowed.RULES),
    "share": Kind(share_conversation, epoch_allowed.RULES),
    "streams": Kind(streams_conversation, epoch_allowed.RULES),
    "log": Kind(log_conversation, log_allowed.RULES, Conversation),
    "topics": Kind(topics_conversation, log_allowed.RULES, Conversation, enough=128),
    "transactions": Kind(transactions_conversation, log_allowed.RULES, Conversation, enough=64, at_once=1),
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Mapping[str, Run]]:
    yield from runs_of(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_random_conversations(runs: Mapping[str, Run], kind: str) -> None:
    runs[kind].check()


@pytest.mark.parametrize("key", [rule.key for rule in (*epoch_allowed.RULES, *log_allowed.RULES)])
def test_allowed_difference_shows(runs: Mapping[str, Run], key: str) -> None:
    check_allowance(runs, key)
