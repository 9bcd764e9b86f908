"""Every difference from Apache Kafka 4.4.0 that is meant, in one table; docs/differences.md is written from it.

`python -m tests.conformance.differential.allowed` prints that page.
"""

from __future__ import annotations

from typing import Any, Final

from tests.conformance.differential import epoch_allowed, log_allowed, tested
from tests.conformance.differential.messages import PEER_VERSION
from tests.conformance.differential.observed import PARKED, Allowed, Difference


def find(difference: Difference) -> Allowed | None:
    """The rule that allows it, if any."""
    return next((rule for rule in RULES if rule.matches(difference)), None)


def _code(answer: Any) -> str:
    return answer.get("error_code", "") if isinstance(answer, dict) else ""


def _listed(difference: Difference) -> list[int]:
    """How many groups both list, where this is a list."""
    if difference.api != "ListGroups" or not all(isinstance(whole, dict) for whole in difference.whole):
        return []
    return [len(whole["groups"]) for whole in difference.whole]


def _described(difference: Difference) -> tuple[str, str]:
    """The group's state at both, where this is a description."""
    if difference.api != "DescribeGroups" or not all(isinstance(whole, dict) for whole in difference.whole):
        return "", ""
    kafka, tidegate = ((whole["groups"] or [{}])[0].get("group_state", "") for whole in difference.whole)
    return kafka, tidegate


def _newer_version(difference: Difference) -> bool:
    return (
        difference.api == "ApiVersions"
        and difference.path.endswith("max_version")
        and (difference.kafka, difference.tidegate) == (9, 10)
    )


def _newer_deletion(difference: Difference) -> bool:
    return (
        difference.api == "ApiVersions"
        and difference.path == "api_keys[9].max_version"
        and (difference.kafka, difference.tidegate) == (2, 3)
    )


def _older_version(difference: Difference) -> bool:
    return (
        difference.api == "ApiVersions"
        and difference.path.endswith("min_version")
        and difference.kafka > difference.tidegate == 0
    )


def _superseded(difference: Difference) -> bool:
    return "superseded" in difference.notes and difference.kafka == PARKED


def _left_while_syncing(difference: Difference) -> bool:
    return (
        (difference.api, difference.after, difference.kafka) == ("SyncGroup", "", PARKED)
        and "leaving" in difference.notes
        and _code(difference.whole[1]) == "unknown_member_id"
    )


def _unwritten(difference: Difference) -> bool:
    kafka, tidegate = _described(difference)
    return "unwritten" in difference.notes and (kafka == "Dead" != tidegate or _listed(difference) == [0, 1])


def _refused_first_join(difference: Difference) -> bool:
    if "unborn" not in difference.notes:
        return False
    if difference.api in ("DescribeGroups", "ListGroups"):
        return _described(difference) == ("Empty", "Dead") or _listed(difference) == [1, 0]
    answers = (difference.api, difference.kafka, difference.tidegate)
    return answers in (
        ("OffsetCommit", "unknown_member_id", "group_id_not_found"),
        ("OffsetCommit", "unknown_member_id", "illegal_generation"),
        ("OffsetDelete", "none", "group_id_not_found"),
        ("DeleteGroups", "none", "group_id_not_found"),
    ) or (
        difference.api == "OffsetDelete"
        and [_code(whole) for whole in difference.whole] == ["none", "group_id_not_found"]
    )


def _instance_of_a_promised_id(difference: Difference) -> bool:
    return difference.api == "JoinGroup" and [_code(whole) for whole in difference.whole] == [
        "unknown_server_error",
        "unknown_member_id",
    ]


def _joined_without_rebalance_timeout(difference: Difference) -> bool:
    return (
        difference.api == "JoinGroup"
        and "no rebalance timeout" in difference.notes
        and [_code(whole) for whole in difference.whole] == ["none", "unknown_member_id"]
    )


def _promised_id_left(difference: Difference) -> bool:
    return (
        "leaving" in difference.notes
        and "promised id leaves" in difference.notes
        and _described(difference) in (("PreparingRebalance", "Stable"), ("PreparingRebalance", "CompletingRebalance"))
    )


