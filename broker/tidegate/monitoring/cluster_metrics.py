"""Cluster-wide metrics on `/metrics`, computed by one broker at a time from a round of lag samples.

The page is text, rendered a few groups at a time; a scrape copies the page of the last complete round. Groups and
topics beyond the limits in the settings are counted, but get no series of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.groups.share.records import InFlight
from tidegate.monitoring.drain_estimate import DrainEstimates
from tidegate.monitoring.exporters import ForeignNames, TopicLag
from tidegate.monitoring.lag_reading import (
    SLICE,
    UNREADABLE_GROUPS,
    UNREADABLE_PARTITIONS,
    UNREADABLE_SHARDS,
    GroupRead,
    LagReader,
    LogEndsReadings,
    Place,
    with_pauses,
)
from tidegate.monitoring.rebalance_counts import RebalanceCounts
from tidegate.settings import Settings
from tidegate.store.outcome import FaultyKeys
from tidegate.store.server_facts import server_facts
from tidegate.store.slices import Pauses
from tidegate.store.store import Store
from tidegate.telemetry import declared_cluster as own
from tidegate.telemetry.declared_cluster import CLUSTER
from tidegate.telemetry.pages import Gauges, labels
from tidegate.topics.model import Topic

PARTITIONS_PER_GROUP: Final = 10
"""Partitions of groups, and of topics, on the page: so many times `metrics_groups_max`."""
LEFT_OUT_KINDS: Final = (
    "groups", "group_partitions", "partitions", UNREADABLE_GROUPS, UNREADABLE_PARTITIONS, UNREADABLE_SHARDS,
)  # fmt: skip
CURRENT_ROUNDS: Final = 3
"""A page is current for so many intervals, or durations of its round, after the round was completed."""
_TOPICS_AT_ONCE: Final = 20


@dataclass(slots=True)
class _Round:
    """The totals of a round so far."""

    page: Gauges
    began_ms: int
    groups: frozenset[str]
    """Names of the groups that get their own series."""
    partitions_left: int
    log_ends: LogEndsReadings = field(default_factory=dict)
    states: Counter[tuple[str, str]] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


class ClusterPage:
    """The page of cluster metrics. `topics` are all topics; `foreign` writes them under other exporters' names."""

    def __init__(
        self, store: Store, settings: Settings, topics: Callable[[], Iterable[Topic]], foreign: ForeignNames
    ) -> None:
        self.text: list[bytes] = []
        self._store, self._topics, self._foreign = store, topics, foreign
        self._groups_max = settings.metrics_groups_max
        self._partitions_max = PARTITIONS_PER_GROUP * settings.metrics_groups_max
        self._rebalances = RebalanceCounts(store, settings.lag_sample_interval_ms)
        self._drains = DrainEstimates()
        self._round: _Round
        self._clock = asyncio.get_running_loop().time
        self._interval_s = settings.lag_sample_interval_ms / 1000
        self._began_s = self._current_until_s = float("-inf")
        self._is_complete = True

    @property
    def is_current(self) -> bool:
        """Whether a round was completed not long ago, or is the first one; else nobody should read the page."""
        return self._clock() < self._current_until_s

    def begin(self, groups: list[str], now_ms: int) -> None:
        """Start a round over these groups (their names in the shards' keys)."""
        reported = frozenset(sorted(groups)[: self._groups_max])
        page = Gauges((*CLUSTER, *self._foreign.families))
        self._round = _Round(page, now_ms, reported, self._partitions_max)
        self._round.left_out["groups"] = len(groups) - len(reported)
        if not self.is_current:
            self.text = []
        self._began_s = self._clock()
        if self._is_complete:
            self._extend(self._interval_s)
        self._is_complete = False

    def _extend(self, round_s: float) -> None:
        until_s = self._clock() + CURRENT_ROUNDS * max(self._interval_s, round_s)
        self._current_until_s = max(self._current_until_s, until_s)

    # -- groups

    async def group(self, group: GroupRead, owners: Mapping[Place, str], log_ends: LogEndsReadings) -> None:
        """Add a group, the owners of its partitions, and the log ends of the partitions that it has committed."""
        this, name = self._round, group.name
        this.log_ends |= log_ends
        this.states[name.org, group.state] += 1
        if name.ref not in this.groups:
            return
        add, named = this.page.add, labels(org=name.org, group=name.group_id)
        add(own.MEMBERS, named, group.members)
        add(own.MEMBERS_MISSING, named, group.missing)
        add(own.GENERATION, named, group.generation)
        in_state_ms = max(this.began_ms - group.state_since_ms, 0) if group.state_since_ms else 0
        add(own.STATE_SECONDS, f"{named},{labels(state=group.state)}", in_state_ms / 1000)
        add(own.UNCOMMITTED_PARTITIONS, named, sum(place not in group.commits for place in owners))
        whole = this.partitions_left >= len(group.commits)
        if whole:
            this.partitions_left -= len(group.commits)
        else:
            this.left_out["group_partitions"] += len(group.commits)
        topics = await self._lags(group, log_ends, whole)
        async for topic, lag in with_pauses(topics.items()):
            self._topic_of_group(group, named, topic, lag)
        await self._foreign.group(this.page, group, owners, topics, whole)

    async def _lags(self, group: GroupRead, log_ends: LogEndsReadings, whole: bool) -> dict[str, TopicLag]:
        """The group's lag by topic; `whole`: with one series for each partition."""
        add, name, topics = self._round.page.add, group.name, defaultdict[str, TopicLag](TopicLag)
        async for place, (committed, _) in with_pauses(group.commits.items()):
            ends = log_ends.get((name.org, place))
            if ends is None:
                continue
            topic, partition = place
            lag, behind_ms = group.lag(place, ends), 0
            if lag and ends.times[committed] >= 0:
                behind_ms = max(ends.now_ms - ends.times[committed], 0)
            topics[topic].add(partition, committed, lag, behind_ms / 1000)
            if whole:
                named = labels(org=name.org, group=name.group_id, topic=topic, partition=str(partition))
                add(own.LAG_RECORDS, named, lag)
                add(own.LAG_SECONDS, named, behind_ms / 1000)
                add(own.COMMITTED_OFFSET, named, committed)
                if place in group.shares:
                    self._share(named, group.shares[place])
        return topics

    def _share(self, named: str, share: InFlight) -> None:
        """One share-partition."""
        add = self._round.page.add
        add(own.SHARE_IN_FLIGHT, named, sum(share.by_member.values()))
        add(own.SHARE_RETURNED, named, share.returned_count)
        add(own.SHARE_REDELIVERED, named, share.redelivered_total)
        add(own.SHARE_FAILED, named, share.failed_total)
        add(own.SHARE_DEAD_LETTERED, named, share.dead_lettered_total)
        add(own.SHARE_DROPPED, named, share.dropped_total)

    def _topic_of_group(self, group: GroupRead, named: str, topic: str, lag: TopicLag) -> None:
        add, named = self._round.page.add, f"{named},{labels(topic=topic)}"
        add(own.TOPIC_LAG_RECORDS, named, lag.records)
        add(own.TOPIC_LAG_SECONDS, named, lag.seconds)
        drain_s = self._drains.estimate((group.name.ref, topic), self._round.began_ms, lag.records)
        if drain_s is not None:
            add(own.DRAIN_SECONDS, named, drain_s)

    # -- topics and totals, after all groups

    async def end(self, reader: LagReader) -> None:
        """Complete the round: topics, Redis, totals. Raises StoreUnavailable; the previous page then stays in place."""
        this = self._round
        self._drains.end()
        reader.leave_out(UNREADABLE_SHARDS, await self._rebalances.count(this.began_ms))
        await self._report_topics(reader)
        for server, facts in (await server_facts(self._store)).items():
            for metric, value in facts.items():
                this.page.add(metric, labels(server=server), value)
        for (org, state), count in this.states.items():
            this.page.add(own.GROUPS, labels(org=org, state=state), count)
        this.left_out.update({kind: len(faulty) for kind, faulty in reader.unreadable.items()})
        for what in LEFT_OUT_KINDS:
            this.page.add(own.LEFT_OUT, labels(what=what), this.left_out[what])
        this.page.add(own.CLUSTER_SAMPLED, "", this.began_ms / 1000)
        self._foreign.cluster(this.page)
        self.text = await this.page.text()
        self._is_complete = True
        self._extend(self._clock() - self._began_s)

    async def _report_topics(self, reader: LagReader) -> None:
        this, bytes_of = self._round, Counter[str]()
        chosen, left, pauses = [], self._partitions_max, Pauses(SLICE)
        for topic in sorted(self._topics(), key=lambda one: (one.org, one.name)):
            if topic.partition_count <= left:
                chosen.append(topic)
                left -= topic.partition_count
            else:
                this.left_out["partitions"] += topic.partition_count
        for start in range(0, len(chosen), _TOPICS_AT_ONCE):
            some = chosen[start : start + _TOPICS_AT_ONCE]
            places = ((topic.org, (topic.name, index)) for topic in some for index in range(topic.partition_count))
            this.log_ends |= await reader.read_ends_of({where: () for where in places if where not in this.log_ends})
            for topic in some:
                bytes_of[topic.org] += await self._report_topic(topic, reader)
                await pauses.after(1 + topic.partition_count)
        for org, size in bytes_of.items():
            this.page.add(own.ORG_REDIS_BYTES, labels(org=org), size)

    async def _report_topic(self, topic: Topic, reader: LagReader) -> int:
        """Add one topic; returns its size in Redis in bytes."""
        add, this = self._round.page.add, self._round
        found = {index: this.log_ends.get((topic.org, (topic.name, index))) for index in range(topic.partition_count)}
        log_ends = {index: ends for index, ends in found.items() if ends is not None}
        named = labels(org=topic.org, topic=topic.name)
        add(own.TOPIC_PARTITIONS, named, topic.partition_count)
        size = sum(ends.size for ends in log_ends.values())
        add(own.TOPIC_REDIS_BYTES, named, size)
        is_archived = topic.config.remote_storage and topic.overrides.get("remote.log.copy.disable") != "true"
        async for index, ends in with_pauses(log_ends.items()):
            placed = f"{named},{labels(partition=str(index))}"
            add(own.PARTITION_START, placed, ends.log_start)
            add(own.PARTITION_END, placed, ends.log_end)
            if is_archived:
                keys = self._store.log_keys(topic.org, topic.name, index, topic.topic_hex)
                try:
                    add(own.ARCHIVE_END, placed, int(await self._store.command("HGET", keys.archive, "end") or 0))
                except FaultyKeys as error:
                    reader.leave_out(UNREADABLE_PARTITIONS, {f"{topic.org}/{topic.name}:{index}": error})
        await self._foreign.topic(this.page, topic, log_ends)
        return size
