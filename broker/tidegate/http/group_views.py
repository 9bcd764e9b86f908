"""Groups for the admin HTTP: snapshot, partitions, history and findings, combined and converted to JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tidegate.apis.call import BrokerContext
from tidegate.diagnosis.checks.patterns import WINDOW_MS
from tidegate.diagnosis.commit_progress import Progress
from tidegate.diagnosis.explain import GroupFinding, Partition, commits_without_members, explain, summary
from tidegate.diagnosis.group_events import EVENTS_READ_MAX, Event, describe_event, read_events, read_shard, rebalances
from tidegate.diagnosis.group_snapshot import CommitSnapshot, GroupSnapshot, MetadataDecoders, read_snapshot
from tidegate.errors import GroupIdNotFound, KafkaError
from tidegate.groups import directory
from tidegate.http.record_lag import counted_lag
from tidegate.protocol.consumer_blobs import assigned_partitions, subscribed_topics
from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.keys import GroupKeys
from tidegate.store.outcome import FaultyKeys

BLOBS: Final = MetadataDecoders(subscribed_topics, assigned_partitions)
_AT_ONCE: Final = 16
_PARTITIONS_AT_ONCE: Final = 64
_CALM_LAST: Final = {"Stable": 1, "Empty": 2}

Place = tuple[str, int]
Bounds = tuple[int | None, int | None]
"""Log start offset and high watermark of a partition, None where unavailable."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The data of one group."""

    snapshot: GroupSnapshot
    partitions: tuple[Partition, ...]
    events: tuple[Event, ...]
    findings: tuple[GroupFinding, ...]


class _Ends:
    """Offsets of partitions, None when unavailable; each is read once for all groups."""

    def __init__(self, context: BrokerContext, org: str) -> None:
        self._org = org
        self._context = context
        self._observations: dict[Place, asyncio.Task[Bounds]] = {}

    def of(self, place: Place) -> Awaitable[Bounds]:
        """Log start offset and high watermark."""
        if place not in self._observations:
            self._observations[place] = asyncio.create_task(self._observe(*place))
        return self._observations[place]

    async def of_some(self, places: Iterable[Place]) -> list[Bounds]:
        """The same of several; other callbacks of the event loop run before it returns."""
        return await asyncio.gather(*map(self.of, places))

    async def _observe(self, name: str, partition: int) -> Bounds:
        topic = await self._context.catalog.find(self._org, name)
        if topic is None or partition >= topic.partition_count:
            return None, None
        try:
            known = await self._context.logs.partition(topic, partition).end_offset()
        except KafkaError:
            return None, None
        return known.log_start_offset, known.high_watermark

    def is_record(self, name: str) -> bool:
        """Whether a topic is of format record."""
        topic = self._context.catalog.get(self._org, name)
        return topic is not None and topic.config.is_record

    async def counted_lag(self, place: Place, committed: int | None) -> int | None:
        """Records from the committed offset on, counted where offsets have gaps: in topics of format record."""
        topic = self._context.catalog.get(self._org, place[0])
        if topic is None or not topic.config.is_record or place[1] >= topic.partition_count:
            return None
        return await counted_lag(self._context, topic, place[1], committed or 0)


async def view(context: BrokerContext, org: str, group_id: str) -> GroupView:
    """The data of one group. Raises GroupIdNotFound, StoreUnavailable."""
    keys = context.store.group_keys(org, group_id)
    try:
        snapshot = await _snapshot(context, keys)
    except GroupIdNotFound:
        raise GroupIdNotFound(f"there is no group {group_id}") from None
    return await _view(context, _Ends(context, org), snapshot, await read_events(context.store, keys))


async def _snapshot(context: BrokerContext, keys: GroupKeys) -> GroupSnapshot:
    return await read_snapshot(context.store, keys, str(context.broker_lease.node_id), BLOBS)


async def _view(context: BrokerContext, ends: _Ends, snapshot: GroupSnapshot, reported: Sequence[Event]) -> GroupView:
    subscribed = snapshot.topics or frozenset()
    for topic in subscribed:
        await context.catalog.find(snapshot.org, topic)
    topics = frozenset(topic.name for topic in context.catalog.topics(snapshot.org))
    partitions = await _partitions(context, ends, snapshot, subscribed)
    commits = await _progress(context, snapshot, partitions)
    # In a thread: thousands of events of a large group take 250 ms, which would delay the lease renewal.
    findings = await asyncio.to_thread(explain, snapshot, partitions, reported, topics, commits)
    return GroupView(snapshot, tuple(partitions), tuple(reported), tuple(findings))


