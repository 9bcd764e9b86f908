"""The server-side assignor `simple` (KIP-932): every partition has a member, and every member a partition if it can.

With more members than partitions a partition is shared by several of them. The result is deterministic, balanced, and
as near to the previous one as that allows. Source: SimpleAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.groups.consumer.model import NO_PARTITIONS, Partition, Partitions

SIMPLE: Final = "simple"


def assign_simple(
    subscriptions: Mapping[str, frozenset[str]], previous: Mapping[str, Partitions], topics: Mapping[str, int]
) -> dict[str, Partitions]:
    """The target of each member: `subscriptions` are the ids of its topics, `topics` their partition counts."""
    alike: dict[tuple[str, ...], list[Partition]] = {}
    for topic_id in sorted(topics):
        subscribers = tuple(sorted(one for one, topic_ids in subscriptions.items() if topic_id in topic_ids))
        if subscribers:
            alike.setdefault(subscribers, []).extend((topic_id, index) for index in range(topics[topic_id]))
    targets: dict[str, set[Partition]] = {member_id: set() for member_id in subscriptions}
    for subscribers, partitions in alike.items():
        for member_id, assigned in _share(subscribers, partitions, previous).items():
            targets[member_id] |= assigned
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _share(
    members: Sequence[str], partitions: Sequence[Partition], previous: Mapping[str, Partitions]
) -> dict[str, set[Partition]]:
    """Assign partitions to members that all may have any of them."""
    targets: dict[str, set[Partition]] = {member_id: set() for member_id in members}
    if not partitions:
        return targets
    sharers = -(-len(members) // len(partitions))
    missing = dict.fromkeys(partitions, sharers)
    size, larger = divmod(sharers * len(partitions), len(members))
    for allowed in (size, size + 1):  # first what everybody may keep, then one more for as many as there must be
        for member_id in members:
            for partition in sorted(previous.get(member_id, NO_PARTITIONS)):
                held = targets[member_id]
                is_wanted = missing.get(partition, 0) > 0 and partition not in held and len(held) < allowed
                if is_wanted and (allowed == size or larger):
                    held.add(partition)
                    missing[partition] -= 1
                    larger -= len(held) > size
    for partition, count in missing.items():
        takers = sorted(members, key=lambda one: (len(targets[one]), one))
        for member_id in [one for one in takers if partition not in targets[one]][:count]:
            targets[member_id].add(partition)
    return targets
