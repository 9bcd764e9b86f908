"""`tidegate group list` and `lag`: over Kafka's protocol, and what the admin HTTP adds where it answers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from broker.admin import admin_client
from broker.admin.failures import CommandFailed
from broker.admin.kafka_client import EARLIEST, LATEST, KafkaClient, Place
from broker.protocol.consumer_blobs import assigned_partitions

_AT_ONCE: Final = 8

Rows = list[dict[str, Any]]


async def listing(bootstrap: str, admin: str, org: str) -> tuple[Rows, str]:
    """Every group, worst first; and why what only the admin HTTP knows is missing, "" if it is not."""
    told: dict[str, dict[str, Any]] = {}
    missing = ""
    try:
        told = {row["group"]: row for row in (await admin_client.get(admin, None, "", org))["groups"]}
    except CommandFailed as failure:
        missing = str(failure)
    async with KafkaClient(bootstrap) as kafka:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def row(listed: Any) -> dict[str, Any]:
            async with gate:
                described = await kafka.describe(listed.group_id)
                partitions = await _positions(kafka, listed.group_id, described)
            known = told.get(listed.group_id, {})
            return {
                "group": listed.group_id,
                "state": listed.group_state,
                "type": listed.group_type,
                "members": len(described.members),
                "lag": sum(one["lag"] or 0 for one in partitions),
                **{name: known.get(name) for name in ("generation", "state_since_ms", "severity", "trouble")},
            }

        rows = await asyncio.gather(*map(row, await kafka.list_groups()))
    return sorted(rows, key=lambda row: (admin_client.SEVERITIES.index(row["severity"] or ""), row["group"])), missing


async def lag(bootstrap: str, admin: str, org: str, group_id: str) -> tuple[Rows, str]:
    """Each partition of a group; and why ages of commits are missing, "" if they are not."""
    missing, ages = "", dict[Place, int]()
    try:
        found = await admin_client.get(admin, group_id, "", org)
        for one in found["partitions"]:
            if one["commit_ms"] is not None:
                ages[one["topic"], one["partition"]] = max(found["now_ms"] - one["commit_ms"], 0)
    except CommandFailed as failure:
        missing = str(failure)
    async with KafkaClient(bootstrap) as kafka:
        described = await kafka.describe(group_id)
        rows = await _positions(kafka, group_id, described)
        if described.group_state == "Dead" and not rows:
            raise CommandFailed(f"there is no group {group_id}")
    return [{**row, "commit_age_ms": ages.get((row["topic"], row["partition"]))} for row in rows], missing


async def _positions(kafka: KafkaClient, group_id: str, described: Any) -> Rows:
    owners = {
        (topic, partition): member
        for member in described.members
        for topic, partitions in (assigned_partitions(bytes(member.member_assignment)) or {}).items()
        for partition in partitions
    }
    committed = await kafka.committed(group_id)
    places = sorted(set(owners) | set(committed))
    topics = await kafka.topics({topic for topic, _ in places})
    there = [place for place in places if place[0] in topics and place[1] in topics[place[0]].leaders]
    ends = await kafka.offsets_at(dict.fromkeys(there, LATEST), topics)
    starts = await kafka.offsets_at({place: EARLIEST for place in there if place not in committed}, topics)
    rows = []
    for topic, partition in places:
        place = (topic, partition)
        offset = committed[place].committed_offset if place in committed else None
        end, owner = ends.get(place), owners.get(place)
        begin = offset if offset is not None else starts.get(place, 0)
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": offset,
                "end": end,
                "lag": None if end is None else max(end - begin, 0),
                "owner": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.client_host if owner else None,
            }
        )
    return rows
