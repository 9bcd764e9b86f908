"""OffsetCommit, inline: no task and no future while the topics are cached."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis import group_creation
from tidegate.apis.call import Call
from tidegate.apis.queued_commits import (
    CommittedTopic,
    PartCall,
    QueuedCommit,
    Results,
    accepted_of,
    count_refused,
    reply_commit,
    reply_results,
)
from tidegate.apis.record_groups import record_commits
from tidegate.apis.registry import inline_api
from tidegate.apis.slices import PARTITIONS, batches_of, join_topics, pause
from tidegate.apis.topic_refresh import NAMES_UNTIL, Label, code_of, label_of, refresh_again, topic_of, unknown_topics
from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import entry_json, offset_field
from tidegate.log.offload import DECODED
from tidegate.protocol import error_responses, group_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.store.keys import GroupKeys
from tidegate.telemetry.metrics import metrics

_MILLISECOND: Final = timedelta(milliseconds=1)
_COMMIT_TIMESTAMPS_AT: Final = 1
_MINUTE_MS: Final = 60_000
_UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition.value
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id.value
_METADATA_TOO_LARGE: Final = ErrorCode.offset_metadata_too_large.value
_TOPICS_MAX: Final = PARTITIONS + 1
"""Of one part: topics may have no partitions."""
_METER: Final = metrics.apis[ApiKey.OFFSET_COMMIT]

logger = structlog.get_logger()


def _commit_large(call: Call, request: Any) -> None:
    """Store a commit of many partitions, part by part."""
    call.answer_later(_commit_in_parts(call, request), request)


async def _commit_in_parts(call: Call, request: Any) -> None:
    results: Results = []
    for topics in batches_of(request.topics, "partitions"):
        part = PartCall(call)
        try:
            if call.client.closed:
                raise CoordinatorNotAvailable("the client has left")  # it may commit elsewhere by now
            offset_commit(part, Fields(request, topics=topics))
            results += await part.future
        except Exception as error:  # noqa: BLE001 - the request must be answered
            code = code_of(error, ErrorCode.coordinator_not_available)
            results += _results_of(call, topics, code)
        await pause()  # a part without valid partitions waits for nothing
    call.reply(await DECODED.run(group_writers.offset_commit, call.version, join_topics(results)))


def _results_of(call: Call, topics: Sequence[Any], code: int) -> Results:
    """All partitions of a request's topics with one code."""
    return [(label_of(call, one), [(p.partition_index, code) for p in one.partitions]) for one in topics]


@inline_api(
    ApiKey.OFFSET_COMMIT, first=0, last=10, large=_commit_large, prepared=True, error=error_responses.offset_commit
)
def offset_commit(call: Call, request: Any) -> None:
    """Store the offsets of a member, or of any client while the group is empty.

    v0: no member. v1: commit timestamps. v2-4: retention_time (removed by KIP-211). v6: leader epoch. v7: static
    members (KIP-345). v9: an unknown group is GROUP_ID_NOT_FOUND. v10: topics by id. The group's error is repeated on
    each partition.
    """
    if len(request.topics) > _TOPICS_MAX:
        call.run_alone()
        _commit_large(call, request)
        return
    context = call.context
    held, keys = context.offsets.held, context.store.group_keys(call.client.org, request.group_id)
    group = keys.group
    if group in held:
        held[group].append((call, request))
    elif (request.generation_id_or_member_epoch < 0 and group_creation.has_limit(call)) or not _commit(
        call, keys, request, refreshed=False
    ):
        held[group] = deque([(call, request)])
        context.tasks.start(_commit_held(held, group))


async def _commit_held(held: dict[str, deque[tuple[Call, Any]]], group: str) -> None:
    """Admit the group, refresh topics that are not cached; commits that arrive meanwhile stay in order."""
    try:
        while held[group]:
            call, request = held[group].popleft()
            try:
                await _commit_after_refresh(call, request)
            except Exception:  # the commits behind it are answered
                logger.exception("commit_not_answered", group=group)
                call.close("OffsetCommit failed and its error cannot be encoded")
    finally:
        del held[group]