def _client_of_replacement(difference: Difference) -> bool:
    return (
        difference.api == "DescribeGroups"
        and difference.path.endswith((".client_id", ".client_host"))
        and "static restart" in difference.notes
    )


def _restart_into_full_group(difference: Difference) -> bool:
    kafka, tidegate = difference.whole
    return (
        difference.api == "JoinGroup"
        and "static restart" in difference.notes
        and _code(kafka) == "group_max_size_reached"
        and (tidegate == PARKED or _code(tidegate) == "none")
    )


def _late_member_refused(difference: Difference) -> bool:
    """The phase that a refused late member held up has ended here only."""
    return (
        "refused for size" in difference.notes
        and (difference.api, difference.kafka) == ("JoinGroup", PARKED)
        and _code(difference.whole[1]) == "none"
    )


def _initial_delay_cut(difference: Difference) -> bool:
    return "id ends in the initial delay" in difference.notes and difference.path == "(elapsed)"


def _old_id_awaited(difference: Difference) -> bool:
    return "static restart" in difference.notes and _described(difference) == ("PreparingRebalance", "Stable")


def _leader_choice(difference: Difference) -> bool:
    before = next(note.removeprefix("leader ") for note in difference.notes if note.startswith("leader "))
    return (
        (difference.api, difference.path) == ("JoinGroup", "leader")
        and "" not in (difference.kafka, difference.tidegate)
        and before not in (difference.kafka, difference.tidegate)
    )


def _tied_votes(difference: Difference) -> bool:
    return (
        (difference.api, difference.path) == ("JoinGroup", "protocol_name")
        and "tied votes" in difference.notes
        and None not in (difference.kafka, difference.tidegate)
    )


_ALL: Final = (
    Allowed(
        "v10",
        "ApiVersions",
        "OffsetCommit and OffsetFetch end at version 9",
        "both are served up to version 10, by topic id",
        "version 10 is new since Kafka 4.1",
        _newer_version,
        until="4.1",
    ),
    Allowed(
        "v3",
        "ApiVersions",
        "DeleteGroups ends at version 2",
        "version 3, whose errors have messages",
        "version 3 is new in Kafka 4.4",
        _newer_deletion,
        until="4.1",
    ),
    Allowed(
        "v0",
        "ApiVersions",
        "versions before 0.11 are gone since 4.0 (KIP-896)",
        "Produce, Fetch, ListOffsets, OffsetCommit and OffsetFetch begin at version 0",
        "clients of Kafka 0.8 to 0.10 can continue",
        _older_version,
    ),
    Allowed(
        "superseded",
        "JoinGroup, SyncGroup",
        "a parked request that its member repeats elsewhere is never answered",
        "both are answered alike",
        "a connection must not hang forever; both answers are correct",
        _superseded,
    ),
    Allowed(
        "leaves while syncing",
        "SyncGroup",
        "a member that leaves while its SyncGroup is parked never gets that answered",
        "UNKNOWN_MEMBER_ID",
        "as its JoinGroup would be; a connection must not hang forever",
        _left_while_syncing,
    ),
    Allowed(
        "unwritten group",
        "DescribeGroups, ListGroups",
        "until its first SyncGroup or commit is written a new group may be described as absent, and not be listed",
        "described and listed as it is",
        "one truth in all places",
        _unwritten,
        until="4.1",
    ),
    Allowed(
        "refused first join",
        "ListGroups, DescribeGroups, DeleteGroups, OffsetCommit, OffsetDelete",
        "a first join that is refused leaves an Empty group behind, until the next sweep",
        "no group",
        "nothing was stored, so there is nothing to list or delete",
        _refused_first_join,
    ),
    Allowed(
        "instance of a promised id",
        "JoinGroup",
        "a new member sends the member id that it was assigned, and an instance id too: UNKNOWN_SERVER_ERROR",
        "UNKNOWN_MEMBER_ID",
        "the client can act on it",
        _instance_of_a_promised_id,
    ),
    Allowed(
        "no rebalance timeout",
        "JoinGroup",
        "a rebalance timeout of 0 or less: a member has its answer, and is removed before it can sync",
        "UNKNOWN_MEMBER_ID",
        "the member is gone when the answer arrives: it joins again at once instead of after its SyncGroup",
        _joined_without_rebalance_timeout,
    ),
    Allowed(
        "promised id leaves",
        "LeaveGroup",
        "a member id that was assigned and never joined leaves: a Stable or Completing group rebalances",
        "no rebalance",
        "the group has the same members as before",
        _promised_id_left,
        lasts=True,
    ),
    Allowed(
        "client of a static member",
        "DescribeGroups",
        "a restarted static member is shown with its predecessor's client id and host",
        "its own",
        "an operator looks for the process that runs now",
        _client_of_replacement,
    ),
    Allowed(
        "static restart in a full group",
        "JoinGroup",
        "a restarted static member is refused by group.max.size: GROUP_MAX_SIZE_REACHED",
        "it takes its own place",
        "it is in the group already",
        _restart_into_full_group,
        lasts=True,
    ),
    Allowed(
        "late member refused",
        "JoinGroup",
        "when group.max.size removes the last late member, the phase still waits for its deadline",
        "the phase ends at once",
        "nobody is missing any more",
        _late_member_refused,
        lasts=True,
    ),
    Allowed(
        "initial delay",
        "JoinGroup",
        "a session that ends during the initial delay, also of an assigned id that never joined, ends the delay",
        "the delay runs its course",
        "the delay gathers members; one that leaves does not shorten it",
        _initial_delay_cut,
        lasts=True,
    ),
    Allowed(
        "sync of a replaced id",
        "SyncGroup",
        "a static member replaced before its SyncGroup is still awaited under its old id: a rebalance later",
        "its successor is awaited",
        "nobody is missing when the successor has synced",
        _old_id_awaited,
        lasts=True,
    ),
    Allowed(
        "choice of leader",
        "JoinGroup",
        "when the leader is gone, any of those that joined leads",
        "the one that has been a member for longest",
        "every broker must choose alike; Kafka leaves it open",
        _leader_choice,
        lasts=True,
    ),
    Allowed(
        "tied votes",
        "JoinGroup",
        "of protocols with as many votes, its hash table decides",
        "the leader's preference decides, then the name",
        "every broker must choose alike; Kafka leaves it open",
        _tied_votes,
        lasts=True,
    ),
)


