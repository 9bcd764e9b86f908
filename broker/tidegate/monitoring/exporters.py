"""Group and topic metrics under the names of kafka_exporter and kminion, with their labels and semantics.

Those exporters have no organisations: series of an organisation other than `default` get a further label `org`, so that
names stay unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import tidegate
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.placement import coordinator_of, leader_of
from tidegate.groups.model import GroupState
from tidegate.monitoring.lag_reading import FindTopic, GroupRead, LogEndsReading, Place, with_pauses
from tidegate.telemetry import declared_foreign as names
from tidegate.telemetry.declared import Declared
from tidegate.telemetry.pages import Gauges, labels
from tidegate.topics.model import Topic

_DEFAULT_ORG: Final = "default"


@dataclass(slots=True)
class TopicLag:
    """A group's lag in one topic: committed offset and lag by partition, and their sums."""

    partitions: dict[int, tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    seconds: float = 0.0

    def add(self, partition: int, committed: int, lag: int, seconds: float) -> None:
        """Add one partition."""
        self.partitions[partition] = committed, lag
        self.records += lag
        self.seconds = max(self.seconds, seconds)

    @property
    def committed_sum(self) -> int:
        """Sum of the committed offsets."""
        return sum(committed for committed, _ in self.partitions.values())


@dataclass(frozen=True, slots=True)
class Brokers:
    """The live brokers and the coordinators that FindCoordinator answers."""

    live: Callable[[], Sequence[BrokerInfo]]
    preferred: Callable[[], Sequence[BrokerInfo]]
    cluster_id: Callable[[], str]


class Names(Protocol):
    """The metric names of one exporter."""

    @property
    def families(self) -> Iterable[Declared]:
        """The declarations of its metrics."""

    async def group(
        self,
        page: Gauges,
        group: GroupRead,
        owners: Mapping[Place, str],
        topics: Mapping[str, TopicLag],
        whole: bool,
    ) -> None:
        """Add a group; `whole`: with its partitions."""

    async def topic(self, page: Gauges, topic: Topic, log_ends: Mapping[int, LogEndsReading]) -> None:
        """Add a topic and its logs."""

    def cluster(self, page: Gauges) -> None:
        """Add the brokers, at the end of a round."""


class ForeignNames:
    """The names of all exporters."""

    def __init__(self, brokers: Brokers, find_topic: FindTopic) -> None:
        self._all: list[Names] = [KafkaExporter(brokers, find_topic), Kminion(brokers)]
        self.families = [family for one in self._all for family in one.families]

    async def group(
        self,
        page: Gauges,
        group: GroupRead,
        owners: Mapping[Place, str],
        topics: Mapping[str, TopicLag],
        whole: bool,
    ) -> None:
        """Add a group; `whole`: with its partitions."""
        for one in self._all:
            await one.group(page, group, owners, topics, whole)

    async def topic(self, page: Gauges, topic: Topic, log_ends: Mapping[int, LogEndsReading]) -> None:
        """Add a topic and its logs."""
        for one in self._all:
            await one.topic(page, topic, log_ends)

    def cluster(self, page: Gauges) -> None:
        """Add the brokers, at the end of a round."""
        for one in self._all:
            one.cluster(page)


def _org(org: str) -> dict[str, str]:
    return {} if org == _DEFAULT_ORG else {"org": org}


class KafkaExporter:
    """danielqsj/kafka_exporter with `--offset.show-all`, its default: every group, all partitions of its topics."""

    families = names.KAFKA_EXPORTER

    def __init__(self, brokers: Brokers, find_topic: FindTopic) -> None:
        self._brokers, self._find_topic = brokers, find_topic

    async def group(
        self,
        page: Gauges,
        group: GroupRead,
        owners: Mapping[Place, str],
        topics: Mapping[str, TopicLag],
        whole: bool,
    ) -> None:
        """If one partition of a topic has a commit, the others are reported as -1, and the sum includes the -1."""
        org = _org(group.name.org)
        page.add(names.KE_MEMBERS, labels(consumergroup=group.name.group_id, **org), group.members)
        async for name, lag in with_pauses(topics.items()):
            topic = self._find_topic(group.name.org, name)
            count = topic.partition_count if topic is not None else 0
            named = labels(consumergroup=group.name.group_id, topic=name, **org)
            missing = count - len(lag.partitions)
            page.add(names.KE_COMMITTED_SUM, named, lag.committed_sum - max(missing, 0))
            page.add(names.KE_LAG_SUM, named, lag.records)
            async for index in with_pauses(range(count) if whole else ()):
                committed, behind = lag.partitions.get(index, (-1, -1))
                placed = f'{named},partition="{index}"'
                page.add(names.KE_COMMITTED, placed, committed)
                page.add(names.KE_LAG, placed, behind)

    async def topic(self, page: Gauges, topic: Topic, log_ends: Mapping[int, LogEndsReading]) -> None:
        """Each partition has one replica, on the broker that is its partition leader."""
        named, preferred = labels(topic=topic.name, **_org(topic.org)), self._brokers.preferred()
        page.add(names.KE_TOPIC_PARTITIONS, named, topic.partition_count)
        async for index, ends in with_pauses(log_ends.items()):
            placed = f'{named},partition="{index}"'
            page.add(names.KE_CURRENT, placed, ends.log_end)
            page.add(names.KE_OLDEST, placed, ends.log_start)
            if preferred:
                page.add(names.KE_LEADER, placed, leader_of(topic.topic_id, index, preferred).node_id)
            page.add(names.KE_REPLICAS, placed, 1)
            page.add(names.KE_IN_SYNC, placed, 1)
            page.add(names.KE_PREFERRED, placed, 1)
            page.add(names.KE_UNDER_REPLICATED, placed, 0)

    def cluster(self, page: Gauges) -> None:
        """Add the live brokers."""
        live = self._brokers.live()
        page.add(names.KE_BROKERS, "", len(live))
        for one in live:
            host, port = next(iter(one.endpoints.values()))
            page.add(names.KE_BROKER_INFO, labels(id=str(one.node_id), address=f"{host}:{port}"), 1)


class Kminion:
    """redpanda-data/kminion with `scrapeMode: adminApi`, its default."""

    families = names.KMINION

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._bytes: Counter[int] = Counter()

    async def group(
        self,
        page: Gauges,
        group: GroupRead,
        owners: Mapping[Place, str],
        topics: Mapping[str, TopicLag],
        whole: bool,
    ) -> None:
        """Lag of committed partitions only; members by the partitions that they own."""
        org, preferred = _org(group.name.org), self._brokers.preferred()
        named = labels(group_id=group.name.group_id, **org)
        coordinator = coordinator_of(group.name.shard, preferred).node_id if preferred else -1
        info = labels(
            protocol=group.protocol if group.state == GroupState.STABLE else "",
            protocol_type=group.protocol_type,
            state=group.state,
            coordinator_id=str(coordinator),
        )
        page.add(names.KM_GROUP_INFO, f"{named},{info}", int(group.state == GroupState.STABLE))
        page.add(names.KM_MEMBERS, named, group.members)
        empty = group.members - len(set(owners.values()))
        if empty > 0:
            page.add(names.KM_EMPTY_MEMBERS, named, empty)
        self._assigned(page, named, owners)
        async for name, lag in with_pauses(topics.items()):
            topic = f"{named},{labels(topic_name=name)}"
            page.add(names.KM_OFFSET_SUM, topic, lag.committed_sum)
            page.add(names.KM_TOPIC_LAG, topic, lag.records)
            async for index, (_, behind) in with_pauses(lag.partitions.items() if whole else ()):
                page.add(names.KM_LAG, f'{topic},partition_id="{index}"', behind)

    @staticmethod
    def _assigned(page: Gauges, named: str, owners: Mapping[Place, str]) -> None:
        partitions = Counter(topic for topic, _ in owners)
        members = Counter(topic for topic, _ in {(place[0], member) for place, member in owners.items()})
        for topic, count in partitions.items():
            placed = f"{named},{labels(topic_name=topic)}"
            page.add(names.KM_ASSIGNED, placed, count)
            page.add(names.KM_TOPIC_MEMBERS, placed, members[topic])

    async def topic(self, page: Gauges, topic: Topic, log_ends: Mapping[int, LogEndsReading]) -> None:
        """Bytes are counted for the partition leader's broker, although they are stored in Redis."""
        org, preferred = _org(topic.org), self._brokers.preferred()
        named = labels(topic_name=topic.name, **org)
        info = labels(
            partition_count=str(topic.partition_count), replication_factor="1", cleanup_policy=_cleanup_policy(topic)
        )
        page.add(names.KM_TOPIC_INFO, f"{named},{info}", 1)
        page.add(names.KM_TOPIC_BYTES, named, sum(ends.size for ends in log_ends.values()))
        async for index, ends in with_pauses(log_ends.items()):
            placed = f'{named},partition_id="{index}"'
            page.add(names.KM_LOW, placed, ends.log_start)
            page.add(names.KM_HIGH, placed, ends.log_end)
            if preferred:
                self._bytes[leader_of(topic.topic_id, index, preferred).node_id] += ends.size
        page.add(names.KM_LOW_SUM, named, sum(ends.log_start for ends in log_ends.values()))
        page.add(names.KM_HIGH_SUM, named, sum(ends.log_end for ends in log_ends.values()))

    def cluster(self, page: Gauges) -> None:
        """Add the live brokers; there is no controller, so the first broker is reported as the controller."""
        live, (sizes, self._bytes) = self._brokers.live(), (self._bytes, Counter())
        controller = min((one.node_id for one in live), default=-1)
        page.add(names.KM_UP, labels(version=tidegate.__version__), 1)
        cluster = labels(
            cluster_version=f"tidegate {tidegate.__version__}",
            broker_count=str(len(live)),
            controller_id=str(controller),
            cluster_id=self._brokers.cluster_id(),
        )
        page.add(names.KM_CLUSTER_INFO, cluster, 1)
        for one in live:
            host, port = next(iter(one.endpoints.values()))
            named = labels(broker_id=str(one.node_id), address=host, port=str(port), rack_id=one.rack or "")
            is_controller = labels(is_controller=str(one.node_id == controller).lower())
            page.add(names.KM_BROKER_INFO, f"{named},{is_controller}", 1)
            page.add(names.KM_BROKER_BYTES, named, sizes[one.node_id])


def _cleanup_policy(topic: Topic) -> str:
    return topic.overrides.get("cleanup.policy", "delete")