async def _progress(
    context: BrokerContext, snapshot: GroupSnapshot, partitions: Sequence[Partition]
) -> Progress | None:
    """Of a group whose judgement needs it: few do, and lag samples are read for these only."""
    if snapshot.members or not await asyncio.to_thread(commits_without_members, snapshot, partitions):
        return None
    await context.commit_progress.read(context.store)
    ref = context.store.stored_group_keys(snapshot.org, snapshot.group_id).ref
    return await asyncio.to_thread(context.commit_progress.of, ref, snapshot.commits, snapshot.now_ms)


async def view_all(context: BrokerContext, org: str) -> list[GroupView]:
    """The data of every group of an organisation that can be read, in order of id. Raises StoreUnavailable."""
    return await _view_some(context, org, await _listed(context, org))


async def view_first(context: BrokerContext, org: str, count_max: int) -> tuple[list[GroupView], int]:
    """At most `count` groups, rebalancing ones first and empty ones last; and the number of groups left out.

    Raises StoreUnavailable.
    """
    listed = await _listed(context, org)
    listed.sort(key=lambda group: (_CALM_LAST.get(group.state, 0), group.group_id))
    views = await _view_some(context, org, listed[:count_max])
    return views, len(listed) - len(views)


async def view_page(context: BrokerContext, org: str, after: str, count_max: int) -> tuple[list[GroupView], str | None]:
    """Groups after the id `after` that can be read, in order of id, and the `after` of the next page.

    Raises StoreUnavailable.
    """
    behind = [group for group in await _listed(context, org) if group.group_id > after]
    page = behind[:count_max]
    return await _view_some(context, org, page), page[-1].group_id if len(behind) > len(page) else None


async def _listed(context: BrokerContext, org: str) -> list[directory.ListedGroup]:
    return await directory.list_groups(context.store, org, range(context.settings.coordinator_shards))


async def _view_some(context: BrokerContext, org: str, listed: Sequence[directory.ListedGroup]) -> list[GroupView]:
    """A group with a key that cannot be read is left out, and logged: the others may be why somebody looks."""
    keys = {group.group_id: context.store.stored_group_keys(org, group.group_id) for group in listed}
    events: dict[str, list[Event]] = {one.ref: [] for one in keys.values()}
    for stream in {one.shard_keys.events for one in keys.values()}:
        for ref, event in await read_shard(context.store, stream, span_ms=WINDOW_MS):
            if ref in events:
                events[ref].append(event)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def observe(group: GroupKeys) -> GroupSnapshot | None:
        async with gate:
            try:
                return await _snapshot(context, group)
            except GroupIdNotFound:
                return None  # deleted meanwhile

    snapshots, faulty = await gather_readable({one.ref: observe(one) for one in keys.values()})
    ends = _Ends(context, org)  # read after the snapshots, so that no commit is beyond the end
    views = list[GroupView]()
    for ref, snapshot in snapshots.items():
        try:
            if snapshot is not None:
                views.append(await _view(context, ends, snapshot, events[ref]))
        except FaultyKeys as error:
            faulty[ref] = error
    log_faulty("group-list", faulty)
    return views


async def _partitions(
    context: BrokerContext, ends: _Ends, snapshot: GroupSnapshot, subscribed: Iterable[str]
) -> list[Partition]:
    """Partitions that the group has committed for, owns or subscribes to, in order."""
    if snapshot.shares:
        return await _share_partitions(ends, snapshot)
    topics = (context.catalog.get(snapshot.org, name) for name in subscribed)
    counts = {topic.name: topic.partition_count for topic in topics if topic is not None}
    # In threads and slices: a group of 12,000 partitions would hold the event loop for 0.5 s.
    known = await asyncio.to_thread(_known, snapshot, counts)
    bounds = list[Bounds]()
    for first in range(0, len(known.places), _PARTITIONS_AT_ONCE):
        bounds += await ends.of_some(known.places[first : first + _PARTITIONS_AT_ONCE])
    record_topics = {name for name in {name for name, _ in known.places} if ends.is_record(name)}
    lags = {
        place: await ends.counted_lag(place, known.committed(place))
        for place in (known.places if record_topics else ())
        if place[0] in record_topics
    }
    return await asyncio.to_thread(_rows, known, bounds, record_topics, lags)


@dataclass(frozen=True, slots=True)
class _Known:
    """A group's partitions in order, with what its snapshot says of them."""

    places: list[Place]
    commits: Mapping[Place, CommitSnapshot]
    owners: Mapping[Place, str]

    def committed(self, place: Place) -> int | None:
        commit = self.commits.get(place)
        return commit.offset if commit else None


