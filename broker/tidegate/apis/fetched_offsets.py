"""OffsetFetch (inline: no task and no future while the topics are cached)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Hashable
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.all_offsets import all_in_parts, has_parts
from tidegate.apis.bounded_answers import each_once, refuse_repeated
from tidegate.apis.call import Call
from tidegate.apis.plain_offset_fetch import start_plain
from tidegate.apis.record_groups import program_offsets
from tidegate.apis.registry import inline_api
from tidegate.apis.slices import batches_of, join_topics
from tidegate.apis.topic_refresh import NAMES_UNTIL, Label, code_of, label_of, refresh_again, topic_of
from tidegate.groups.consumer.commits import check_fetching_member
from tidegate.groups.offsets import UNSTABLE_FIELD, Committed, offset_field, split_field
from tidegate.log.offload import ENCODED
from tidegate.protocol import error_responses, group_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.store.keys import GroupKeys
from tidegate.store.outcome import Failure
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()

_NONE: Final = ErrorCode.none.value
_UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition.value
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id.value
_UNSTABLE: Final = ErrorCode.unstable_offset_commit.value
_UNSTABLE_OFFSET: Final = -1 << 64
"""Stands for a partition whose offset an open transaction may change; no client can commit it, for it has 65 bits."""
_GROUP_ERRORS_FROM: Final = 8
_METER: Final = metrics.apis[ApiKey.OFFSET_FETCH]

FetchedTopics = list[tuple[Label, list[tuple[int, int, int, str, int]]]]
"""Per topic, per partition: index, offset, leader epoch, metadata, code."""


def _fetch_in_parts(call: Call, request: Any) -> None:
    """Read several groups, all commits of a group, or many partitions, part by part, one request at a time."""
    call.run_alone()
    call.answer_later(_answer_in_parts(call, request), request)


async def _answer_in_parts(call: Call, request: Any) -> None:
    """Answer each group as it is read; those beyond the bytes of an answer with a retriable code."""
    admission = await call.context.offset_answers.admit(1)
    try:
        call.reply(await _answer_of_groups(call, request))
    finally:
        admission.end()


async def _answer_of_groups(call: Call, request: Any) -> list[bytes]:
    async def read(group: Any) -> bytes:
        try:
            code, topics = await _read_in_parts(call, request, group)
        except Exception as error:  # noqa: BLE001 - the other groups are answered
            return refuse(group, error)
        return await ENCODED.run(group_writers.fetched_group, call.version, group.group_id, code, topics)

    def refuse(group: Any, error: Exception) -> bytes:
        part = _PartReply(call, Fields(request, groups=[group]))
        part.refuse(0, error)
        [refused] = part.future.result()
        return group_writers.fetched_group(call.version, *refused)

    def key(group: Any) -> Hashable:
        topics = None
        if group.topics is not None:
            topics = tuple((label_of(call, topic), tuple(topic.partition_indexes)) for topic in group.topics)
        return group.group_id, group.member_id, group.member_epoch, topics

    return group_writers.fetched_groups(call.version, await each_once(request.groups, read, refuse, key))


async def _read_in_parts(call: Call, request: Any, group: Any) -> tuple[int, FetchedTopics]:
    """A group's code and topics."""
    topics: FetchedTopics = []
    worst: int = _NONE
    async for part in _parts(call, request, group):
        [(_, code, found)] = await part.future
        worst = worst or code
        topics += found
    if worst and (call.version >= _GROUP_ERRORS_FROM or group.topics is None):
        topics = []
    return worst, join_topics(topics)


