"""Runs the decisions on consumer groups against the store: read the group, decide, write if it is still the same.

Any broker serves any member. The heartbeats of one group that arrive while a decision is under way share the next one.
The conditional write refuses a decision on an old copy, also one that only answers an error. Nothing but the cache of
groups is kept in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidegate.errors import CoordinatorLoadInProgress, KafkaError
from tidegate.groups.configs import TIMES
from tidegate.groups.consumer import conversion, stored
from tidegate.groups.consumer.classic_members import ClassicCall, ClassicJoin
from tidegate.groups.consumer.conversion import MetadataCodec, MigrationPolicy
from tidegate.groups.consumer.decisions import Decided, Request, decide, expire, remove
from tidegate.groups.consumer.errors import OtherGroupType
from tidegate.groups.consumer.membership import Expired, Removal
from tidegate.groups.consumer.model import (
    JOIN_EPOCH,
    ConsumerGroup,
    ConsumerGroupState,
    GroupEvent,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from tidegate.groups.consumer.topic_view import CatalogTopics, TopicView
from tidegate.groups.consumer.topics import Topics
from tidegate.groups.consumer.update import (
    STALE,
    TOO_EARLY,
    UPDATE_EPOCH_GROUP,
    StoredForm,
    expired_members,
    update_call,
)
from tidegate.groups.decision_queue import DecisionQueue, StaleDecision, computed, stored_sizes
from tidegate.groups.expire_and_retry import (
    BrokerName,
    group_script_args,
    group_script_keys,
    nobody,
)
from tidegate.groups.expiry import expire_group
from tidegate.groups.model import GroupState
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

DOWNGRADE_GROUP = Script("groups/downgrade_group")

_ROUNDS_MAX: Final = 20
"""Writes of one decision on a group as it was read: each refusal means that a deadline passed, or has not come."""
_READS_MAX: Final = 10

_PREPARING: Final = GroupState.PREPARING.encode()
"""Also of a group whose members left before its first generation."""

OnDecided = Callable[[Decided], None]
"""Called once with the answer of a heartbeat, or with its error."""


Work = Request | Removal | None
"""None only expires what is overdue, and answers with the state."""


class ConsumerGroups(DecisionQueue[Request | Removal, HeartbeatAnswer, ConsumerGroup]):
    """The consumer groups of this broker's requests. `broker` is the broker name in events.

    `blobs` reads and writes the bytes that members of a classic group exchange.
    """

    def __init__(
        self, store: Store, settings: Settings, topics: CatalogTopics, blobs: MetadataCodec, broker: BrokerName = nobody
    ) -> None:
        super().__init__(store, "consumer-group", shares_of(settings.memory_max))
        self._settings, self.topics, self._broker = settings, topics, broker
        self._blobs = blobs

    async def _decide(self, keys: GroupKeys, base: ConsumerGroup, works: Sequence[Work]) -> list[Decided]:
        expired: list[Expired] = []
        may_assign = True
        for _ in range(_ROUNDS_MAX):
            topics = await self._fresh_topics(keys, base, works)
            group = base.copy()
            group.may_assign = may_assign
            apply = partial(_apply, group, works, topics, self._settings.group_max_size, expired)
            answers = await computed(_sizes(group, works, topics), apply)
            if (
                group.is_changed
                and base.state is not ConsumerGroupState.STABLE
                and group.state is ConsumerGroupState.STABLE
            ):
                group.events.append(GroupEvent("stable"))
            if base.was_classic and group.is_all_classic:
                changed = OtherGroupType("the group stays classic: nobody joined it")
                return [answer if isinstance(answer, KafkaError) else changed for answer in answers]
            downgrades = conversion.must_downgrade(group, self._policy)
            write = self._downgrade if downgrades else self._write
            code, *reply = await write(keys, base, group, topics, expired)
            if code == 0:
                if group.is_changed:
                    self._report_stored(keys, group.epoch, reply[0])
                if downgrades:
                    self._forget(keys)
                else:
                    group.was_classic = False
                    self._remember(keys, group, reply[0])
                interval_ms = group.heartbeat_interval_ms or self._settings.group_consumer_heartbeat_interval_ms
                return [
                    replace(answer, heartbeat_interval_ms=interval_ms if answer.member_epoch >= 0 else 0)
                    if isinstance(answer, HeartbeatAnswer)
                    else answer
                    for answer in answers
                ]
            if code == STALE:
                raise StaleDecision
            if code == TOO_EARLY:
                may_assign = False
            else:
                expired += expired_members(reply)
        raise CoordinatorLoadInProgress("deadlines of the group pass faster than it can be decided on")

    @property
    def _policy(self) -> MigrationPolicy:
        return MigrationPolicy(self._settings.group_consumer_migration_policy)

    async def _read_for(self, keys: GroupKeys, works: Sequence[Work]) -> ConsumerGroup:
        """The stored group; a classic group with members as the consumer group that a member of KIP-848 makes of it."""
        try:
            group = await self.read(keys)
        except OtherGroupType:
            joins = any(isinstance(work, HeartbeatRequest) and work.member_epoch == JOIN_EPOCH for work in works)
            if not (joins and self._policy.upgrades):
                raise
            await expire_group(self._store, keys, self._broker())
            await self.topics.refresh()
            group = await self._read_classic(keys, self.topics.view(keys.org))
        if not group.is_consumer or group.was_classic:
            group.use_times(await self._store.read("HMGET", keys.configs, *TIMES))
        return group

    async def _read_classic(self, keys: GroupKeys, topics: TopicView) -> ConsumerGroup:
        head_command: list[Arg] = ["HMGET", keys.group, *conversion.CLASSIC_HEAD]
        for _ in range(_READS_MAX):
            before, records, subscriptions, assignments, after = await read_in_order(
                self._store, self._store.read,
                head_command,
                ("HGETALL", keys.members), ("HGETALL", keys.subscriptions), ("HGETALL", keys.assignments),
                head_command,
            )  # fmt: skip
            if before != after:
                continue
            if not records and before[4] != _PREPARING:
                return await self.read(keys)  # the members left meanwhile
            return conversion.from_classic(before, records, subscriptions, assignments, topics, self._blobs)
        raise CoordinatorLoadInProgress("the group changes faster than it can be read")

    async def _fresh_topics(self, keys: GroupKeys, group: ConsumerGroup, works: Sequence[Work]) -> TopicView:
        """The topics; read again if they may have changed since the group's target, or a subscription is new."""
        topics = self.topics.view(keys.org)
        subscribes = any(
            isinstance(work, ClassicJoin)
            or (isinstance(work, HeartbeatRequest) and (work.topics is not None or work.regex is not None))
            for work in works
        )
        if subscribes or topics.version != group.topics_version:
            await self.topics.refresh()
        return await self.topics.view_of(keys.org, _patterns(group, works))

    # -- the store

    async def read(self, keys: GroupKeys) -> ConsumerGroup:
        """Read a group. Raises OtherGroupType, StoreUnavailable, CoordinatorLoadInProgress if it never stands still."""
        head_command: list[Arg] = ["HMGET", keys.group, *stored.HEAD]
        for _ in range(_READS_MAX):
            before, records, targets, after = await read_in_order(
                self._store, self._store.read,
                head_command, ("HGETALL", keys.consumers), ("HGETALL", keys.targets), head_command,
            )  # fmt: skip
            if before != after:
                continue
            if stored.is_other_type(before):
                raise OtherGroupType("the group's members use another protocol")
            load = partial(stored.load_group, before, records, targets)
            return await computed(stored_sizes(records, targets), load)
        raise CoordinatorLoadInProgress("the group changes faster than it can be read")

    async def _write(
        self, keys: GroupKeys, base: ConsumerGroup, group: ConsumerGroup, topics: Topics, expired: Sequence[Expired]
    ) -> list[Any]:
        """Store a decision; the script's reply with its code."""
        if base.was_classic:
            conversion.begin(group)
        session_timeout_ms = group.session_timeout_ms or self._settings.group_consumer_session_timeout_ms

        def own_timeout_ms(member_id: str) -> int:
            member = group.members[member_id]
            timeout_ms = session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
            return timeout_ms + (group.rollout_grace_ms if member.awaits_successor else 0)

        form = StoredForm(
            type=stored.TYPE,
            configs=group.times,
            fields=lambda: stored.dump_fields(group),
            record=lambda member_id: stored.dump_member(group.members[member_id], session_timeout_ms),
            target=lambda member_id: stored.dump_target(group.targets[member_id]),
            session_timeout_ms=own_timeout_ms,
            partitions=lambda member_id: len(group.members[member_id].assigned) + len(group.targets.get(member_id, ())),
            min_interval_ms=group.assignment_interval_ms,
            names=lambda member_id: len(group.members[member_id].topics),
        )
        key_names, args = await update_call(
            self._store, keys, self._broker(), base, group, expired, session_timeout_ms, form
        )
        if base.was_classic:
            key_names += group_script_keys(keys)[1:8]
        return await self._run_script(UPDATE_EPOCH_GROUP, key_names, args)

    async def _downgrade(
        self, keys: GroupKeys, base: ConsumerGroup, group: ConsumerGroup, topics: Topics, expired: Sequence[Expired]
    ) -> list[Any]:
        """Store a decision that leaves only classic members as a classic group; the script's reply with its code."""
        key_names = [*group_script_keys(keys), keys.consumers, keys.targets, keys.consumer_sessions, keys.revocations]
        args = [*group_script_args(self._store, keys, self._broker()), base.own_id, base.version, base.write_id]
        args += conversion.downgrade_args(base, group, topics, self._blobs)
        return await self._run_script(DOWNGRADE_GROUP, key_names, args)


