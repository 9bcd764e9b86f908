"""How much of a history each rule of the checker judges: a rule without any cannot be broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.kit.checker import Rule
from tests.kit.history import (
    Acknowledgement,
    Assigned,
    Commit,
    CommittedFetch,
    Delivery,
    History,
    LogBounds,
    Operation,
    Outcome,
    Poll,
    Send,
    ShareBounds,
    TransactionEnd,
)


def judged(history: History) -> dict[Rule, int]:
    """Records, commits and the like, by rule; every rule is in it."""
    counts = Counter(dict.fromkeys(Rule, 0))
    ends = {one.transaction: one for one in history if isinstance(one, TransactionEnd)}
    for operation in history:
        counts.update(_of_records(operation, ends))
        counts.update(_of_groups(operation))
    counts[Rule.INT_NONMONOTONIC_SEND] = sum(count > 1 for count in _stored_together(history).values())
    return dict(counts)


def _stored_together(history: History) -> Counter[tuple[str, str]]:
    """Transaction and partition -> its records there."""
    return Counter(
        (one.transaction, one.partition)
        for one in history
        if isinstance(one, Send) and one.outcome is Outcome.OK and one.transaction is not None
    )


def _of_records(operation: Operation, ends: Mapping[str, TransactionEnd]) -> Mapping[Rule, int]:
    match operation:
        case Send(transaction=str(name)) if name in ends and not ends[name].committed:
            return {Rule.ABORTED_READ: 1}
        case Send(outcome=Outcome.FAILED):
            return {Rule.ABORTED_READ: 1}
        case Send(outcome=Outcome.OK):
            return {
                Rule.LOST_WRITE: 1,
                Rule.INCONSISTENT_OFFSET: operation.offset >= 0,
                Rule.NONMONOTONIC_SEND: operation.idempotent,
                Rule.PRECOMMITTED_READ: operation.transaction is not None,
            }
        case Poll():
            count = len(operation.records)
            return {
                Rule.DUPLICATE: count,
                Rule.INT_POLL_SKIP: max(count - 1, 0),
                Rule.INT_NONMONOTONIC_POLL: max(count - 1, 0),
                Rule.POLL_SKIP: count > 0,
                Rule.NONMONOTONIC_POLL: count > 0,
                Rule.UNOWNED_READ: count * (operation.group is not None),
            }
        case LogBounds():
            return {Rule.HOLE: operation.end - operation.start}
    return {}


def _of_groups(operation: Operation) -> Mapping[Rule, int]:
    match operation:
        case Assigned():
            is_known = operation.generation >= 0
            return {Rule.TWO_OWNERS: len(operation.partitions), Rule.GENERATION_BACK: is_known}
        case Commit(outcome=Outcome.OK):
            return {Rule.GROUP_SKIP: len(operation.offsets), Rule.STALE_COMMIT: operation.generation >= 0}
        case CommittedFetch():
            return {Rule.COMMITTED_BACK: len(operation.offsets)}
        case Delivery():
            return {Rule.SHARED_TWICE: len(operation.records), Rule.OTHER_VALUE: len(operation.records)}
        case Acknowledgement(outcome=Outcome.OK):
            count = len(operation.accepted)
            return {Rule.ACCEPTED_AGAIN: count, Rule.UNOWNED_ACKNOWLEDGEMENT: count + len(operation.released)}
        case ShareBounds():
            return {Rule.SHARE_LOST: operation.start}
    return {}