async def _parts(call: Call, request: Any, group: Any) -> AsyncIterator[_PartReply]:
    """The parts of a group, which are being read."""
    if group.topics is None:
        keys = call.store.group_keys(call.org, group.group_id)
        if group.member_id is not None:
            await check_fetching_member(call.store, keys, group.member_id, group.member_epoch)
        async for commits in all_in_parts(call.context.offsets, keys):
            part = _PartReply(call, Fields(request, groups=[group]))
            part.fetched(0, commits)
            yield part
        return
    if has_parts(group):
        await refuse_repeated((label_of(call, topic), topic.partition_indexes) for topic in group.topics)
    for wanted in batches_of(group.topics, "partition_indexes") if group.topics else [group.topics]:
        part = _PartReply(call, Fields(request, groups=[Fields(group, topics=wanted)]))
        unknown = part.unknown() if call.version > NAMES_UNTIL or not call.version else []
        if unknown:
            await part.ask_after_refresh(unknown)
        else:
            part.ask()
        yield part


@inline_api(
    ApiKey.OFFSET_FETCH,
    first=0,
    last=10,
    large=_fetch_in_parts,
    away=ErrorCode.not_coordinator,
    safe_late=True,
    prepared=True,
    error=error_responses.offset_fetch,
)
def offset_fetch(call: Call, request: Any) -> None:
    """Read a group's committed offsets, independent of members and generations; changes nothing.

    v0: read ZooKeeper in Kafka; unknown partitions are errors. v2: topics null means all; an error at the top. v5:
    leader epoch. v7: require_stable (KIP-447): UNSTABLE_OFFSET_COMMIT where an open transaction may change the
    offset. v8: several groups (KIP-709). v9: member id and epoch (KIP-848), which classic groups
    ignore. v10: topics by id.
    """
    if start_plain(call, request, _answer_read):
        return
    if len(request.groups) > 1 or any(map(has_parts, request.groups)):
        _fetch_in_parts(call, request)
        return
    reply = _FetchReply(call, request)
    version = call.version
    unknown = reply.unknown() if version > NAMES_UNTIL or not version else []
    if unknown:
        call.answer_later(reply.ask_after_refresh(unknown), request)
    else:
        reply.ask()


def _answer_read(call: Call, request: Any, read: dict[str, Committed] | Failure | Exception) -> None:
    """Answer a request for one group whose commits were read."""
    reply = _FetchReply(call, request)
    if isinstance(read, Exception):
        reply.refuse(0, read)
    else:
        reply.fetched(0, read)


