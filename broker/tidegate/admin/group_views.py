"""Groups as the admin HTTP shows them: picture, partitions, history and findings, put together and made JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidegate.apis.call import Rooms
from tidegate.errors import GroupIdNotFound, KafkaError
from tidegate.groups import directory
from tidegate.groups.explain import Finding, Partition, explain, summary
from tidegate.groups.explain.patterns import WINDOW_MS
from tidegate.groups.picture import Blobs, GroupPicture, read_picture
from tidegate.groups.story import EVENTS_READ_MAX, Event, in_words, read_events, read_shard, rebalances
from tidegate.protocol.consumer_blobs import assigned_partitions, subscribed_topics
from tidegate.store.keys import GroupKeys

BLOBS: Final = Blobs(subscribed_topics, assigned_partitions)
_AT_ONCE: Final = 16
_CALM_LAST: Final = {"Stable": 1, "Empty": 2}


@dataclass(frozen=True, slots=True)
class GroupView:
    """All that is told of one group."""

    picture: GroupPicture
    partitions: tuple[Partition, ...]
    events: tuple[Event, ...]
    findings: tuple[Finding, ...]


class _Ends:
    """Where partitions begin and end, None where nobody knows; each is looked at once, whatever the groups."""

    def __init__(self, rooms: Rooms, org: str) -> None:
        self._org = org
        self._rooms = rooms
        self._looks: dict[tuple[str, int], asyncio.Task[tuple[int | None, int | None]]] = {}

    def of(self, place: tuple[str, int]) -> Awaitable[tuple[int | None, int | None]]:
        """Log start offset and high watermark."""
        if place not in self._looks:
            self._looks[place] = asyncio.create_task(self._look(*place))
        return self._looks[place]

    async def _look(self, name: str, partition: int) -> tuple[int | None, int | None]:
        topic = await self._rooms.catalog.find(self._org, name)
        if topic is None or partition >= topic.partition_count:
            return None, None
        try:
            known = await self._rooms.logs.partition(topic, partition).end_offset()
        except KafkaError:
            return None, None
        return known.log_start_offset, known.high_watermark


async def view(rooms: Rooms, org: str, group_id: str) -> GroupView:
    """Look at one group. Raises GroupIdNotFound, StoreUnavailable."""
    keys = rooms.store.group_keys(org, group_id)
    try:
        picture = await _picture(rooms, keys)
    except GroupIdNotFound:
        raise GroupIdNotFound(f"there is no group {group_id}") from None
    return await _view(rooms, _Ends(rooms, org), picture, await read_events(rooms.store, keys))


async def _picture(rooms: Rooms, keys: GroupKeys) -> GroupPicture:
    return await read_picture(rooms.store, keys, str(rooms.membership.node_id), BLOBS)


async def _view(rooms: Rooms, ends: _Ends, picture: GroupPicture, told: Sequence[Event]) -> GroupView:
    subscribed = picture.topics or frozenset()
    for topic in subscribed:
        await rooms.catalog.find(picture.org, topic)
    topics = frozenset(topic.name for topic in rooms.catalog.topics(picture.org))
    partitions = await _partitions(rooms, ends, picture, subscribed)
    # Thousands of events of a large group take a quarter of a second: in a thread, or this broker's lease is late.
    findings = await asyncio.to_thread(explain, picture, partitions, told, topics)
    return GroupView(picture, tuple(partitions), tuple(told), tuple(findings))


async def view_all(rooms: Rooms, org: str) -> list[GroupView]:
    """Look at every group of an organisation, in order of id. Raises StoreUnavailable."""
    return await _view_some(rooms, org, await _listed(rooms, org))


async def view_first(rooms: Rooms, org: str, count_max: int) -> tuple[list[GroupView], int]:
    """So many of them, those in a rebalance first and empty ones last; and how many were left out.

    Raises StoreUnavailable.
    """
    listed = await _listed(rooms, org)
    listed.sort(key=lambda group: (_CALM_LAST.get(group.state, 0), group.group_id))
    return await _view_some(rooms, org, listed[:count_max]), max(len(listed) - count_max, 0)


async def view_page(rooms: Rooms, org: str, after: str, count_max: int) -> tuple[list[GroupView], str | None]:
    """Those behind the id `after`, in order of id, and behind which the next page begins. Raises StoreUnavailable."""
    behind = [group for group in await _listed(rooms, org) if group.group_id > after]
    page = behind[:count_max]
    return await _view_some(rooms, org, page), page[-1].group_id if len(behind) > len(page) else None


async def _listed(rooms: Rooms, org: str) -> list[directory.ListedGroup]:
    return await directory.list_groups(rooms.store, org, range(rooms.settings.coordinator_shards))


async def _view_some(rooms: Rooms, org: str, listed: Sequence[directory.ListedGroup]) -> list[GroupView]:
    keys = {group.group_id: rooms.store.group_keys(org, group.group_id) for group in listed}
    events: dict[str, list[Event]] = {one.ref: [] for one in keys.values()}
    for stream in {one.shard_keys.events for one in keys.values()}:
        for ref, event in await read_shard(rooms.store, stream, span_ms=WINDOW_MS):
            if ref in events:
                events[ref].append(event)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def look(group: GroupKeys) -> GroupPicture | None:
        async with gate:
            try:
                return await _picture(rooms, group)
            except GroupIdNotFound:
                return None  # deleted meanwhile

    pictures = await asyncio.gather(*map(look, keys.values()))
    ends = _Ends(rooms, org)  # behind the pictures, so that nothing is committed beyond them
    return [await _view(rooms, ends, one, events[keys[one.group_id].ref]) for one in pictures if one is not None]


async def _partitions(rooms: Rooms, ends: _Ends, picture: GroupPicture, subscribed: Iterable[str]) -> list[Partition]:
    """What the group has committed for, owns, or subscribes to, in order."""
    commits = {(commit.topic, commit.partition): commit for commit in picture.commits}
    owners = {
        (topic, partition): member.member_id
        for member in picture.members
        for topic, partitions in (member.owned or {}).items()
        for partition in partitions
    }
    places = set(commits) | set(owners)
    for name in subscribed:
        topic = rooms.catalog.get(picture.org, name)
        places |= {(name, index) for index in range(topic.partition_count if topic else 0)}
    ordered = sorted(places)
    bounds = await asyncio.gather(*map(ends.of, ordered))
    found = []
    for place, (log_start, log_end) in zip(ordered, bounds, strict=True):
        commit = commits.get(place)
        found.append(
            Partition(
                topic=place[0],
                partition=place[1],
                committed=commit.offset if commit else None,
                commit_ms=commit.commit_ms if commit else None,
                metadata=commit.metadata if commit else "",
                log_start=log_start,
                log_end=log_end,
                owner=owners.get(place),
            )
        )
    return found


# -- as JSON


def listed(found: GroupView) -> dict[str, Any]:
    """A group's line of a list."""
    picture, worst = found.picture, found.findings[0] if found.findings else None
    trouble = worst if worst is not None and worst.severity else None
    return {
        "group": picture.group_id,
        "id": picture.id,
        "state": picture.state,
        "type": picture.type,
        "members": len(picture.members),
        "generation": picture.generation,
        "state_since_ms": picture.state_since_ms,
        "lag": sum(partition.lag or 0 for partition in found.partitions),
        "severity": trouble.severity.name.lower() if trouble else "",
        "trouble": trouble.kind if trouble else "",
        "sentence": trouble.sentence if trouble else "",
    }


