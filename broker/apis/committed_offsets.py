"""OffsetCommit and OffsetFetch (hot: no task and no future while the topics are known), OffsetDelete."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.static.primitive import i32Timedelta

from broker.apis.call import Call
from broker.apis.mirroring import note_committed
from broker.apis.registry import ApiKey, api, hot_api
from broker.errors import InvalidGroupId, KafkaError, StoreUnavailable
from broker.groups import offsets
from broker.groups.offsets import Commit, Committed, entry_json, offset_field, split_field
from broker.protocol import fast_writers

logger = structlog.get_logger()

_NOT_THROTTLED: Final = i32Timedelta.parse(timedelta(0))
_MILLISECOND: Final = timedelta(milliseconds=1)
_NONE: Final = ErrorCode.none.value
_UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition.value
_METADATA_TOO_LARGE: Final = ErrorCode.offset_metadata_too_large.value
_GROUP_NOT_FOUND: Final = ErrorCode.group_id_not_found.value
_ILLEGAL_GENERATION: Final = ErrorCode.illegal_generation.value
_UNSTABLE: Final = ErrorCode.unstable_offset_commit.value

_looks: set[asyncio.Task[None]] = set()

FetchedTopics = list[tuple[str, list[tuple[int, int, int, str, int]]]]
"""Per topic, per partition: index, offset, leader epoch, metadata, code."""


def _start(look: Coroutine[Any, Any, None]) -> None:
    """Run the rare part of a hot request that has to wait for the catalogue."""
    task = asyncio.get_running_loop().create_task(look)
    _looks.add(task)
    task.add_done_callback(_looks.discard)


async def _look_again(call: Call, names: set[str]) -> None:
    """Ask the store about topics that this broker does not know, or knows otherwise. Raises StoreUnavailable."""
    catalog = call.rooms.catalog
    if any(catalog.get(call.org, name) is not None for name in names):
        await catalog.refresh()
    else:
        for name in names:
            await catalog.find(call.org, name)


def _code_of(error: Exception, away: ErrorCode) -> int:
    """The code of a failure; `away` where it is the store that does not answer."""
    if isinstance(error, StoreUnavailable):
        return away.value
    if isinstance(error, KafkaError):
        return error.code.value
    logger.error("offsets_failed", exc_info=error)
    return ErrorCode.unknown_server_error.value


# -- OffsetCommit


@hot_api(ApiKey.OFFSET_COMMIT, first=2, last=9)
def offset_commit(call: Call, request: Any) -> None:
    """Store the offsets of a member, or of anybody while the group is empty.

    v2-4: retention_time (KIP-211 ended it). v6: leader epoch. v7: static members (KIP-345). v9: an unknown
    group is GROUP_ID_NOT_FOUND. The group's error is repeated on each partition.
    """
    held, group = call.rooms.offsets.held, call.store.group_keys(call.org, request.group_id).group
    if group in held:
        held[group].append((call, request))
    elif not _commit(call, request, looked=False):
        held[group] = deque([(call, request)])
        _start(_commit_held(held, group))


async def _commit_held(held: dict[str, deque[tuple[Call, Any]]], group: str) -> None:
    """Ask the store about topics unknown here; commits of the group that arrive meanwhile keep their turn."""
    try:
        while held[group]:
            call, request = held[group].popleft()
            await _commit_after_look(call, request)
    finally:
        del held[group]


async def _commit_after_look(call: Call, request: Any) -> None:
    try:
        if not _commit(call, request, looked=False):
            await _look_again(call, _unknown_topics(call, request))
            _commit(call, request, looked=True)
    except Exception as error:  # noqa: BLE001 - the request must be answered
        code = _code_of(error, ErrorCode.coordinator_not_available)
        results = [(topic.name, [(one.partition_index, code) for one in topic.partitions]) for topic in request.topics]
        _reply_commit(call, results)


def _unknown_topics(call: Call, request: Any) -> set[str]:
    """Topics of the request that this broker does not know, or not that many partitions of."""
    missing = set()
    for wanted in request.topics:
        topic = call.rooms.catalog.get(call.org, wanted.name)
        if topic is None or any(not 0 <= one.partition_index < topic.partition_count for one in wanted.partitions):
            missing.add(wanted.name)
    return missing


def _commit(call: Call, request: Any, looked: bool) -> bool:
    """Judge the partitions by what this broker knows, and file the rest for the group's script.

    Does nothing and returns False where a partition is unknown and the store was not `looked` at for it yet.
    """
    rooms, org = call.rooms, call.client.org
    get_topic, takes_metadata = rooms.catalog.get, rooms.offsets.takes_metadata
    entries: list[str] = []
    results: list[tuple[str, list[tuple[int, int]]]] = []
    to_judge = False
    for wanted in request.topics:
        name: str = wanted.name
        codes: list[tuple[int, int]] = []
        topic = get_topic(org, name)
        partition_count, topic_id = (0, "") if topic is None else (topic.partition_count, topic.topic_hex)
        for one in wanted.partitions:
            index, metadata = one.partition_index, one.committed_metadata or ""
            if not 0 <= index < partition_count:
                if not looked:
                    return False
                codes.append((index, _UNKNOWN_PARTITION))
                continue
            to_judge = True
            if metadata and not takes_metadata(metadata):
                codes.append((index, _METADATA_TOO_LARGE))
                continue
            entries.append(offset_field(name, index))
            entries.append(entry_json(one.committed_offset, one.committed_leader_epoch, topic_id, metadata))
            codes.append((index, _NONE))
        if codes or topic is None:  # as in Kafka, a topic that exists is not answered without partitions
            results.append((name, codes))
    if not to_judge:
        _reply_commit(call, results)
        return True
    retention_ms = max(-1, request.retention_time // _MILLISECOND) if call.version < 5 else -1
    commit = Commit(
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        entries,
        retention_ms,
        call.client_id or "",
        call.client.host,
    )
    keys = rooms.store.group_keys(org, request.group_id)
    rooms.offsets.commit(keys, commit, partial(_committed, call, request, results))
    return True


def _committed(
    call: Call, request: Any, results: list[tuple[str, list[tuple[int, int]]]], answer: int | Exception
) -> None:
    """Repeat the group's code on every partition that exists, and answer."""
    code = answer if isinstance(answer, int) else _code_of(answer, ErrorCode.coordinator_not_available)
    if code == _GROUP_NOT_FOUND and call.version < 9:
        code = _ILLEGAL_GENERATION
    if code != _NONE:
        results = [
            (name, [(index, own if own == _UNKNOWN_PARTITION else code) for index, own in codes])
            for name, codes in results
        ]
    _reply_commit(call, results)
    if code == _NONE:
        note_committed(call, request, results)


