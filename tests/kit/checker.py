"""One checker for every history of produce, fetch and groups; its rules are those of Jepsen's model of Kafka, and ours.

`check(history)` returns the violations. It reads a history a fixed number of times and sorts it once, so hours of
operations take seconds. A rule that an operation's own promise does not cover (the order of a producer that is not
idempotent) leaves it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.kit import group_rules, log_rules, share_rules
from tests.kit.history import History


class Rule(StrEnum):
    """What a history may break."""

    LOST_WRITE = "lost write"
    """An acknowledged record that a reader passed, or that lies beyond the log's end, was never read."""
    DUPLICATE = "duplicate"
    """One value at two offsets of a partition, of a producer that promises none."""
    INCONSISTENT_OFFSET = "inconsistent offset"
    """Two values at one offset, or a value acknowledged at one offset and read at another."""
    ABORTED_READ = "aborted read (G1a)"
    """A record was read whose send surely failed, or whose transaction aborted."""
    PRECOMMITTED_READ = "precommitted read"
    """A record of a transaction was read before anybody asked for its commit."""
    INT_POLL_SKIP = "int-poll-skip"
    """Within one poll an offset follows another though there is a record between."""
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    """Within one poll offsets do not rise."""
    POLL_SKIP = "poll-skip"
    """The same from one poll of an ownership to the next."""
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    """Within one transaction a later send lies before an earlier one."""
    NONMONOTONIC_SEND = "nonmonotonic-send"
    """The same among all sends of an idempotent producer."""
    HOLE = "unexplained hole"
    """An offset below the end without a record, and more of them than transactions explain."""
    GROUP_SKIP = "group skip"
    """A group committed past a record that no member of it ever read."""
    COMMITTED_BACK = "committed offset back"
    """A group's offset is neither its last acknowledged commit nor one that may have come since."""
    STALE_COMMIT = "stale commit"
    """A commit of a generation was accepted after one of a later generation."""
    TWO_OWNERS = "two owners"
    """Two members own a partition in one generation, or at one time though both are members."""
    GENERATION_BACK = "generation back"
    """A member learned of an older generation than before."""
    UNOWNED_READ = "unowned read"
    """A member of a group read a partition that it did not own."""
    SHARED_TWICE = "shared twice"
    """Two deliveries of a record by a share group have one count: two members had it at a time."""
    ACCEPTED_AGAIN = "delivered after acceptance"
    """A share group delivered a record whose acceptance it had confirmed."""
    SHARE_LOST = "lost by a share group"
    """A share group finished a record that no member accepted."""
    OTHER_VALUE = "other value shared"
    """A share group delivered another value than was acknowledged at the offset."""
    UNOWNED_ACKNOWLEDGEMENT = "unowned acknowledgement"
    """A member acknowledged a record that it was never given, and was not refused."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken, and the evidence."""

    rule: Rule
    evidence: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.evidence}"


SHOWN_MAX: Final = 5
"""Of each rule, in a summary."""


def check(history: History) -> list[Violation]:
    """Every violation, by rule."""
    log = log_rules.Log(history)
    found: dict[Rule, Iterable[str]] = {
        Rule.LOST_WRITE: log.lost_writes(),
        Rule.DUPLICATE: log.duplicates(),
        Rule.INCONSISTENT_OFFSET: log.inconsistent_offsets(),
        Rule.ABORTED_READ: log.aborted_reads(),
        Rule.PRECOMMITTED_READ: log.precommitted_reads(),
        Rule.INT_NONMONOTONIC_SEND: log.nonmonotonic_sends_within(),
        Rule.NONMONOTONIC_SEND: log.nonmonotonic_sends(),
        Rule.HOLE: log.holes(),
        Rule.GROUP_SKIP: log.group_skips(),
    }
    groups = group_rules.Groups(history, log.next_offset)
    groups.read()
    found |= {
        Rule.INT_POLL_SKIP: groups.skips_within,
        Rule.INT_NONMONOTONIC_POLL: groups.backward_within,
        Rule.POLL_SKIP: groups.skips,
        Rule.NONMONOTONIC_POLL: groups.backward,
        Rule.COMMITTED_BACK: groups.committed_back(),
        Rule.STALE_COMMIT: groups.stale_commits(),
        Rule.TWO_OWNERS: groups.two_owners(),
        Rule.GENERATION_BACK: groups.generations_back,
        Rule.UNOWNED_READ: groups.unowned_reads,
    }
    shares = share_rules.ShareGroups(history)
    found |= {
        Rule.SHARED_TWICE: shares.two_deliveries(),
        Rule.ACCEPTED_AGAIN: shares.delivered_again(),
        Rule.SHARE_LOST: shares.lost(),
        Rule.OTHER_VALUE: shares.other_values(),
        Rule.UNOWNED_ACKNOWLEDGEMENT: shares.unowned_acknowledgements,
    }
    return [Violation(rule, evidence) for rule, every in found.items() for evidence in every]


def summary(violations: Iterable[Violation]) -> Iterator[str]:
    """The first of each rule, and how many there are."""
    counts: Counter[Rule] = Counter()
    for violation in violations:
        counts[violation.rule] += 1
        if counts[violation.rule] <= SHOWN_MAX:
            yield str(violation)
    for rule, count in counts.items():
        if count > SHOWN_MAX:
            yield f"{rule.value}: {count} in all"