async def _commit_after_refresh(call: Call, request: Any) -> None:
    try:
        keys = call.store.group_keys(call.org, request.group_id)
        if request.generation_id_or_member_epoch < 0:
            await group_creation.admit(call, keys)
        if not _commit(call, keys, request, refreshed=False):
            await refresh_again(call, unknown_topics(call, request.topics))
            _commit(call, keys, request, refreshed=True)
    except Exception as error:  # noqa: BLE001 - the request must be answered
        code = code_of(error, ErrorCode.coordinator_not_available)
        _METER.error(code)
        reply_results(call, _results_of(call, request.topics, code))


def _commit(call: Call, keys: GroupKeys, request: Any, refreshed: bool) -> bool:
    """Validate the partitions by the cached topics, and queue the valid ones for the group's script.

    Does nothing and returns False if a partition is unknown and the cache was not `refreshed` for it yet.
    """
    context, org, by_name = call.context, call.client.org, call.version <= NAMES_UNTIL
    get_topic = context.catalog.get
    entries: list[str] = []
    topics: list[CommittedTopic] = []
    to_judge = False
    for wanted in request.topics:
        label: Label = wanted.name if by_name else wanted.topic_id
        topic = get_topic(org, wanted.name) if by_name else topic_of(call, label)
        unknown = _UNKNOWN_PARTITION if by_name or topic is not None else _UNKNOWN_ID
        one = CommittedTopic(label, topic, [], [], {})
        unknown_count = _validate(one, wanted.partitions, unknown, context.offsets.takes_metadata, entries)
        if unknown_count and not refreshed:
            return False
        to_judge = to_judge or unknown_count < len(one.indexes)
        if one.indexes or topic is None:  # as in Kafka, an existing topic without partitions is not answered
            topics.append(one)
    if to_judge:
        _queue(call, keys, request, entries, topics)
    else:
        count_refused(topics)
        reply_commit(call, topics)
    return True


def _validate(
    committed: CommittedTopic,
    partitions: Sequence[Any],
    unknown: int,
    takes_metadata: Callable[[str], bool],
    entries: list[str],
) -> int:
    """Add a topic's partitions, and the entries of the valid ones; returns how many have the code `unknown`."""
    topic, indexes, offsets = committed.topic, committed.indexes, committed.offsets
    name, partition_count, topic_hex = (
        ("", 0, "") if topic is None else (topic.name, topic.partition_count, topic.topic_hex)
    )
    unknown_count = 0
    for one in partitions:
        index, metadata = one.partition_index, one.committed_metadata
        if not 0 <= index < partition_count:
            committed.refused[len(indexes)] = unknown
            unknown_count += 1
            offset = -1
        else:
            offset = one.committed_offset
            if metadata and not takes_metadata(metadata):
                committed.refused[len(indexes)] = _METADATA_TOO_LARGE
            else:
                entries += (
                    offset_field(name, index),
                    entry_json(offset, one.committed_leader_epoch, topic_hex, metadata or ""),
                )
        indexes.append(index)
        offsets.append(offset)
    return unknown_count


def _queue(call: Call, keys: GroupKeys, request: Any, entries: list[str], topics: list[CommittedTopic]) -> None:
    context = call.context
    commit = Commit(
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        entries,
        _retention_ms(call, request) if call.version < 5 else -1,
        call.client_id or "",
        call.client.host,
        record_commits(call, request.group_id, accepted_of(topics)) if context.catalog.record_topics else (),
        call.arrived_s,
    )
    known = context.catalog.version, context.offsets.next_question
    QueuedCommit(call, keys, commit, topics, known).queue()


def _retention_ms(call: Call, request: Any) -> int:
    """The retention that a client of v0-4 sets, ms; -1: the broker's.

    In v1 each partition has a commit timestamp, from which the broker's retention counts; the latest is taken for all.
    Timestamps in the past shorten nothing, as in Kafka since KIP-211.
    """
    if call.version != _COMMIT_TIMESTAMPS_AT:
        return max(-1, int(request.retention_time // _MILLISECOND))
    latest = max((one.commit_timestamp for topic in request.topics for one in topic.partitions), default=-1)
    ahead_ms = latest - call.store.clock.now_ms()
    return ahead_ms + call.context.settings.offsets_retention_minutes * _MINUTE_MS if ahead_ms > 0 else -1