def described(found: GroupView) -> dict[str, Any]:
    """A group in full, but for its history."""
    picture = asdict(found.picture)
    del picture["commits"]
    for member in picture["members"]:
        member["topics"] = None if member["topics"] is None else sorted(member["topics"])
    rounds = rebalances(found.events)
    picture["last_rebalance"] = _rebalance(rounds[-1]) if rounds else None
    picture["partitions"] = [{**asdict(partition), "lag": partition.lag} for partition in found.partitions]
    return picture


def explained(found: GroupView) -> dict[str, Any]:
    """What is to be said of a group."""
    return {
        "group": found.picture.group_id,
        "now_ms": found.picture.now_ms,
        "summary": summary(found.picture, found.findings, found.partitions),
        "findings": [{**asdict(finding), "severity": finding.severity.name.lower()} for finding in found.findings],
    }


async def history(rooms: Rooms, org: str, group_id: str, count_max: int) -> dict[str, Any]:
    """Rebalances and raw events, newest first; also of a group that was deleted, while events of it are kept.

    Raises GroupIdNotFound where nothing tells of it, StoreUnavailable.
    """
    told = await read_events(rooms.store, rooms.store.group_keys(org, group_id))
    if not told and not await rooms.store.command("EXISTS", rooms.store.group_keys(org, group_id).group):
        raise GroupIdNotFound(f"there is no group {group_id}")
    return {
        "group": group_id,
        "rebalances": [_rebalance(one) for one in rebalances(told)[: -count_max - 1 : -1]],
        "events": [{**asdict(event), "sentence": in_words(event)} for event in told[: -count_max - 1 : -1]],
        "events_kept_max": EVENTS_READ_MAX,
    }


def _rebalance(one: Any) -> Mapping[str, Any]:
    started = one.started
    return {
        "time_ms": started.time_ms,
        "generation": one.generation,
        "cause": started.cause,
        "sentence": one.cause,
        "member_id": started.member_id,
        "client_id": started.client_id,
        "host": started.host,
        "reason": started.reason,
        "broker": started.broker,
        "calm_ms": started.duration_ms,
        "joining_ms": one.joining_ms,
        "syncing_ms": one.syncing_ms,
        "stable_ms": one.stable_ms,
        "members": one.members,
        "leader": one.leader,
        "protocol": one.protocol,
        "outcome": one.outcome,
        "removed": [event.member_id for event in one.lost],
    }
