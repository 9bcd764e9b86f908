"""Runs the decisions on share groups against the store: read the group, decide, write if it is still the same.

Any broker serves any member. The heartbeats of one group that arrive while a decision is under way share the next one.
The conditional write refuses a decision on an old copy, also one that only answers an error. The share-partitions of
new topics are initialised before the group is written, so an assigned partition always has a start offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from secrets import token_hex
from typing import Any, Final

from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound, KafkaError
from tidegate.groups.consumer.decisions import Decided
from tidegate.groups.consumer.model import HeartbeatAnswer
from tidegate.groups.consumer.stored import dump_target
from tidegate.groups.consumer.topic_view import PARTITIONS_OF_A_TOPIC, CatalogTopics, TopicView
from tidegate.groups.decision_queue import DecisionQueue, StaleDecision, computed, stored_sizes
from tidegate.groups.expire_and_retry import BrokerName, extend_sessions_after_outage, nobody
from tidegate.groups.identity import candidate
from tidegate.groups.model import GROUP_EVENTS_MAX
from tidegate.groups.share import stored
from tidegate.groups.share.decisions import decide, expire
from tidegate.groups.share.model import ShareGroup, ShareHeartbeat
from tidegate.groups.share.starting import StartOffsets
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

UPDATE_GROUP = Script("share/update_group")

_STALE: Final = -101
SIZE_MAX: Final = 1_000
"""Members of a share group; every assignment is computed of all of them."""
_ROUNDS_MAX: Final = 20
"""Writes of one decision on a group as it was read: each refusal means that a session ended."""
_READS_MAX: Final = 10

OnDecided = Callable[[Decided], None]
"""Called once with the answer of a heartbeat, or with its error."""

Work = ShareHeartbeat | None
"""None only expires what is overdue."""


class ShareGroups(DecisionQueue[ShareHeartbeat, HeartbeatAnswer, ShareGroup]):
    """The share groups of this broker's requests. `broker` is the broker name in events."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        topics: CatalogTopics,
        start_offsets: StartOffsets,
        broker: BrokerName = nobody,
    ) -> None:
        super().__init__(store, "share-group", shares_of(settings.memory_max))
        self._settings, self._topics, self._broker = settings, topics, broker
        self._start_offsets = start_offsets

    async def _read_for(self, keys: GroupKeys, works: Sequence[Work]) -> ShareGroup:
        return await self.read(keys)

    async def _decide(self, keys: GroupKeys, base: ShareGroup, works: Sequence[Work]) -> list[Decided]:
        expired: list[str] = []
        for _ in range(_ROUNDS_MAX):
            topics = await self._fresh_topics(keys, base, works)
            group = base.copy()
            expire(group, expired)
            heartbeats = [work for work in works if work is not None]
            size_max = min(self._settings.group_max_size, SIZE_MAX)
            apply = partial(decide, group, heartbeats, topics, size_max)
            decided = iter(await computed(_sizes(group, heartbeats, topics), apply))
            await self._start_offsets.initialise(keys, base.topics, group.topics)
            code, *reply = await self._write(keys, base, group, expired)
            if code == 0:
                self._remember(keys, group, reply[0])
                answers = [HeartbeatAnswer("", group.epoch) if one is None else next(decided) for one in works]
                return [_with_interval(answer, reply[1]) for answer in answers]
            if code == _STALE:
                raise StaleDecision
            expired += [member_id.decode() for member_id in reply]
        raise CoordinatorLoadInProgress("sessions of the group end faster than it can be decided on")

    async def _fresh_topics(self, keys: GroupKeys, group: ShareGroup, works: Sequence[Work]) -> TopicView:
        """The topics; read again if they may have changed since the group's target, or a subscription is new."""
        topics = self._topics.view(keys.org)
        subscribes = any(work is not None and work.topics is not None for work in works)
        if subscribes or topics.version != group.topics_version:
            await self._topics.refresh()
            topics = self._topics.view(keys.org)
        return topics

    # -- the store

    async def read(self, keys: GroupKeys) -> ShareGroup:
        """Read a group. Raises GroupIdNotFound for one of another type, StoreUnavailable, CoordinatorLoadInProgress."""
        head_command: list[Arg] = ["HMGET", keys.group, *stored.HEAD]
        for _ in range(_READS_MAX):
            before, records, targets, after = await read_in_order(
                self._store, self._store.read,
                head_command, ("HGETALL", keys.consumers), ("HGETALL", keys.targets), head_command,
            )  # fmt: skip
            if before != after:
                continue
            if before[0] is not None and before[3] != stored.TYPE.encode():
                raise GroupIdNotFound("the group is not a share group")
            load = partial(stored.load_group, before, records, targets)
            return await computed(stored_sizes(records, targets), load)
        raise CoordinatorLoadInProgress("the group changes faster than it can be read")

    async def _write(self, keys: GroupKeys, base: ShareGroup, group: ShareGroup, expired: Sequence[str]) -> list[Any]:
        """Store a decision; the script's reply with its code."""
        shard = keys.shard_keys
        key_names = [keys.group, keys.consumers, keys.targets, keys.consumer_sessions]
        key_names += [shard.groups, shard.deadlines, shard.events, keys.configs]
        group.write_id = token_hex(8) if group.is_changed else base.write_id
        session_timeout_ms = self._settings.group_consumer_session_timeout_ms
        new_id = "" if base.own_id else candidate(keys)
        args: list[Arg] = [keys.ref, GROUP_EVENTS_MAX, self._broker()]
        args += [base.own_id, base.version, base.write_id, group.write_id, new_id, session_timeout_ms]
        args += [self._settings.group_consumer_heartbeat_interval_ms, shard.wake]
        group.own_id = base.own_id or new_id.partition(" ")[0]
        for one in await computed(_written_sizes(group), partial(_lists, group, expired, session_timeout_ms)):
            args += [len(one), *one]
        extend_sessions_after_outage(self._store, keys, consumers=True)
        return await self._run_script(UPDATE_GROUP, key_names, args)


