"""Two readers of lag as their users know them: KEDA's scaler and Burrow's evaluator, over the Kafka protocol.

Rules are those of KEDA's apache_kafka_scaler.go and of Burrow's core/internal/evaluator/caching.go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

NO_OFFSET: Final = -1
_TIMEOUT_S: Final = 30
_COMMITS_MIN: Final = 2
"""Burrow's `minimum-complete`, of a window of ten."""

Offsets = Mapping[int, int]
"""By partition."""


class Asked:
    """What both ask: partitions of a topic, what a group has committed, where logs end, who is a member."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def partitions(self, topic: str) -> list[int]:
        """The partitions; none of a topic that is not there, which asking does not make."""
        topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        return sorted(topics[topic].partitions) if topic in topics else []

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """OffsetFetch; -1 for none."""
        if not partitions:
            return {}
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, one) for one in partitions])
        [answer] = self._admin.list_consumer_group_offsets([asked]).values()
        found = answer.result(_TIMEOUT_S).topic_partitions
        return {one.partition: max(one.offset, NO_OFFSET) for one in found}

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """ListOffsets of the high watermark."""
        asked = {TopicPartition(topic, one): OffsetSpec.latest() for one in partitions}
        answers = self._admin.list_offsets(asked) if asked else {}
        return {place.partition: answer.result(_TIMEOUT_S).offset for place, answer in answers.items()}

    def members(self, group: str) -> int:
        """DescribeGroups; 0 of a group that is not there."""
        [answer] = self._admin.describe_consumer_groups([group]).values()
        try:
            return len(answer.result(_TIMEOUT_S).members)
        except KafkaException:
            return 0


@dataclass
class Keda:
    """A scaler for one group and topic; `scale` is the number of consumers that it wants."""

    asked: Asked
    group: str
    topic: str
    lag_threshold: int = 10
    offset_reset_policy: Literal["earliest", "latest"] = "latest"
    allow_idle_consumers: bool = False
    exclude_persistent_lag: bool = False
    scale_to_zero_on_invalid_offset: bool = False
    _before: dict[int, int] = field(default_factory=dict)

    def lag(self) -> tuple[int, int]:
        """The metric, and the lag that decides whether there is anything to do at all."""
        partitions = self.asked.partitions(self.topic)
        committed = self.asked.committed(self.group, self.topic, partitions)
        ends = self.asked.ends(self.topic, partitions)
        lags = [self._lag_of(one, committed[one], ends[one]) for one in partitions]
        total, active = sum(lag for lag, _ in lags), sum(whole for _, whole in lags)
        if not self.allow_idle_consumers and total // self.lag_threshold > len(partitions):
            total = len(partitions) * self.lag_threshold
        return total, active

    def scale(self) -> int:
        """Consumers wanted: as a HorizontalPodAutoscaler rounds, none where nothing is to do."""
        total, active = self.lag()
        return max(-(-total // self.lag_threshold), 1) if active > 0 else 0

    def _lag_of(self, partition: int, committed: int, end: int) -> tuple[int, int]:
        if committed == NO_OFFSET:
            unread = 1 if self.offset_reset_policy == "latest" else end
            return (0, 0) if self.scale_to_zero_on_invalid_offset else (unread, unread)
        if self.exclude_persistent_lag:
            if self._before.get(partition) == committed:
                return 0, end - committed
            self._before[partition] = committed
        return end - committed, end - committed


Status = Literal["OK", "WARN", "STALL", "STOP", "REWIND"]


@dataclass(frozen=True)
class Commit:
    """A commit that was seen: when, what, and the lag then."""

    at_s: float
    offset: int
    lag: int


def status_of(commits: Sequence[Commit], recent_ends: Sequence[int], lag_now: int, now_s: float) -> Status:
    """Burrow's rules, in its order: a partition without lag is never in trouble, nor one with too few commits."""
    if len(commits) < _COMMITS_MIN or lag_now <= 0:
        return "OK"
    stopped = now_s - commits[-1].at_s > commits[-1].at_s - commits[0].at_s
    if stopped and not any(end <= commits[-1].offset for end in recent_ends):
        return "STOP"
    pairs = list(pairwise(commits))
    back = next((number for number, (one, other) in enumerate(pairs) if other.offset < one.offset), None)
    if back is not None and not any(later.offset >= commits[back].offset for _, later in pairs[back:]):
        return "REWIND"
    if all(commit.lag > 0 for commit in commits):
        if all(one.offset == other.offset for one, other in pairs):
            return "STALL"
        if not any(other.lag < one.lag for one, other in pairs):
            return "WARN"
    return "OK"


@dataclass
class Burrow:
    """A sliding window over one group and topic. A poll counts as a commit while the group has members."""

    asked: Asked
    group: str
    topic: str
    intervals: int = 10
    _commits: dict[int, deque[Commit]] = field(default_factory=dict)
    _ends: dict[int, deque[int]] = field(default_factory=dict)

    def poll(self, now_s: float) -> dict[int, Status]:
        """Look, and say how each partition is that the group has committed for."""
        partitions = self.asked.partitions(self.topic)
        committed = self.asked.committed(self.group, self.topic, partitions)
        ends, alive = self.asked.ends(self.topic, partitions), self.asked.members(self.group) > 0
        self._commits = {one: observed for one, observed in self._commits.items() if committed.get(one, NO_OFFSET) >= 0}
        found: dict[int, Status] = {}
        for one, offset in committed.items():
            if offset == NO_OFFSET:
                continue
            commits = self._commits.setdefault(one, deque(maxlen=self.intervals))
            heads = self._ends.setdefault(one, deque(maxlen=self.intervals))
            lag = max(ends[one] - offset, 0)
            heads.append(ends[one])
            if alive or not commits or commits[-1].offset != offset:
                commits.append(Commit(now_s, offset, lag))
            found[one] = status_of(commits, heads, lag, now_s)
        return found