def _reply_commit(call: Call, results: list[tuple[str, list[tuple[int, int]]]]) -> None:
    call.reply(fast_writers.offset_commit(call.version, results))


# -- OffsetFetch


@hot_api(ApiKey.OFFSET_FETCH, first=1, last=9)
def offset_fetch(call: Call, request: Any) -> None:
    """Read a group's committed offsets; members and generations play no part, nothing is changed.

    v2: topics null means all; an error at the top. v5: leader epoch. v7: require_stable (KIP-447). v8: several
    groups (KIP-709). v9: member id and epoch, which classic groups ignore.
    """
    _FetchReply(call, request).ask()


class _FetchReply:
    """One OffsetFetch while its groups are read; each group has a place in the answer."""

    __slots__ = ("_call", "_groups", "_outstanding", "_stable", "_wanted")

    def __init__(self, call: Call, request: Any) -> None:
        self._call = call
        self._wanted = request.groups
        self._stable: bool = request.require_stable
        self._groups: list[tuple[str, int, FetchedTopics]] = [(group.group_id, _NONE, []) for group in request.groups]
        self._outstanding = len(self._groups)

    def ask(self) -> None:
        if not self._wanted:
            self._finish()
        for place, group in enumerate(self._wanted):
            fields = None
            if group.topics is not None:
                fields = [
                    offset_field(topic.name, index) for topic in group.topics for index in topic.partition_indexes
                ]
            keys = self._call.store.group_keys(self._call.org, group.group_id)
            self._call.rooms.offsets.fetch(keys, fields, self._stable, partial(self._fetched, place))

    def _fetched(self, place: int, answer: dict[str, Committed] | Exception) -> None:
        if isinstance(answer, Exception):
            self._refused(place, answer)
            return
        other = self._of_other_topics(answer)
        if other:
            _start(self._after_look(place, answer, other))
        else:
            self._found(place, answer)

    def _of_other_topics(self, found: dict[str, Committed]) -> set[str]:
        """Fields whose commit names another topic id than this broker knows for the name; partition by partition,

        for a topic that was made again may have offsets of its own beside those that the old one left behind.
        """
        get, org, other = self._call.rooms.catalog.get, self._call.org, set()
        for name, committed in found.items():
            if committed.stable:
                topic = get(org, split_field(name)[0])
                if topic is None or topic.topic_hex != committed.topic_id:
                    other.add(name)
        return other

    async def _after_look(self, place: int, found: dict[str, Committed], other: set[str]) -> None:
        """What this broker knows may be old: only after a look is a commit known to be of a topic that is gone."""
        try:
            await _look_again(self._call, {split_field(name)[0] for name in other})
            gone = self._of_other_topics(found)
            self._found(place, {name: one for name, one in found.items() if name not in gone})
        except Exception as error:  # noqa: BLE001 - the request must be answered
            self._refused(place, error)

    def _found(self, place: int, found: dict[str, Committed]) -> None:
        wanted = self._wanted[place]
        topics: FetchedTopics
        if wanted.topics is None:
            by_topic: dict[str, list[tuple[int, int, int, str, int]]] = {}
            for name in found:
                topic, index = split_field(name)
                by_topic.setdefault(topic, []).append(_fetched_partition(index, found[name]))
            topics = [(topic, sorted(partitions)) for topic, partitions in sorted(by_topic.items())]
        else:
            topics = [
                (
                    topic.name,
                    [
                        _fetched_partition(index, found.get(offset_field(topic.name, index)))
                        for index in topic.partition_indexes
                    ],
                )
                for topic in wanted.topics
            ]
        self._place(place, _NONE, topics)

    def _refused(self, place: int, error: Exception) -> None:
        """Before v8 also on each partition: a client that looks only there would take it for "nothing committed"."""
        code = _code_of(error, ErrorCode.not_coordinator)
        topics: FetchedTopics = []
        if self._call.version < 8 and self._wanted[place].topics is not None:
            topics = [
                (topic.name, [(index, -1, -1, "", code) for index in topic.partition_indexes])
                for topic in self._wanted[place].topics
            ]
        self._place(place, code, topics)

    def _place(self, place: int, code: int, topics: FetchedTopics) -> None:
        self._groups[place] = self._wanted[place].group_id, code, topics
        self._outstanding -= 1
        if not self._outstanding:
            self._finish()

    def _finish(self) -> None:
        self._call.reply(fast_writers.offset_fetch(self._call.version, self._groups))