def _patterns(group: ConsumerGroup, works: Sequence[Work]) -> set[str]:
    """The patterns that a decision on these requests resolves."""
    asked = {work.regex for work in works if isinstance(work, HeartbeatRequest)}
    asked.update(member.regex for member in group.members.values())
    return {regex for regex in asked if regex}


def _sizes(group: ConsumerGroup, works: Sequence[Work], topics: TopicView) -> Iterator[int]:
    """Of the subscriptions that a decision compares."""
    for work in works:
        request = work.request if isinstance(work, ClassicJoin) else work
        if isinstance(request, HeartbeatRequest):
            yield from topics.sizes(request.topics or (), request.regex or "")
    for member in group.members.values():
        yield 1
        yield from topics.sizes(member.topics, member.regex)


def _apply(
    group: ConsumerGroup, works: Sequence[Work], topics: Topics, size_max: int, expired: Sequence[Expired]
) -> list[Decided]:
    """Decide on a tick's work; administrators' removals come before the heartbeats."""
    expire(group, expired)
    answers = [remove(group, work) if isinstance(work, Removal) else HeartbeatAnswer("", group.epoch) for work in works]
    requests = [
        (place, work)
        for place, work in enumerate(works)
        if isinstance(work, HeartbeatRequest | ClassicJoin | ClassicCall)
    ]
    decided = decide(group, [work for _, work in requests], topics, size_max)
    for (place, _), answer in zip(requests, decided, strict=True):
        answers[place] = answer
    return answers