class _FetchReply:
    """One OffsetFetch while its groups are read; each group has a fixed index in the answer."""

    __slots__ = ("_by_id", "_call", "_groups", "_outstanding", "_stable", "_wanted")

    def __init__(self, call: Call, request: Any) -> None:
        self._call = call
        self._by_id = call.version > NAMES_UNTIL
        self._stable: bool = request.require_stable
        self._wanted = request.groups
        self._groups: list[tuple[str, int, FetchedTopics]] = [(group.group_id, _NONE, []) for group in request.groups]
        self._outstanding = len(self._groups)

    # -- reading

    def unknown(self) -> list[Label]:
        """Topics of the request that this broker has not cached, or in v0 has cached with fewer partitions."""
        if not self._by_id:
            return [
                topic.name
                for group in self._wanted
                for topic in group.topics
                if not all(self._exists(topic.name, index) for index in topic.partition_indexes)
            ]
        asked = {topic.topic_id for group in self._wanted for topic in group.topics or ()}
        return [topic_id for topic_id in asked if topic_of(self._call, topic_id) is None]

    async def ask_after_refresh(self, unknown: list[Label]) -> None:
        """Refresh the topics, then read; topics that are still unknown are answered as unknown."""
        try:
            await refresh_again(self._call, unknown)
        except Exception as error:  # noqa: BLE001 - the request must be answered
            for place in range(len(self._wanted)):
                self.refuse(place, error)
        else:
            self.ask()

    def ask(self) -> None:
        """Read each group; those of all commits are read by `all_in_parts`."""
        if not self._wanted:
            self._finish()
        for place, group in enumerate(self._wanted):
            fields = self._fields(group)
            if self._stable and fields:
                fields.append(UNSTABLE_FIELD)
            keys = self._call.store.group_keys(self._call.org, group.group_id)
            if group.member_id is None:
                self._call.context.offsets.fetch(keys, fields, partial(self.fetched, place))
            else:
                self._later(place, self._ask_as_member(place, keys, group, fields))

    async def _ask_as_member(self, place: int, keys: GroupKeys, group: Any, fields: list[str]) -> None:
        """Check the member's epoch if the group is one of KIP-848, then read."""
        await check_fetching_member(self._call.store, keys, group.member_id, group.member_epoch)
        self._call.context.offsets.fetch(keys, fields, partial(self.fetched, place))

    def _later(self, place: int, work: Coroutine[Any, Any, None]) -> None:
        """Run the rest of the answer for one group in a task."""
        self._call.context.tasks.start(self._or_refuse(place, work))

    async def _or_refuse(self, place: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the request must be answered
            self.refuse(place, error)

    def _fields(self, group: Any) -> list[str]:
        """The fields of the partitions that are asked for, of topics that exist."""
        return [
            offset_field(name, index)
            for topic in group.topics
            if (name := self._name(topic)) is not None
            for index in topic.partition_indexes
        ]

    def _name(self, wanted: Any) -> str | None:
        """The name of a requested topic; None for an unknown id."""
        if not self._by_id:
            name: str = wanted.name
            return name
        topic = topic_of(self._call, wanted.topic_id)
        return None if topic is None else topic.name

    # -- results

    def fetched(self, place: int, answer: dict[str, Committed] | Failure) -> None:
        """A group's commits were read, or could not be."""
        if isinstance(answer, Failure):
            self.refuse(place, answer.error)
            return
        try:
            self._resolve(place, answer)
        except Exception as error:  # noqa: BLE001 - the request must be answered
            self.refuse(place, error)

    def _resolve(self, place: int, answer: dict[str, Committed]) -> None:
        """Answer a group's commits, unless more must be read."""
        unstable = answer.get(UNSTABLE_FIELD)
        if unstable is not None:  # other fetches share the answer
            answer = {name: one for name, one in answer.items() if name != UNSTABLE_FIELD}
            if self._stable:
                self._mark_unstable(place, answer, unstable.metadata)
        if self._call.context.catalog.record_topics and self._wanted[place].topics is not None:
            self._later(place, self._with_programs(place, answer))
            return
        other = self._of_other_topics(answer)
        if other:
            self._later(place, self._after_refresh(place, answer, other))
        else:
            self._found(place, answer)

    def _mark_unstable(self, place: int, answer: dict[str, Committed], staged: str) -> None:
        """Answer UNSTABLE_OFFSET_COMMIT for partitions with staged offsets; of all, only for those with commits."""
        group = self._wanted[place]
        wanted = answer.keys() if group.topics is None else set(self._fields(group))
        for name in wanted & frozenset(staged.split(" ")):
            topic = self._call.context.catalog.get(self._call.org, split_field(name)[0])
            if topic is not None:
                answer[name] = Committed(_UNSTABLE_OFFSET, -1, "", topic.topic_hex)

    async def _with_programs(self, place: int, found: dict[str, Committed]) -> None:
        """Add the positions of Redis groups of this name that programs have created on topics of format record."""
        named = [(self._name(topic), topic.partition_indexes) for topic in self._wanted[place].topics]
        missing = [(name, index) for name, indexes in named if name is not None for index in indexes]
        missing = [one for one in missing if offset_field(*one) not in found]
        found = found | await program_offsets(self._call, self._wanted[place].group_id, missing)
        other = self._of_other_topics(found)
        if other:
            await self._after_refresh(place, found, other)
        else:
            self._found(place, found)

    def _of_other_topics(self, found: dict[str, Committed]) -> set[str]:
        """Fields whose commit has another topic id than the cached topic of that name.

        Checked by partition, because a recreated topic may have offsets of its own beside those of the deleted topic.
        """
        get, org, other = self._call.context.catalog.get, self._call.org, set()
        for name, committed in found.items():
            topic = get(org, split_field(name)[0])
            if topic is None or topic.topic_hex != committed.topic_id:
                other.add(name)
        return other

    async def _after_refresh(self, place: int, found: dict[str, Committed], other: set[str]) -> None:
        """Refresh the cache: only then is a commit with another topic id known to belong to a deleted topic."""
        await refresh_again(self._call, {split_field(name)[0] for name in other})
        gone = self._of_other_topics(found)
        self._found(place, {name: one for name, one in found.items() if name not in gone})

    def _found(self, place: int, found: dict[str, Committed]) -> None:
        wanted = self._wanted[place]
        if wanted.topics is None:
            topics = self._all(found)
        else:
            topics = [(label_of(self._call, topic), self._partitions(topic, found)) for topic in wanted.topics]
        self._place(place, _NONE, topics)

    def _all(self, found: dict[str, Committed]) -> FetchedTopics:
        by_topic: dict[str, list[tuple[int, int, int, str, int]]] = {}
        for name in found:
            topic, index = split_field(name)
            by_topic.setdefault(topic, []).append(_fetched_partition(index, found[name]))
        named = [(topic, sorted(partitions)) for topic, partitions in sorted(by_topic.items())]
        if not self._by_id:
            return [*named]
        known = [(topic_of(self._call, name), partitions) for name, partitions in named]
        return [(topic.topic_id, partitions) for topic, partitions in known if topic is not None]

    def _partitions(self, wanted: Any, found: dict[str, Committed]) -> list[tuple[int, int, int, str, int]]:
        name = self._name(wanted)
        if name is None:
            return [(index, -1, -1, "", _UNKNOWN_ID) for index in wanted.partition_indexes]
        fetched = [
            _fetched_partition(index, found.get(offset_field(name, index))) for index in wanted.partition_indexes
        ]
        if self._call.version:
            return fetched
        return [one if self._exists(name, one[0]) else (one[0], -1, -1, "", _UNKNOWN_PARTITION) for one in fetched]

    def _exists(self, name: str, index: int) -> bool:
        topic = topic_of(self._call, name)
        return topic is not None and 0 <= index < topic.partition_count

    # -- the answer

    def refuse(self, place: int, error: Exception) -> None:
        """Answer a group with an error.

        Before v8 it is also on each partition; clients that read only those would assume no commits.
        """
        code = code_of(error, ErrorCode.not_coordinator)
        topics: FetchedTopics = []
        if self._call.version < 8 and self._wanted[place].topics is not None:
            topics = [
                (topic.name, [(index, -1, -1, "", code) for index in topic.partition_indexes])
                for topic in self._wanted[place].topics
            ]
        _METER.error(code)
        self._place(place, code, topics)

    def _place(self, place: int, code: int, topics: FetchedTopics) -> None:
        self._groups[place] = self._wanted[place].group_id, code, topics
        self._outstanding -= 1
        if not self._outstanding:
            self._finish()

    def _finish(self) -> None:
        try:
            body = group_writers.offset_fetch(self._call.version, self._groups)
        except Exception:  # the client must not wait for ever
            logger.exception("offset_fetch_failed")
            self._call.close(f"OffsetFetch v{self._call.version} failed")
        else:
            self._call.reply(body)


class _PartReply(_FetchReply):
    """One part of a group's partitions; its result is set on `future` instead of sent."""

    __slots__ = ("future",)

    def __init__(self, call: Call, request: Any) -> None:
        super().__init__(call, request)
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def _finish(self) -> None:
        self.future.set_result(self._groups)


def _fetched_partition(index: int, committed: Committed | None) -> tuple[int, int, int, str, int]:
    if committed is None:
        return index, -1, -1, "", _NONE
    if committed.offset == _UNSTABLE_OFFSET:
        return index, -1, -1, "", _UNSTABLE
    return index, committed.offset, committed.leader_epoch, committed.metadata, _NONE