def _fetched_partition(index: int, committed: Committed | None) -> tuple[int, int, int, str, int]:
    if committed is None:
        return index, -1, -1, "", _NONE
    code = _NONE if committed.stable else _UNSTABLE
    return index, committed.offset, committed.leader_epoch, committed.metadata, code


# -- OffsetDelete


@api(ApiKey.OFFSET_DELETE, first=0, last=0)
async def offset_delete(call: Call, request: Any) -> OffsetDeleteResponse:
    """Forget a group's offsets of topics that it is not subscribed to (KIP-496)."""
    missing = _unknown_topics(call, request)
    if missing:
        await _look_again(call, missing)
    if not request.group_id:
        raise InvalidGroupId
    wanted: dict[str, list[int]] = {}
    for asked in request.topics:
        topic = call.rooms.catalog.get(call.org, asked.name)
        known = [
            one.partition_index
            for one in asked.partitions
            if topic and 0 <= one.partition_index < topic.partition_count
        ]
        if known:
            wanted.setdefault(asked.name, []).extend(known)
    keys = call.store.group_keys(call.org, request.group_id)
    subscribed = await offsets.delete(call.store, keys, str(call.rooms.membership.node_id), wanted)

    def code_of(topic: str, partition: int) -> ErrorCode:
        if partition not in wanted.get(topic, ()):
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.group_subscribed_to_topic if topic in subscribed else ErrorCode.none

    return OffsetDeleteResponse(
        error_code=ErrorCode.none,
        throttle_time=_NOT_THROTTLED,
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=asked.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index, error_code=code_of(asked.name, one.partition_index)
                    )
                    for one in asked.partitions
                ),
            )
            for asked in request.topics
            if asked.partitions or call.rooms.catalog.get(call.org, asked.name) is None  # as in OffsetCommit
        ),
    )
