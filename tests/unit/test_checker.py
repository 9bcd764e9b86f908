"""The checker finds one planted fault for each of its rules, and none in histories that Kafka allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.checker import Rule, check, summary
from tests.kit.history import (
    Acknowledgement,
    Assigned,
    Commit,
    CommittedFetch,
    Delivery,
    FailOver,
    History,
    LogBounds,
    Operation,
    Outcome,
    Poll,
    Removed,
    Revoked,
    Seek,
    Send,
    ShareBounds,
    TransactionEnd,
)
from tests.kit.judged import judged

P, G = "t-0", "g"


def send(
    at: int, value: str, offset: int = -1, outcome: Outcome = Outcome.OK, process: str = "w", **more: object
) -> Send:
    return Send(process, at, at + 5, P, value, outcome, offset, **more)  # type: ignore[arg-type]


def poll(at: int, *offsets: int, process: str = "a", group: str | None = G, values: str = "") -> Poll:
    named = values or "".join(chr(ord("a") + offset) for offset in offsets)
    return Poll(process, at - 1, at, P, tuple(zip(offsets, named, strict=True)), group)


def final(*offsets: int, end: int = -1, values: str = "") -> tuple[Operation, ...]:
    """Somebody of no group reads the whole log when all is over."""
    ends = max(offsets, default=-1) + 1 if end < 0 else end
    return poll(900, *offsets, process="end", group=None, values=values), LogBounds(901, P, 0, ends)


def assigned(at: int, generation: int = 1, process: str = "a", member: str = "", partition: str = P) -> Assigned:
    return Assigned(process, at, G, member or process, generation, (partition,))


def revoked(at: int, process: str = "a") -> Revoked:
    return Revoked(process, at, G, (P,))


def commit(
    began: int, ended: int, offset: int, generation: int = 1, process: str = "a", outcome: Outcome = Outcome.OK
) -> Commit:
    return Commit(process, began, ended, G, generation, {P: offset}, outcome)


def fetched(began: int, ended: int, offset: int, process: str = "b") -> CommittedFetch:
    return CommittedFetch(process, began, ended, G, {P: offset})


def ended(at: int, transaction: str, committed: bool = True, outcome: Outcome = Outcome.OK) -> TransactionEnd:
    return TransactionEnd("w", at, at + 5, transaction, committed, outcome)


def delivery(at: int, count: int = 1, process: str = "a", value: str = "a") -> Delivery:
    return Delivery(process, at, G, P, ((0, value, count),))


def accepted(at: int, outcome: Outcome = Outcome.OK, process: str = "a") -> Acknowledgement:
    return Acknowledgement(process, at, at + 1, G, P, (0,), (), outcome)


def released(at: int, outcome: Outcome = Outcome.OK, process: str = "a") -> Acknowledgement:
    return Acknowledgement(process, at, at + 1, G, P, (), (0,), outcome)


FINISHED = ShareBounds(900, G, P, 1)


def broken(*operations: Operation) -> set[Rule]:
    return {violation.rule for violation in check(History(list(operations)))}


SENT = (send(10, "a", 0), send(20, "b", 1), send(30, "c", 2))
READ = (assigned(5), poll(40, 0, 1), commit(41, 42, 2), revoked(43), assigned(50, 2, "b"), poll(60, 2, process="b"))


def test_check_records_that_a_library_passed_over_are_not_the_groups_loss() -> None:
    seek = Seek("a", 41, P, 2, by_library=True)

    assert broken(*SENT, assigned(5), poll(40, 0), seek, poll(42, 2), commit(43, 44, 3), *final(0, 1, 2)) == set()


def test_check_good_history_finds_nothing() -> None:
    assert broken(*SENT, *READ, commit(61, 62, 3, 2, "b"), fetched(70, 71, 3), *final(0, 1, 2)) == set()


PLANTED: dict[str, tuple[Rule, tuple[Operation, ...]]] = {
    "an acknowledged record below the highest read is missing": (
        Rule.LOST_WRITE,
        (*SENT, poll(40, 0, group=None), Seek("a", 41, P, 2), poll(50, 2, group=None)),
    ),
    "an acknowledged record beyond the end is missing": (Rule.LOST_WRITE, (*SENT, *final(0, 1))),
    "a record was read beyond the end": (Rule.LOST_WRITE, (*SENT, poll(40, 0, 1, 2, group=None), *final(0, 1))),
    "one value at two offsets": (Rule.DUPLICATE, (*SENT, *final(0, 1, 2, 3, values="abca"))),
    "two values at one offset": (
        Rule.INCONSISTENT_OFFSET,
        (*SENT, poll(40, 0, group=None), poll(41, 0, process="z", group=None, values="z")),
    ),
    "acknowledged elsewhere than read": (
        Rule.INCONSISTENT_OFFSET,
        (send(10, "a", 0), send(11, "b", 9), poll(40, 0, 1, group=None)),
    ),
    "a failed send was read": (
        Rule.ABORTED_READ,
        (send(10, "a", outcome=Outcome.FAILED), poll(40, 0, group=None)),
    ),
    "an aborted transaction was read": (
        Rule.ABORTED_READ,
        (send(10, "a", 0, transaction="x"), ended(20, "x", committed=False), poll(40, 0, group=None)),
    ),
    "a transaction whose commit nobody asked for was read": (
        Rule.ABORTED_READ,
        (send(10, "a", 0, transaction="x"), poll(40, 0, group=None)),
    ),
    "a record was read before its transaction's commit": (
        Rule.PRECOMMITTED_READ,
        (send(10, "a", 0, transaction="x"), poll(15, 0, group=None), ended(20, "x")),
    ),
    "half of a committed transaction is missing": (
        Rule.LOST_WRITE,
        (
            send(10, "a", 0, transaction="x"),
            send(11, "b", 1, transaction="x"),
            ended(20, "x", outcome=Outcome.UNKNOWN),
            *final(0, end=3),
        ),
    ),
    "one poll skips a record": (Rule.INT_POLL_SKIP, (*SENT, poll(40, 0, 2, group=None))),
    "one poll goes back": (Rule.INT_NONMONOTONIC_POLL, (*SENT, poll(40, 1, 0, 2, group=None, values="bac"))),
    "a record is skipped between polls": (
        Rule.POLL_SKIP,
        (*SENT, assigned(5), poll(40, 0), poll(41, 2), poll(42, 0, 1, 2, process="z", group=None)),
    ),
    "a record is read again without a seek": (
        Rule.NONMONOTONIC_POLL,
        (*SENT, assigned(5), poll(40, 0, 1), poll(41, 1)),
    ),
    "a transaction's sends change places": (
        Rule.INT_NONMONOTONIC_SEND,
        (
            send(10, "b", 1, transaction="x"),
            send(11, "a", 0, transaction="x"),
            ended(20, "x"),
            poll(40, 0, 1, group=None),
        ),
    ),
    "sends of a producer change places": (
        Rule.NONMONOTONIC_SEND,
        (send(10, "b"), send(11, "a", 0), poll(40, 0, 1, group=None)),
    ),
    "an offset has no record": (Rule.HOLE, (send(10, "a", 0), send(11, "c", 2), *final(0, 2))),
    "a group goes past a record": (
        Rule.GROUP_SKIP,
        (*SENT, assigned(5), poll(40, 0), Seek("a", 41, P, 2), poll(42, 2), commit(43, 44, 3), *final(0, 1, 2)),
    ),
    "an acknowledged commit is gone": (Rule.COMMITTED_BACK, (commit(1, 2, 5), commit(3, 4, 7), fetched(10, 11, 5))),
    "all commits are gone": (Rule.COMMITTED_BACK, (commit(1, 2, 5), fetched(10, 11, -1))),
    "an offset that nobody committed": (Rule.COMMITTED_BACK, (fetched(10, 11, 3),)),
    "a new owner begins before the commit": (
        Rule.COMMITTED_BACK,
        (*SENT, *READ[:4], assigned(50, 2, "b"), poll(60, 1, process="b"), *final(0, 1, 2)),
    ),
    "a commit of an older generation is accepted": (
        Rule.STALE_COMMIT,
        (assigned(5), commit(6, 7, 1), assigned(10, 2, "b"), commit(12, 13, 2, generation=1)),
    ),
    "two members own a partition at one time": (Rule.TWO_OWNERS, (assigned(5), assigned(6, 2, "b"))),
    "two members own a partition in one generation": (
        Rule.TWO_OWNERS,
        (assigned(5), revoked(6), assigned(7, 1, "b")),
    ),
    "a member removed in a generation has a successor in it": (
        Rule.TWO_OWNERS,
        (assigned(5), revoked(6), Removed(0, G, "a"), assigned(7, 1, "b")),
    ),
    "a member is in an older generation than before": (
        Rule.GENERATION_BACK,
        (assigned(5, 2), revoked(6), assigned(7, 1)),
    ),
    "a member reads what it does not own": (Rule.UNOWNED_READ, (*SENT, poll(40, 0))),
    "two members of a share group have one delivery": (Rule.SHARED_TWICE, (delivery(10), delivery(11, process="b"))),
    "two members have one delivery before a fail-over": (
        Rule.SHARED_TWICE,
        (delivery(10), delivery(11, process="b"), FailOver(12, 13)),
    ),
    "a record is delivered after its acceptance": (
        Rule.ACCEPTED_AGAIN,
        (delivery(10), accepted(12), delivery(15, 2, "b")),
    ),
    "the acceptance is of a delivery before": (
        Rule.ACCEPTED_AGAIN,
        (delivery(10), delivery(11, 2, "b"), accepted(12)),
    ),
    "a share group finishes what nobody was given": (Rule.SHARE_LOST, (send(10, "a", 0), FINISHED)),
    "a share group finishes what was released": (
        Rule.SHARE_LOST,
        (send(10, "a", 0), delivery(15), released(16), FINISHED),
    ),
    "a share group finishes what it refused to": (
        Rule.SHARE_LOST,
        (send(10, "a", 0), delivery(15), accepted(16, Outcome.FAILED), FINISHED),
    ),
    "a share group delivers another value": (Rule.OTHER_VALUE, (send(10, "a", 0), delivery(15, value="b"))),
    "somebody acknowledges what was never delivered": (Rule.UNOWNED_ACKNOWLEDGEMENT, (accepted(10),)),
}


@pytest.mark.parametrize(("rule", "operations"), PLANTED.values(), ids=[name.replace(" ", "-") for name in PLANTED])
def test_check_planted_fault_is_found(rule: Rule, operations: tuple[Operation, ...]) -> None:
    assert rule in broken(*operations)


def test_check_every_rule_has_a_planted_fault() -> None:
    assert {rule for rule, _ in PLANTED.values()} == set(Rule)


def test_judged_planted_faults_are_input_of_each_rule() -> None:
    """An empty history is none of any."""
    planted = [operation for _, operations in PLANTED.values() for operation in operations]

    assert [rule for rule, count in judged(History(planted)).items() if count == 0] == []
    assert judged(History()) == dict.fromkeys(Rule, 0)


ALLOWED: dict[str, tuple[Operation, ...]] = {
    "an unknown send may be in the log": (send(10, "a", outcome=Outcome.UNKNOWN), *final(0)),
    "or not": (send(10, "a", outcome=Outcome.UNKNOWN), send(11, "b", 0), *final(0, values="b")),
    "a retry that is not idempotent": (send(10, "a", 0, idempotent=False), *final(0, 1, values="aa")),
    "nor in order": (
        send(10, "b", 1, idempotent=False),
        send(11, "a", 0, idempotent=False),
        *final(0, 1),
    ),
    "a transaction's end has an offset": (send(10, "a", 0, transaction="x"), ended(20, "x"), *final(0, end=2)),
    "an aborted transaction has one for each record too": (
        send(10, "a", 0, transaction="x"),
        ended(20, "x", committed=False),
        send(30, "c", 2),
        *final(2, end=3),
    ),
    "a reader steps over a transaction's end": (
        send(10, "a", 0, transaction="x"),
        ended(20, "x"),
        send(30, "c", 2),
        poll(40, 0, 2, group=None),
        LogBounds(50, P, 0, 3),
    ),
    "a commit without an answer may have come": (
        commit(1, 2, 5),
        commit(3, 4, 7, outcome=Outcome.UNKNOWN),
        fetched(10, 11, 5),
        fetched(12, 13, 7),
    ),
    "two commits under way at once come in any order": (commit(1, 9, 5), commit(2, 9, 7), fetched(10, 11, 5)),
    "a commit under way while it is read": (commit(1, 2, 5), commit(3, 20, 7), fetched(10, 11, 7)),
    "a seek commits lower": (commit(1, 2, 5), commit(3, 4, 1), fetched(10, 11, 1)),
    "a refused commit changes nothing": (
        commit(1, 2, 5),
        commit(3, 4, 7, outcome=Outcome.FAILED),
        fetched(10, 11, 5),
    ),
    "who was removed may not know it yet": (assigned(5), Removed(6, G, "a"), assigned(7, 2, "b")),
    "a static member returns under another id": (
        assigned(5, member="i-1"),
        revoked(6),
        Removed(6, G, "i-1", replaced=True),
        assigned(7, 1, "a2", "i-2"),
    ),
    "a member continues where it stood if nobody else owned": (
        *SENT,
        assigned(5),
        poll(40, 0, 1),
        revoked(41),
        assigned(42, 2),
        poll(43, 2),
    ),
    "read again after a seek": (*SENT, assigned(5), poll(40, 0, 1), Seek("a", 41, P, 0), poll(42, 0, 1, 2)),
    "read again where nothing was committed": (
        *SENT,
        assigned(5),
        poll(40, 0),
        revoked(41),
        assigned(42, 2),
        poll(43, 0),
    ),
    "retention deleted an acknowledged record": (*SENT, poll(40, 1, 2, group=None), LogBounds(50, P, 1, 3)),
    "a shared record is released, lost with its member, accepted": (
        send(5, "a", 0),
        delivery(10),
        released(12),
        delivery(15, 2, "b"),
        delivery(20, 4),
        accepted(21),
        FINISHED,
    ),
    "a fail-over loses an acquisition, which is made again": (
        delivery(10),
        FailOver(11, 13),
        delivery(15, process="b"),
    ),
    "an acceptance without an answer counts, or does not": (
        send(5, "a", 0),
        delivery(10),
        accepted(12, Outcome.UNKNOWN),
        delivery(15, 2, "b"),
        accepted(17, Outcome.UNKNOWN, "b"),
        FINISHED,
    ),
    "an acknowledgement of what was never delivered is refused": (accepted(10, Outcome.FAILED),),
    "a late acceptance is refused": (
        send(5, "a", 0),
        delivery(10),
        delivery(15, 2, "b"),
        accepted(16, Outcome.FAILED),
        accepted(17, process="b"),
        FINISHED,
    ),
}


@pytest.mark.parametrize("operations", ALLOWED.values(), ids=[name.replace(" ", "-") for name in ALLOWED])
def test_check_what_kafka_allows_is_no_violation(operations: tuple[Operation, ...]) -> None:
    assert [str(violation) for violation in check(History(list(operations)))] == []


def test_history_dumped_and_loaded_is_the_same(tmp_path: Path) -> None:
    history = History([operation for _, operations in PLANTED.values() for operation in operations])
    history.dump(tmp_path / "history.jsonl")

    assert History.load(tmp_path / "history.jsonl").operations == history.operations


def test_summary_many_of_a_rule_shows_the_first_and_their_number() -> None:
    operations = [send(10 * number, f"v{number}", number) for number in range(20)]

    lines = list(summary(check(History([*operations, LogBounds(900, P, 0, 20)]))))

    assert len(lines) == 7  # five lost writes, one line of holes, the number of the lost
    assert lines[-1] == "lost write: 20 in all"