RULES: Final = tuple(rule for rule in _ALL if not rule.until or PEER_VERSION.split(".")[:2] <= rule.until.split("."))
"""Those that the version of the peer shows."""


def markdown() -> str:
    """docs/differences.md."""
    rows = [f"| {rule.where} | {rule.kafka} | {rule.tidegate} | {rule.reason} |" for rule in _ALL if not rule.until]
    sections = [*_EPOCH_HEAD, *epoch_allowed.rows(), *_LOG_HEAD, *log_allowed.rows(), *_TESTED_HEAD, *tested.rows()]
    return "\n".join([*_HEAD, *rows, *sections, ""])


_HEAD: Final = (
    "# Differences from Apache Kafka",
    "",
    "Groups, the log, topics and transactions are compared with Apache Kafka 4.4.0, answer by answer, by random and by",
    "scripted conversations: `make test SUITE=peers`. Every difference that is meant is below; any other one fails",
    "that run, and so does one of these that does not show any more. The page is written by `make docs` from the table",
    "that the comparison uses.",
    "",
    "| Where | Kafka 4.4.0 | Tidegate | Why |",
    "|---|---|---|---|",
)
_EPOCH_HEAD: Final = (
    "",
    "## Consumer groups of KIP-848, share groups, streams groups",
    "",
    "Compared in the same way, by random conversations.",
    "",
    "| Where | Kafka 4.4.0 | Tidegate | Why |",
    "|---|---|---|---|",
)
_LOG_HEAD: Final = (
    "",
    "## Log, topics and transactions",
    "",
    "Compared in the same way, by random conversations.",
    "",
    "| Where | Kafka 4.4.0 | Tidegate | Why |",
    "|---|---|---|---|",
)
_TESTED_HEAD: Final = (
    "",
    "## Other differences",
    "",
    "Seen on Apache Kafka 4.4.0 besides those conversations; the test below `tests/` shows what Tidegate does.",
    "",
    "| Where | Kafka | Tidegate | Why | Test |",
    "|---|---|---|---|---|",
)


if __name__ == "__main__":
    print(markdown(), end="")
