"""Findings about share groups: what is acquired by whom, what comes back, what failed (KIP-932)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tidegate.diagnosis.checks.finding import GroupFinding, GroupSeverity, few, named
from tidegate.diagnosis.formatting import clock, counted, either, format_duration, listed
from tidegate.diagnosis.group_snapshot import GroupSnapshot, ShareSnapshot
from tidegate.groups.configs import DEAD_LETTER_TOPIC

SHARE: Final = "share"
_ENTRIES_MAX: Final = 10_000
"""Entries of the queue of dead letters from which on the group gets no records (`lib/share_rows`)."""
_WAITING_MAX: Final = 10_000
"""Waiting records of a share-partition from which on its window does not grow (`lib/share_rows`)."""
_LATE_MS: Final = 60_000
"""Age of a dead letter from which on its topic cannot be written."""


def shares(snapshot: GroupSnapshot) -> list[GroupFinding]:
    """What the records of a share group wait for."""
    if snapshot.type != SHARE:
        return []
    limit = int(snapshot.configs["share.delivery.count.limit"])
    window = int(snapshot.configs["share.partition.max.record.locks"])
    return [
        *_full(snapshot, window),
        *_acquired(snapshot),
        *_waiting(snapshot),
        *_redelivered(snapshot, limit),
        *_failed(snapshot),
        *_dropped(snapshot),
        *_undelivered_letters(snapshot),
    ]


def _place(share: ShareSnapshot) -> str:
    return f"{share.topic} {share.partition}"


def _who(snapshot: GroupSnapshot, member_id: str) -> str:
    """A member for display; one that left may still have records, and so may a stranger."""
    member = next((one for one in snapshot.members if one.member_id == member_id), None)
    return f"{member_id}, which is not a member" if member is None else named(member)


def _full(snapshot: GroupSnapshot, window: int) -> list[GroupFinding]:
    may_wait = _may_wait(snapshot.configs)
    full = [share for share in snapshot.shares if _is_full(share, window, may_wait)]
    if not full:
        return []
    reason = (
        f"{window} records are in flight, or {_WAITING_MAX:,} wait."
        if may_wait
        else f"{window} offsets from the first unfinished record on are in flight or finished."
    )
    return [
        GroupFinding(
            "window_full",
            GroupSeverity.TROUBLE,
            f"{listed(map(_place, full))} {either(len(full), 'gives', 'give')} out no new records: {reason}",
            few(
                f"{_place(share)}: offset {share.start} is not finished, the window ends at {share.end}; acquired: "
                + (listed(f"{_who(snapshot, one)} {count}" for one, count in share.in_flight.items()) or "none")
                for share in full
            ),
            "Finish the oldest records first, run more members, or raise share.partition.max.record.locks.",
        )
    ]


def _may_wait(configs: Mapping[str, str]) -> bool:
    """Whether records of the group may wait for their key or a time."""
    waits = configs["share.ordering"] == "key" or configs["share.deliver.at.enable"] == "true"
    return waits or int(configs["share.retry.backoff.ms"]) > 0


def _is_full(share: ShareSnapshot, window: int, may_wait: bool) -> bool:
    if not may_wait:
        return share.unfinished > 0 and share.end - share.start >= window
    return share.waiting >= _WAITING_MAX or share.unfinished - share.waiting >= window


def _acquired(snapshot: GroupSnapshot) -> list[GroupFinding]:
    by_member = Counter[str]()
    for share in snapshot.shares:
        by_member.update(share.in_flight)
    if not by_member:
        return []
    count = by_member.total()
    deadlines = [share.unlocks_ms for share in snapshot.shares if share.unlocks_ms is not None]
    evidence = [
        f"{_who(snapshot, member_id)}: {counted(number, 'record')}" for member_id, number in by_member.most_common()
    ]
    unlock = ""
    if deadlines:
        first = min(deadlines)
        unlock = f" The first lock expires at {clock(first)} (in {format_duration(first - snapshot.now_ms)})."
    return [
        GroupFinding(
            "records_acquired",
            GroupSeverity.NOTE,
            f"{counted(count, 'record')} {either(count, 'is', 'are')} acquired by "
            f"{counted(len(by_member), 'member')}.{unlock}",
            few(evidence),
        )
    ]


def _waiting(snapshot: GroupSnapshot) -> list[GroupFinding]:
    waiting = [share for share in snapshot.shares if share.waiting]
    if not waiting:
        return []
    count = sum(share.waiting for share in waiting)
    return [
        GroupFinding(
            "records_waiting",
            GroupSeverity.NOTE,
            f"{counted(count, 'record')} {either(count, 'waits', 'wait')} for a time of delivery, a backoff, or an "
            "earlier record of the same key.",
            few(f"{_place(share)}: {share.waiting}" for share in waiting),
        )
    ]


def _redelivered(snapshot: GroupSnapshot, limit: int) -> list[GroupFinding]:
    back = [share for share in snapshot.shares if share.returned or share.delivery_count > 1]
    if not back:
        return []
    last = [share for share in back if share.delivery_count >= limit]
    returned = sum(share.returned for share in back)
    return [
        GroupFinding(
            "records_redelivered",
            GroupSeverity.TROUBLE if last else GroupSeverity.NOTE,
            f"Records of {listed(map(_place, back))} were delivered more than once; {counted(returned, 'record')} "
            f"{either(returned, 'waits', 'wait')} for the next delivery.",
            few(
                f"{_place(share)}: up to delivery {share.delivery_count} of {limit}, first unfinished offset "
                f"{share.start}, deliveries so far that were repeated: {share.redelivered}"
                for share in back
            ),
            "A consumer released them, or its locks expired: raise share.record.lock.duration.ms if processing takes "
            "longer. A record whose last delivery fails is not delivered again.",
        )
    ]


def _failed(snapshot: GroupSnapshot) -> list[GroupFinding]:
    failed = [share for share in snapshot.shares if share.failed]
    if not failed:
        return []
    count, written = sum(share.failed for share in failed), sum(share.dead_lettered for share in failed)
    target = snapshot.configs[DEAD_LETTER_TOPIC]
    letters = f" {counted(written, 'record')} of them {either(written, 'was', 'were')} written to a dead-letter topic."
    return [
        GroupFinding(
            "records_failed",
            GroupSeverity.NOTE,
            f"{counted(count, 'record')} {either(count, 'was', 'were')} rejected or failed at the last delivery since "
            f"the offsets were set.{letters if target or written else ''}",
            few(f"{_place(share)}: {share.failed}" for share in failed),
        )
    ]


def _dropped(snapshot: GroupSnapshot) -> list[GroupFinding]:
    dropped = [share for share in snapshot.shares if share.dropped]
    if not dropped:
        return []
    count, target = sum(share.dropped for share in dropped), snapshot.configs[DEAD_LETTER_TOPIC]
    return [
        GroupFinding(
            "dead_letters_dropped",
            GroupSeverity.TROUBLE,
            f"{counted(count, 'failed record')} {either(count, 'is', 'are')} in no dead-letter topic, which did not "
            "take them.",
            few(f"{_place(share)}: {share.dropped}" for share in dropped),
            f"Does the topic {target or 'that was configured'} exist, with errors.deadletterqueue.group.enable=true, "
            "and without compaction? The brokers log the reason (dead_letters_dropped).",
        )
    ]


def _undelivered_letters(snapshot: GroupSnapshot) -> list[GroupFinding]:
    queue = snapshot.dead_letters
    if queue.oldest_ms is None:
        return []
    age_ms = max(snapshot.now_ms - queue.oldest_ms, 0)
    is_full = queue.entries >= _ENTRIES_MAX
    stopped = ": so many that the group gets no records" if is_full else ""
    return [
        GroupFinding(
            "dead_letters_waiting",
            GroupSeverity.STUCK if is_full else GroupSeverity.TROUBLE if age_ms > _LATE_MS else GroupSeverity.NOTE,
            f"{counted(queue.entries, 'range')} of failed records {either(queue.entries, 'waits', 'wait')} for a "
            f"dead-letter topic{stopped}, the first for {format_duration(age_ms)}.",
            (),
            "Brokers try again every few seconds; they log why the topic cannot be written (dead_letters_not_written)."
            if age_ms > _LATE_MS
            else "",
        )
    ]
