"""Runs the decisions on streams groups against the store: read the group, decide, write if it is still the same.

Any broker serves any member. The conditional write refuses a decision on an old copy, also one that only answers an
error. Internal topics that are missing are created before the decision is stored, so that the member that brings the
topology has its tasks with its first answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

import structlog

from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound, KafkaError
from tidegate.groups.configs import STREAMS_HEARTBEAT_INTERVAL_MS, STREAMS_SESSION_TIMEOUT_MS, STREAMS_VALUES
from tidegate.groups.consumer.membership import Expired, Removal
from tidegate.groups.consumer.model import ConsumerGroupState, GroupEvent
from tidegate.groups.consumer.topic_view import PARTITIONS_OF_A_TOPIC, CatalogTopics, TopicView
from tidegate.groups.consumer.topics import Topics
from tidegate.groups.consumer.update import STALE, UPDATE_EPOCH_GROUP, StoredForm, expired_members, update_call
from tidegate.groups.decision_queue import DecisionQueue, StaleDecision, computed, stored_sizes
from tidegate.groups.expire_and_retry import BrokerName, nobody
from tidegate.groups.streams import stored
from tidegate.groups.streams.decisions import StreamsDecided, decide, expire, remove
from tidegate.groups.streams.internal_topics import CreateTopic, create_missing
from tidegate.groups.streams.model import StreamsAnswer, StreamsGroup, StreamsHeartbeat
from tidegate.groups.streams.topology import SHOWN_MAX, StatusCode, shown
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.store import Store

_ROUNDS_MAX: Final = 20
"""Writes of one decision on a group as it was read: each refusal means that a deadline passed."""
_READS_MAX: Final = 10
_PAIRS_OF_SIZE: Final = 100
"""Of a heartbeat and a member: reconciling one walks over the others."""

logger = structlog.get_logger()

Work = StreamsHeartbeat | Removal | None
"""None only expires what is overdue."""


class StreamsGroups(DecisionQueue[StreamsHeartbeat | Removal, StreamsAnswer, StreamsGroup]):
    """The streams groups of this broker's requests. `broker` is the broker name in events."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        topics: CatalogTopics,
        create_topic: CreateTopic,
        broker: BrokerName = nobody,
    ) -> None:
        super().__init__(store, "streams-group", shares_of(settings.memory_max))
        self._settings, self._topics, self._create_topic, self._broker = settings, topics, create_topic, broker

    async def _read_for(self, keys: GroupKeys, works: Sequence[Work]) -> StreamsGroup:
        return await self.read(keys)

    async def _decide(self, keys: GroupKeys, base: StreamsGroup, works: Sequence[Work]) -> list[StreamsDecided]:
        expired: list[Expired] = []
        failures: str | None = None
        heartbeats = [work for work in works if isinstance(work, StreamsHeartbeat)]
        for _ in range(_ROUNDS_MAX):
            group = base.copy()
            topics = await self._fresh_topics(keys, base, works)
            apply = partial(_apply, group, works, topics, self._settings, expired)
            answers = await computed(_sizes(group, works, topics), apply)
            if group.configured.missing and heartbeats and failures is None:
                failures = await self._create_missing(keys, group, heartbeats)
                continue
            if _became_stable(base, group):
                group.events.append(GroupEvent("stable"))
            code, *reply = await self._write(keys, base, group, expired)
            if code == 0:
                if group.is_changed:
                    self._report_stored(keys, group.epoch, reply[0])
                self._remember(keys, group, reply[0])
                interval_ms = group.heartbeat_interval_ms or STREAMS_HEARTBEAT_INTERVAL_MS
                return [_completed(answer, interval_ms, failures or "") for answer in answers]
            if code == STALE:
                raise StaleDecision
            expired += expired_members(reply)
        raise CoordinatorLoadInProgress("deadlines of the group pass faster than it can be decided on")

    async def _fresh_topics(self, keys: GroupKeys, group: StreamsGroup, works: Sequence[Work]) -> TopicView:
        """The topics; read again if they may have changed since the group's target, or a topology is new."""
        topics = self._topics.view(keys.org)
        joins = any(isinstance(work, StreamsHeartbeat) and work.topology is not None for work in works)
        if joins or topics.version != group.topics_version:
            await self._topics.refresh()
            topics = self._topics.view(keys.org)
        return topics

    async def _create_missing(
        self, keys: GroupKeys, group: StreamsGroup, heartbeats: Sequence[StreamsHeartbeat]
    ) -> str:
        """Create the missing internal topics that a member may create; what went wrong."""
        missing = group.configured.missing
        failures = shown(await create_missing(self._create_topic, keys.org, missing, heartbeats), "; ")
        names = [topic.name for topic in missing[:SHOWN_MAX]]
        if failures:
            logger.warning(
                "streams_topics_not_created", group=keys.ref, count=len(missing), topics=names, failures=failures
            )
        else:
            logger.info("streams_topics_created", group=keys.ref, count=len(missing), topics=names)
        await self._topics.refresh()
        return failures

    # -- the store

    async def read(self, keys: GroupKeys) -> StreamsGroup:
        """Read a group. Raises GroupIdNotFound for one of another type, StoreUnavailable, CoordinatorLoadInProgress."""
        head_command: list[Arg] = ["HMGET", keys.group, *stored.HEAD]
        for _ in range(_READS_MAX):
            before, records, targets, configs, after = await read_in_order(
                self._store, self._store.read,
                head_command,
                ("HGETALL", keys.consumers), ("HGETALL", keys.targets), ("HMGET", keys.configs, *STREAMS_VALUES),
                head_command,
            )  # fmt: skip
            if before != after:
                continue
            if stored.is_other_type(before):
                raise GroupIdNotFound("the group is not a streams group")
            load = partial(stored.load_group, before, records, targets)
            group = await computed(stored_sizes(records, targets), load)
            if not group.is_streams:
                group.use_configs([int(value or 0) for value in configs])
            return group
        raise CoordinatorLoadInProgress("the group changes faster than it can be read")

    async def _write(
        self, keys: GroupKeys, base: StreamsGroup, group: StreamsGroup, expired: Sequence[Expired]
    ) -> list[Any]:
        """Store a decision; the script's reply with its code."""
        session_timeout_ms = group.session_timeout_ms or STREAMS_SESSION_TIMEOUT_MS
        form = StoredForm(
            type=stored.TYPE,
            configs=f"{group.session_timeout_ms} {group.heartbeat_interval_ms} {group.standby_replicas}",
            fields=lambda: stored.dump_fields(group),
            record=lambda member_id: stored.dump_member(group, group.members[member_id], session_timeout_ms),
            target=lambda member_id: stored.dump_target(group, group.targets[member_id]),
            session_timeout_ms=lambda member_id: session_timeout_ms,
            partitions=partial(_task_count, group),
            names=lambda _: 0 if group.topology is None else group.topology.topic_count,
        )
        call = await update_call(self._store, keys, self._broker(), base, group, expired, session_timeout_ms, form)
        return await self._run_script(UPDATE_EPOCH_GROUP, *call)


