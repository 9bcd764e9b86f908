"""Differences from Apache Kafka 4.4.0 of groups with member epochs that are meant; docs/differences.md lists them."""

from __future__ import annotations

from typing import Any, Final

from tests.conformance.differential.deliveries import Place, acquired_by
from tests.conformance.differential.observed import ABSENT, Allowed, Difference
from tests.conformance.differential.threads import task_ids


def _codes(difference: Difference) -> list[Any]:
    return [whole.get("error_code") for whole in difference.whole]


def _acquired(difference: Difference) -> tuple[dict[Place, int], dict[Place, int]]:
    """Delivery counts by partition and offset at both."""
    kafka, tidegate = map(acquired_by, difference.whole)
    return kafka, tidegate


def _few_records(difference: Difference) -> bool:
    """Whether Kafka gave more than were asked for, and Tidegate as many of them as were."""
    if difference.api != "ShareFetch" or not difference.after or _codes(difference) != ["none", "none"]:
        return False
    asked = int(difference.after.split()[2])
    kafka, tidegate = _acquired(difference)
    return len(kafka) > asked == len(tidegate) and tidegate.items() <= kafka.items()


def _batches_between(difference: Difference) -> bool:
    if difference.api != "ShareFetch" or not difference.path.endswith("].records"):
        return False
    if ABSENT in (difference.kafka, difference.tidegate) or _acquired(difference)[0] != _acquired(difference)[1]:
        return False
    kafka, tidegate = (int(value.removesuffix(" bytes")) for value in (difference.kafka, difference.tidegate))
    return kafka > tidegate


def _initialisation(difference: Difference) -> bool:
    is_epoch = difference.path.endswith("_epoch")
    if difference.api != "ShareGroupDescribe" or not is_epoch or ABSENT in (difference.kafka, difference.tidegate):
        return False
    return bool(difference.kafka > difference.tidegate)


def _sharers(difference: Difference) -> bool:
    """Whether as many members as at Kafka have one partition, two and so on, and together they have the same."""
    if difference.api != "ShareGroupDescribe" or ".assignment." not in difference.path:
        return False
    kafka, tidegate = (
        {
            member["member_id"]: {
                (topic["topic_id"], index)
                for topic in member["assignment"]["topic_partitions"]
                for index in topic["partitions"]
            }
            for member in whole["groups"][0]["members"]
        }
        for whole in difference.whole
    )
    counts = [sorted(map(len, members.values())) for members in (kafka, tidegate)]
    return (
        counts[0] == counts[1]
        and kafka.keys() == tidegate.keys()
        and set().union(*kafka.values()) == set().union(*tidegate.values())
    )


def _unwritten_start(difference: Difference) -> bool:
    """Whether Tidegate has the newest start offset and lag, and Kafka an older offset, or none yet."""
    if difference.api != "DescribeShareGroupOffsets" or not difference.path.endswith((".start_offset", ".lag")):
        return False
    kafka, tidegate = (
        {
            one["partition_index"]: one
            for group in whole["groups"]
            for topic in group["topics"]
            for one in topic["partitions"]
        }
        for whole in difference.whole
    )
    return all(
        (one["start_offset"], one["lag"]) == difference.known.progress(index)
        and kafka[index]["start_offset"] <= one["start_offset"]
        and (kafka[index]["lag"] == one["lag"] or kafka[index]["start_offset"] == -1)
        for index, one in tidegate.items()
    )


def _redelivered(difference: Difference) -> bool:
    """Whether both gave only records that were due, each with its count, and Tidegate those at the lowest offsets."""
    if difference.api != "ShareFetch" or _codes(difference) != ["none", "none"] or not difference.known.available:
        return False
    kafka, tidegate = difference.whole
    known = difference.known
    return known.may_give(kafka) and known.may_give(tidegate) and known.gives_the_lowest(tidegate)


def _gives_tasks(difference: Difference) -> bool:
    """Whether Tidegate gives tasks where Kafka has no news for the member."""
    if difference.api != "StreamsGroupHeartbeat" or _codes(difference) != ["none", "none"]:
        return False
    kafka, tidegate = difference.whole
    return kafka["active_tasks"] is None and tidegate["active_tasks"] is not None


def _reported_and_given(difference: Difference) -> tuple[set[tuple[str, int]], set[tuple[str, int]]] | None:
    """The tasks that the member reported, and those that Tidegate gives it in the epoch that it has at Kafka too."""
    if not _gives_tasks(difference) or "_tasks" not in difference.path or difference.known.reported is None:
        return None
    kafka, tidegate = difference.whole
    if kafka["member_epoch"] != tidegate["member_epoch"]:
        return None
    return task_ids(difference.known.reported), task_ids(tidegate["active_tasks"])


def _unreported(difference: Difference) -> bool:
    """Whether the member reported other tasks than it has, and is given what it has."""
    tasks = _reported_and_given(difference)
    return tasks is not None and tasks[1] == difference.known.had != tasks[0]


def _free_at_once(difference: Difference) -> bool:
    """Whether the member is given what it reported, and tasks that nobody else has."""
    tasks = _reported_and_given(difference)
    return tasks is not None and tasks[1] > tasks[0] and difference.known.may_have("tidegate", difference.whole[1])


def _choice_of_tasks(difference: Difference) -> bool:
    """Whether both gave the member no more than its share, of tasks that nobody else has; or Kafka let it keep what it
    reported, and Tidegate asked for one of them."""
    if difference.api != "StreamsGroupHeartbeat" or _codes(difference) != ["none", "none"]:
        return False
    kafka, tidegate = difference.whole
    known = difference.known
    if _gives_tasks(difference):
        asked_for_more = task_ids(tidegate["active_tasks"]) < task_ids(known.reported or ())
        return asked_for_more and kafka["member_epoch"] > tidegate["member_epoch"]
    if difference.path != "active_tasks" or kafka["active_tasks"] is None or tidegate["active_tasks"] is None:
        return False
    is_alike = kafka["member_epoch"] == tidegate["member_epoch"] and kafka["status"] == tidegate["status"] == []
    return is_alike and known.may_have("kafka", kafka) and known.may_have("tidegate", tidegate)


