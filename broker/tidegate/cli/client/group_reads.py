"""`tidegate group list` and `lag`: from Kafka's protocol, with additional columns from the admin HTTP if it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from tidegate.cli.change_notice import OtherCluster, require_same_cluster
from tidegate.cli.client import admin_client, group_operations
from tidegate.cli.client.described_groups import SHARE, type_of
from tidegate.cli.client.group_operations import ObservedGroup
from tidegate.cli.client.group_requests import Place
from tidegate.cli.client.kafka_client import EARLIEST, LATEST, KafkaClient
from tidegate.cli.client.record_topics import record_count, record_topics
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import AdminHttp, Brokers
from tidegate.protocol.consumer_blobs import assigned_partitions

Rows = list[dict[str, Any]]

_RECORD_LAG: Final = "the lag of topics of format record"
_ORG: Final = "default"
"""The organisation whose groups Kafka's protocol lists for unauthenticated clients."""


@dataclass(frozen=True, slots=True)
class _Logs:
    """Log start and end offsets of partitions, and which of their topics are of format record."""

    bounds: Mapping[Place, tuple[int, int]]
    record_topics: Set[str]


async def listing(brokers: Brokers, admin: AdminHttp) -> tuple[Rows, list[str]]:
    """Every group, worst first; and which columns are missing, with the reason."""
    reported: dict[str, dict[str, Any]] = {}
    missing = []
    async with KafkaClient(brokers) as kafka:
        try:
            await _require_same_cluster(kafka, admin)
            reported = {row["group"]: row for row in await admin_client.every_group(admin, _ORG)}
        except OtherCluster:
            raise
        except CommandFailed as failure:
            missing.append(f"generation and trouble are not known: {failure}")
        groups = await group_operations.all_groups(kafka)
        missing += [f"groups of broker {node_id} may be missing: {why}" for node_id, why in kafka.silent.items()]
        places = {place for group in groups if not group.shares for place in _places(group.described, group.committed)}
        logs = await _logs(kafka, places)
    rows = []
    for group in groups:
        listed, known = group.listed, reported.get(group.listed.group_id, {})
        rows.append(
            {
                "group": listed.group_id,
                "state": listed.group_state,
                "type": listed.group_type,
                "members": len(group.described.members),
                "lag": _total_lag(group, logs, known.get("lag")),
                **{name: known.get(name) for name in ("generation", "state_since_ms", "severity", "trouble")},
            }
        )
    if any(row["lag"] is None for row in rows):
        missing.append(f"{_RECORD_LAG} is not known")
    return sorted(rows, key=lambda row: (admin_client.SEVERITIES.index(row["severity"] or ""), row["group"])), missing


async def lag(brokers: Brokers, admin: AdminHttp, group_id: str) -> tuple[Rows, str]:
    """Each partition of a group; and what is missing, with the reason, "" if nothing is."""
    missing, ages, counted = "", dict[Place, int](), dict[Place, int | None]()
    async with KafkaClient(brokers) as kafka:
        try:
            await _require_same_cluster(kafka, admin)
            found = await admin_client.get(admin, group_id, "", _ORG)
            for one in found["partitions"]:
                place = one["topic"], one["partition"]
                counted[place] = one["counted_lag"]
                if one["commit_ms"] is not None:
                    ages[place] = max(found["now_ms"] - one["commit_ms"], 0)
        except OtherCluster:
            raise
        except CommandFailed as failure:
            missing = f"ages of commits and {_RECORD_LAG} are not known: {failure}"
        described = await group_operations.describe(kafka, group_id)
        if type_of(described) == SHARE:
            return await _share_rows(kafka, group_id), missing
        committed = await group_operations.committed(kafka, group_id)
        logs = await _logs(kafka, _places(described, committed))
        rows = [
            row | {"lag": counted.get((row["topic"], row["partition"])) if row["lag"] is None else row["lag"]}
            for row in _rows(described, committed, logs)
        ]
        if described.group_state == "Dead" and not rows:
            raise CommandFailed(f"there is no group {group_id}")
    return [{**row, "commit_age_ms": ages.get((row["topic"], row["partition"]))} for row in rows], missing


async def _share_rows(kafka: KafkaClient, group_id: str) -> Rows:
    """Each share-partition; several members may read it, so it has no owner."""
    shares = await group_operations.share_offsets(kafka, group_id)
    bounds = await _bounds(kafka, shares)
    nobody = dict.fromkeys(("owner", "client_id", "host", "commit_age_ms"))
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": share.start,
            "end": bounds[place][1] if place in bounds else None,
            "lag": share.lag,
            **nobody,
        }
        for place, share in sorted(shares.items())
    ]


def _total_lag(group: ObservedGroup, logs: _Logs, reported: int | None) -> int | None:
    """The lag of a group; of one that reads topics of format record the `reported` one, None if that is unknown."""
    if type_of(group.described) == SHARE:
        return sum(share.lag or 0 for share in group.shares.values())
    rows = _rows(group.described, group.committed, logs)
    if any(row["lag"] is None and row["topic"] in logs.record_topics for row in rows):
        return reported
    return sum(row["lag"] or 0 for row in rows)


async def _require_same_cluster(kafka: KafkaClient, admin: AdminHttp) -> None:
    found = await admin_client.brokers(admin)
    require_same_cluster(kafka.where, await kafka.ask_cluster_id(), admin, found.get("cluster_id"))


def _places(described: Any, committed: Mapping[Place, int]) -> dict[Place, Any]:
    """Committed and owned partitions, in order; each with its owner or None."""
    owners = {
        (topic, partition): member
        for member in described.members
        for topic, partitions in (assigned_partitions(bytes(member.member_assignment)) or {}).items()
        for partition in partitions
    }
    return {place: owners.get(place) for place in sorted({*owners, *committed})}


async def _bounds(kafka: KafkaClient, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
    """Log start and end offsets of existing partitions, where available."""
    wanted = set(places)
    topics = await kafka.topics({topic for topic, _ in wanted})
    there = [place for place in wanted if place[0] in topics and place[1] in topics[place[0]].leaders]
    starts = await kafka.offsets_known(dict.fromkeys(there, EARLIEST), topics)
    ends = await kafka.offsets_known(dict.fromkeys(there, LATEST), topics)
    return {place: (starts[place], ends[place]) for place in there if place in starts and place in ends}


async def _logs(kafka: KafkaClient, places: Iterable[Place]) -> _Logs:
    bounds = await _bounds(kafka, places)
    return _Logs(bounds, await record_topics(kafka, {place: end for place, (_, end) in bounds.items()}))


def _rows(described: Any, committed: Mapping[Place, int], logs: _Logs) -> Rows:
    """Each partition of a group; the lag is None where offsets do not give it."""
    rows = []
    for place, owner in _places(described, committed).items():
        start, end = logs.bounds.get(place, (None, None))
        offset = committed.get(place)
        begin = start if offset is None else offset
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "end": end,
                "lag": record_count(begin, end, place[0] in logs.record_topics),
                "owner": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.client_host.removeprefix("/") if owner else None,
            }
        )
    return rows