def _sizes(group: StreamsGroup, works: Sequence[Work], topics: TopicView) -> Iterator[int]:
    """Of the topics that a decision compares, of the tasks that it assigns or is sent, and of the members."""
    heartbeats = [work for work in works if isinstance(work, StreamsHeartbeat)]
    members = len(group.members) + len(heartbeats)
    yield members + members * len(heartbeats) // _PAIRS_OF_SIZE
    joined = [one.topology for one in heartbeats if one.topology is not None]
    yield from (one.topic_count // PARTITIONS_OF_A_TOPIC for one in joined)
    topology = joined[0] if joined and not group.members else group.topology
    walks = 1 + group.standby_replicas * members // PARTITIONS_OF_A_TOPIC  # of a standby task over all members
    for part in () if topology is None else topology.subtopologies:
        names = chain(part.sources, part.repartition_sinks, (topic.name for topic in part.changelogs))
        yield from (size * walks for size in topics.sizes(names))
    yield from (len(one.owned or ()) // PARTITIONS_OF_A_TOPIC for one in heartbeats)


def _task_count(group: StreamsGroup, member_id: str) -> int:
    """Of a member's record and target."""
    member = group.members[member_id]
    return len(member.assigned) + len(member.standby) + len(group.targets.get(member_id, ()))


def _apply(
    group: StreamsGroup, works: Sequence[Work], topics: Topics, settings: Settings, expired: Sequence[Expired]
) -> list[StreamsDecided]:
    """Decide on a tick's work; administrators' removals come before the heartbeats."""
    expire(group, expired)
    answers = [remove(group, work) if isinstance(work, Removal) else StreamsAnswer("", group.epoch) for work in works]
    heartbeats = [(place, work) for place, work in enumerate(works) if isinstance(work, StreamsHeartbeat)]
    decided = decide(group, [work for _, work in heartbeats], topics, settings.group_max_size)
    for (place, _), answer in zip(heartbeats, decided, strict=True):
        answers[place] = answer
    return answers


def _became_stable(base: StreamsGroup, group: StreamsGroup) -> bool:
    return group.is_changed and group.state is ConsumerGroupState.STABLE and base.state is not group.state


def _completed(answer: StreamsDecided, interval_ms: int, failures: str) -> StreamsDecided:
    """The answer with the heartbeat interval, and why internal topics are still missing."""
    if isinstance(answer, KafkaError) or answer.member_epoch < 0:
        return answer
    statuses = tuple(
        (code, f"{detail}. {failures}".removesuffix(". ") if code is StatusCode.MISSING_INTERNAL_TOPICS else detail)
        for code, detail in answer.statuses
    )
    return replace(answer, statuses=statuses, heartbeat_interval_ms=interval_ms)