RULES: Final = (
    Allowed(
        "static member joins again",
        "ConsumerGroupHeartbeat",
        "a static member that joins again under its own member id: UNRELEASED_INSTANCE_ID, which ends Java's consumer",
        "it joins again",
        "the answer to its join was lost",
        lambda one: one.api == "ConsumerGroupHeartbeat" and _codes(one) == ["unreleased_instance_id", "none"],
        lasts=True,
    ),
    Allowed(
        "previous epoch",
        "ConsumerGroupHeartbeat",
        "a member that gets partitions without a new epoch has no previous epoch any more: FENCED_MEMBER_EPOCH",
        "its previous epoch stays valid while the member names only partitions that it has",
        "a member whose answers were lost need not drop its partitions",
        lambda one: one.after == "previous epoch" and _codes(one) == ["fenced_member_epoch", "none"],
        lasts=True,
    ),
    Allowed(
        "commit of a static member that is back",
        "OffsetCommit",
        "a static member that left with the epoch -2 and is back may commit at any older epoch",
        "at those at which it had the partitions: STALE_MEMBER_EPOCH otherwise",
        "an older epoch may be that of another owner",
        lambda one: one.after == "back" and (one.kafka, one.tidegate) == ("none", "stale_member_epoch"),
        lasts=True,
    ),
    Allowed(
        "epoch during revocations",
        "StreamsGroupHeartbeat",
        "a member that confirmed a revocation and is asked for another one advances by one epoch",
        "its epoch stays until it has the target, as with consumer groups",
        "the epochs of a member are those of targets",
        lambda one: (
            (one.api, one.path) == ("StreamsGroupHeartbeat", "member_epoch")
            and one.kafka == one.tidegate + 1
            and all(whole["active_tasks"] is not None for whole in one.whole)
        ),
        lasts=True,
    ),
    Allowed(
        "tasks that are not reported",
        "StreamsGroupHeartbeat",
        "a member that reports fewer tasks than it has gets no news",
        "it gets its tasks again",
        "the answer that had them was lost",
        _unreported,
    ),
    Allowed(
        "tasks that are free at once",
        "StreamsGroupHeartbeat",
        "a member that confirms a revocation gets those of its tasks that are its target again with its next heartbeat",
        "with this one",
        "nobody else has them, and the member waits no heartbeat interval for them",
        _free_at_once,
        lasts=True,
    ),
    Allowed(
        "choice of tasks",
        "StreamsGroupHeartbeat",
        "of equal tasks, its hash table decides which a member keeps, so others become free at other times",
        "the lowest are kept",
        "every broker must choose alike; Kafka leaves it open",
        _choice_of_tasks,
        lasts=True,
    ),
    Allowed(
        "nothing in flight",
        "ShareAcknowledge",
        "offsets of a share-partition of which nothing was delivered yet: INVALID_RECORD_STATE",
        "INVALID_REQUEST",
        "they are beyond the window, as when something is in flight",
        lambda one: (
            one.api == "ShareAcknowledge" and (one.kafka, one.tidegate) == ("invalid_record_state", "invalid_request")
        ),
    ),
    Allowed(
        "epoch of the initialisation",
        "ShareGroupHeartbeat, ShareGroupDescribe",
        "new share-partitions are initialised after a first join without partitions; that bumps the epoch",
        "the first join initialises them and brings them",
        "a consumer waits no heartbeat interval for its first records",
        _initialisation,
    ),
    Allowed(
        "sharers",
        "ShareGroupHeartbeat, ShareGroupDescribe",
        "with more members than partitions, its hash table decides who shares which",
        "the order of member ids decides",
        "every broker must choose alike; Kafka leaves it open",
        _sharers,
    ),
    Allowed(
        "start offset",
        "DescribeShareGroupOffsets",
        "the start offset that was written last, and -1 with the lag -1 before the first",
        "the newest start offset",
        "the state has no second copy that lags behind",
        _unwritten_start,
    ),
    Allowed(
        "batches between acquired records",
        "ShareFetch",
        "`Records` has every batch from the first to the last acquired record",
        "only those that acquired records are in",
        "clients skip the others",
        _batches_between,
    ),
    Allowed(
        "few records of a divided batch",
        "ShareFetch",
        "a batch whose records were acknowledged one by one is given whole, however few records were asked for",
        "no more of it than `MaxRecords`",
        "the client asked for no more",
        _few_records,
        lasts=True,
    ),
    Allowed(
        "records that come again",
        "ShareFetch",
        "released records come by the batches and the states that a broker's memory has of them",
        "from the lowest offset, as many as are wanted",
        "the state is in Redis, by ranges of records that are alike",
        _redelivered,
        lasts=True,
    ),
    Allowed(
        "leader of a share-partition",
        "ShareFetch",
        "`CurrentLeader` is 0/0 where there is no error",
        "-1/-1",
        "no leader is named, as the field's default says; the clients read it with NOT_LEADER_OR_FOLLOWER only",
        lambda one: one.api.startswith("Share") and ".current_leader." in one.path and one.kafka == 0,
    ),
)


def rows() -> list[str]:
    """The table of the page."""
    return [f"| {rule.where} | {rule.kafka} | {rule.tidegate} | {rule.reason} |" for rule in RULES]