def _known(snapshot: GroupSnapshot, partition_counts: Mapping[str, int]) -> _Known:
    commits = {(commit.topic, commit.partition): commit for commit in snapshot.commits}
    owners = {
        (topic, partition): member.member_id
        for member in snapshot.members
        for topic, partitions in (member.owned or {}).items()
        for partition in partitions
    }
    subscribed = {(name, index) for name, count in partition_counts.items() for index in range(count)}
    return _Known(sorted(subscribed.union(commits, owners)), commits, owners)


def _rows(
    known: _Known, bounds: Sequence[Bounds], record_topics: Set[str], lags: Mapping[Place, int | None]
) -> list[Partition]:
    found = []
    for place, (log_start, log_end) in zip(known.places, bounds, strict=True):
        commit = known.commits.get(place)
        found.append(
            Partition(
                topic=place[0],
                partition=place[1],
                committed=commit.offset if commit else None,
                commit_ms=commit.commit_ms if commit else None,
                metadata=commit.metadata if commit else "",
                log_start=log_start,
                log_end=log_end,
                owner=known.owners.get(place),
                is_record=place[0] in record_topics,
                counted_lag=lags.get(place),
            )
        )
    return found


async def _share_partitions(ends: _Ends, snapshot: GroupSnapshot) -> list[Partition]:
    """The share-partitions: their start offset as the committed one, their lag as the records not finished."""
    bounds = await ends.of_some((share.topic, share.partition) for share in snapshot.shares)
    return [
        Partition(
            topic=share.topic,
            partition=share.partition,
            committed=share.start,
            commit_ms=None,
            metadata="",
            log_start=log_start,
            log_end=log_end,
            owner=None,
            counted_lag=None if log_end is None else max(log_end - share.end, 0) + share.unfinished,
        )
        for share, (log_start, log_end) in zip(snapshot.shares, bounds, strict=True)
    ]


# -- as JSON


async def all_listed(found: Sequence[GroupView]) -> list[dict[str, Any]]:
    """Groups as elements of a list. In a thread: the lags of 1,000,000 partitions are added in 400 ms."""
    return await asyncio.to_thread(lambda: [listed(one) for one in found])


def listed(found: GroupView) -> dict[str, Any]:
    """A group as an element of a list."""
    snapshot, worst = found.snapshot, found.findings[0] if found.findings else None
    trouble = worst if worst is not None and worst.severity else None
    return {
        "group": snapshot.group_id,
        "id": snapshot.id,
        "state": snapshot.state,
        "type": snapshot.type,
        "members": len(snapshot.members),
        "generation": snapshot.generation,
        "state_since_ms": snapshot.state_since_ms,
        "lag": sum(partition.lag or 0 for partition in found.partitions),
        "severity": trouble.severity.name.lower() if trouble else "",
        "trouble": trouble.kind if trouble else "",
        "sentence": trouble.sentence if trouble else "",
    }


def described(found: GroupView) -> dict[str, Any]:
    """A group in full, without its history. For a thread: 10,000 partitions take 100 ms."""
    snapshot = asdict(replace(found.snapshot, commits=()))
    del snapshot["commits"]
    for member in snapshot["members"]:
        member["topics"] = None if member["topics"] is None else sorted(member["topics"])
    rounds = rebalances(found.events)
    snapshot["last_rebalance"] = _rebalance(rounds[-1]) if rounds else None
    snapshot["partitions"] = [{**asdict(partition), "lag": partition.lag} for partition in found.partitions]
    return snapshot


def explained(found: GroupView) -> dict[str, Any]:
    """The findings of a group. For a thread, as `described`."""
    return {
        "group": found.snapshot.group_id,
        "now_ms": found.snapshot.now_ms,
        "summary": summary(found.snapshot, found.findings, found.partitions),
        "findings": [{**asdict(finding), "severity": finding.severity.name.lower()} for finding in found.findings],
    }


async def history(context: BrokerContext, org: str, group_id: str, count_max: int) -> dict[str, Any]:
    """Rebalances and raw events, newest first; also of a deleted group, while its events are retained.

    Raises GroupIdNotFound when there are no events either, StoreUnavailable.
    """
    reported = await read_events(context.store, context.store.group_keys(org, group_id))
    if not reported and not await context.store.command("EXISTS", context.store.group_keys(org, group_id).group):
        raise GroupIdNotFound(f"there is no group {group_id}")
    return await asyncio.to_thread(_history, group_id, reported, count_max)


def _history(group_id: str, reported: Sequence[Event], count_max: int) -> dict[str, Any]:
    return {
        "group": group_id,
        "rebalances": [_rebalance(one) for one in rebalances(reported)[: -count_max - 1 : -1]],
        "events": [{**asdict(event), "sentence": describe_event(event)} for event in reported[: -count_max - 1 : -1]],
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