def _with_interval(answer: Decided, interval_ms: int) -> Decided:
    if isinstance(answer, KafkaError) or answer.member_epoch < 0:
        return answer
    return replace(answer, heartbeat_interval_ms=interval_ms)


def _sizes(group: ShareGroup, heartbeats: Iterable[ShareHeartbeat], topics: TopicView) -> Iterator[int]:
    """Of the subscriptions that a decision compares."""
    for subscribed in chain((one.topics for one in heartbeats), (one.topics for one in group.members.values())):
        yield 1
        yield from topics.sizes(subscribed or ())


def _written_sizes(group: ShareGroup) -> Iterator[int]:
    """Of the records, targets and topics that a decision writes."""
    yield len(group.topics) // PARTITIONS_OF_A_TOPIC if group.is_changed else 0
    for member_id in group.dirty | group.dirty_targets:
        member, target = group.members[member_id], group.targets.get(member_id, ())
        yield 1 + (len(member.topics) + len(member.assigned) + len(target)) // PARTITIONS_OF_A_TOPIC


def _lists(group: ShareGroup, expired: Sequence[str], session_timeout_ms: int) -> list[list[Arg]]:
    """The counted lists of the script, in its order."""
    fields: list[Arg] = []
    if group.is_changed:
        for name, value in stored.dump_fields(group).items():
            fields += (name, value)
    records: list[Arg] = []
    for member_id in sorted(group.dirty):
        records += (member_id, stored.dump_member(group.members[member_id], session_timeout_ms))
    targets: list[Arg] = []
    for member_id in sorted(group.dirty_targets):
        targets += (member_id, dump_target(group.targets[member_id]))
    events: list[Arg] = []
    for event in group.events:
        events += (event.kind, event.member_id, event.client_id[:255], event.client_host, event.cause, event.detail)
    return [list(expired), fields, records, targets, sorted(group.removed), sorted(group.renewed), events]
