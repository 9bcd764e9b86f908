"""OffsetCommit, inline: no task and no future while the topics are cached."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis import group_creation
from tidegate.apis.call import Call
from tidegate.apis.commit_reports import Partitions
from tidegate.apis.record_groups import acknowledge, record_commits
from tidegate.apis.registry import inline_api
from tidegate.apis.slices import batches_of, join_topics
from tidegate.apis.topic_refresh import NAMES_UNTIL, Label, code_of, label_of, refresh_again, topic_of, unknown_topics
from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups.commits import Commit
from tidegate.groups.consumer.errors import OTHER_TYPE
from tidegate.groups.offsets import entry_json, offset_field
from tidegate.log.offload import DECODED
from tidegate.protocol import error_responses, group_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.telemetry.metrics import metrics
from tidegate.topics.model import Topic

_MILLISECOND: Final = timedelta(milliseconds=1)
_COMMIT_TIMESTAMPS_AT: Final = 1
_MINUTE_MS: Final = 60_000
_NONE: Final = ErrorCode.none.value
_UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition.value
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id.value
_UNKNOWN: Final = (_UNKNOWN_PARTITION, _UNKNOWN_ID)
_METADATA_TOO_LARGE: Final = ErrorCode.offset_metadata_too_large.value
_GROUP_NOT_FOUND: Final = ErrorCode.group_id_not_found.value
_ILLEGAL_GENERATION: Final = ErrorCode.illegal_generation.value
_TRY_AGAIN: Final = ErrorCode.coordinator_load_in_progress.value
_EPOCHS_FROM: Final = 9
"""The version from which a commit has a member epoch (KIP-848)."""
_METER: Final = metrics.apis[ApiKey.OFFSET_COMMIT]

logger = structlog.get_logger()

Judged = list[tuple[Any, Topic | None]]
"""The answered topics of a request, each with the topic that this broker had cached."""
Results = list[tuple[Label, list[tuple[int, int]]]]
"""Per answered topic: its name or id in the answer, and its partitions with their codes."""


# -- OffsetCommit


class _PartCall(Call):
    """One part of a commit of many partitions; its result is set on `future` instead of sent."""

    __slots__ = ("future",)

    def __init__(self, call: Call) -> None:
        for name in Call.__slots__:
            setattr(self, name, getattr(call, name))
        self.future: asyncio.Future[Results] = asyncio.get_running_loop().create_future()


def _commit_large(call: Call, request: Any) -> None:
    """Store a commit of many partitions, part by part."""
    call.answer_later(_commit_in_parts(call, request), request)


async def _commit_in_parts(call: Call, request: Any) -> None:
    results: Results = []
    for topics in batches_of(request.topics, "partitions"):
        part = _PartCall(call)
        try:
            if call.client.closed:
                raise CoordinatorNotAvailable("the client has left")  # it may commit elsewhere by now
            offset_commit(part, Fields(request, topics=topics))
            results += await part.future
        except Exception as error:  # noqa: BLE001 - the request must be answered
            code = code_of(error, ErrorCode.coordinator_not_available)
            results += [(label_of(call, one), [(p.partition_index, code) for p in one.partitions]) for one in topics]
    call.reply(await DECODED.run(group_writers.offset_commit, call.version, join_topics(results)))


@inline_api(
    ApiKey.OFFSET_COMMIT, first=0, last=10, large=_commit_large, prepared=True, error=error_responses.offset_commit
)
def offset_commit(call: Call, request: Any) -> None:
    """Store the offsets of a member, or of any client while the group is empty.

    v0: no member. v1: commit timestamps. v2-4: retention_time (removed by KIP-211). v6: leader epoch. v7: static
    members (KIP-345). v9: an unknown group is GROUP_ID_NOT_FOUND. v10: topics by id. The group's error is repeated on
    each partition.
    """
    held, group = call.context.offsets.held, call.store.group_keys(call.org, request.group_id).group
    if group in held:
        held[group].append((call, request))
    elif (request.generation_id_or_member_epoch < 0 and group_creation.has_limit(call)) or not _commit(
        call, request, refreshed=False
    ):
        held[group] = deque([(call, request)])
        call.context.tasks.start(_commit_held(held, group))


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
        if request.generation_id_or_member_epoch < 0:
            await group_creation.admit(call, call.store.group_keys(call.org, request.group_id))
        if not _commit(call, request, refreshed=False):
            await refresh_again(call, unknown_topics(call, request.topics))
            _commit(call, request, refreshed=True)
    except Exception as error:  # noqa: BLE001 - the request must be answered
        code = code_of(error, ErrorCode.coordinator_not_available)
        _METER.error(code)
        _reply_commit(
            call, [(label_of(call, one), [(p.partition_index, code) for p in one.partitions]) for one in request.topics]
        )


def _commit(call: Call, request: Any, refreshed: bool) -> bool:
    """Validate the partitions by the cached topics, and queue the valid ones for the group's script.

    Does nothing and returns False if a partition is unknown and the cache was not `refreshed` for it yet.
    """
    context, org, by_name = call.context, call.client.org, call.version <= NAMES_UNTIL
    get_topic, takes_metadata = context.catalog.get, context.offsets.takes_metadata
    entries: list[str] = []
    topics: Judged = []
    results: Results = []
    to_judge = False
    for wanted in request.topics:
        label: Label = wanted.name if by_name else wanted.topic_id
        topic = get_topic(org, wanted.name) if by_name else topic_of(call, label)
        if topic is None:
            name, partition_count, topic_id = "", 0, ""
        else:
            name, partition_count, topic_id = topic.name, topic.partition_count, topic.topic_hex
        codes: list[tuple[int, int]] = []
        for one in wanted.partitions:
            index, metadata = one.partition_index, one.committed_metadata or ""
            if not 0 <= index < partition_count:
                if not refreshed:
                    return False
                codes.append((index, _UNKNOWN_PARTITION if by_name or topic is not None else _UNKNOWN_ID))
                continue
            to_judge = True
            if metadata and not takes_metadata(metadata):
                codes.append((index, _METADATA_TOO_LARGE))
                continue
            entries.append(offset_field(name, index))
            entries.append(entry_json(one.committed_offset, one.committed_leader_epoch, topic_id, metadata))
            codes.append((index, _NONE))
        if codes or topic is None:  # as in Kafka, an existing topic without partitions is not answered
            topics.append((wanted, topic))
            results.append((label, codes))
    if not to_judge:
        _count_own(results)
        _reply_commit(call, results)
        return True
    retention_ms = _retention_ms(call, request) if call.version < 5 else -1
    commit = Commit(
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        entries,
        retention_ms,
        call.client_id or "",
        call.client.host,
        record_commits(call, request.group_id, topics, results) if context.catalog.record_topics else (),
        call.arrived_s,
    )
    keys = context.store.group_keys(org, request.group_id)
    known = context.catalog.version, context.offsets.next_question
    has_epochs = (context.consumers.known.get(keys.group) or context.streams.cached.get(keys.group)) is not None
    if has_epochs and request.member_id:
        _commit_as_consumer(call, commit, request, known, topics, results, again=False)
    else:
        context.offsets.commit(keys, commit, partial(_committed, call, request, known, topics, results, commit))
    return True


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


def _commit_as_consumer(
    call: Call, commit: Commit, request: Any, known: tuple[int, int], topics: Judged, results: Results, *, again: bool
) -> None:
    """Commit as a member of a KIP-848 group; as any other client if the group is of another type by now.

    `again`: it was taken for a commit to a classic group first.
    """
    context, keys = call.context, call.store.group_keys(call.org, request.group_id)
    commits = context.consumers.commits

    def answered(answer: int) -> None:
        if answer == OTHER_TYPE:
            context.offsets.commit(keys, commit, partial(_committed, call, request, known, topics, results, None))
        else:
            _committed(call, request, known, topics, results, None, answer)

    knows_epochs = call.version >= _EPOCHS_FROM
    times_ms = commits.times_ms(keys, commit) if again else None
    commits.commit(keys, commit, knows_epochs, answered, context.streams.submit_expiry, times_ms=times_ms)


def _committed(
    call: Call,
    request: Any,
    known: tuple[int, int],
    topics: Judged,
    results: Results,
    commit: Commit | None,
    answer: int,
) -> None:
    """Repeat the group's code on every partition that exists, and reply.

    `commit` is repeated if its group turns out to be one of KIP-848; None if it was repeated already.
    """
    if answer == OTHER_TYPE:
        if commit is not None:
            _commit_as_consumer(call, commit, request, known, topics, results, again=True)
            return
        answer = _TRY_AGAIN
    if answer == _NONE:
        catalog = call.context.catalog
        version, question = known
        if version == catalog.version and call.context.offsets.topics_were(catalog.stored_version, question):
            if catalog.record_topics and call.store.is_sharded:
                call.context.tasks.start(_acknowledge(call, request, topics, results))
            else:
                _stored(call, request, topics, results)
        else:
            call.context.tasks.start(_confirm(call, request, topics, results))
        return
    code = _ILLEGAL_GENERATION if answer == _GROUP_NOT_FOUND and call.version < 9 else answer
    _METER.error(code)
    _reply_commit(
        call,
        [(label, [(index, own if own in _UNKNOWN else code) for index, own in codes]) for label, codes in results],
    )


async def _confirm(call: Call, request: Any, topics: Judged, results: Results) -> None:
    """The topics changed while the offsets were stored: verify that the offsets belong to the current topics.

    Nothing reads an offset stored for a topic that was deleted, and possibly recreated: the client gets a retriable
    code, so that no lost offset is acknowledged.
    """
    try:
        await call.context.catalog.refresh()
        changed = _UNKNOWN_ID if call.version > NAMES_UNTIL else _TRY_AGAIN
        for place, (_, topic) in enumerate(topics):
            now = topic and call.context.catalog.by_id(topic.org, topic.topic_id)
            if topic is not None and now is None:
                gone = changed if call.context.catalog.get(topic.org, topic.name) else _UNKNOWN_PARTITION
                label, codes = results[place]
                results[place] = label, [(index, own or gone) for index, own in codes]
    except Exception as error:  # noqa: BLE001 - the request must be answered
        code = code_of(error, ErrorCode.coordinator_not_available)
        results = [(label, [(index, own or code) for index, own in codes]) for label, codes in results]
    await _acknowledge(call, request, topics, results)


async def _acknowledge(call: Call, request: Any, topics: Judged, results: Results) -> None:
    """Acknowledge the commit in Redis groups of format record, where its script could not, then reply."""
    try:
        if call.context.catalog.record_topics and call.store.is_sharded:
            await acknowledge(call, request.group_id, topics, results)
        _stored(call, request, topics, results)
    except Exception as error:  # noqa: BLE001 - the request must be answered
        code = code_of(error, ErrorCode.coordinator_not_available)
        _reply_commit(call, [(label, [(index, own or code) for index, own in codes]) for label, codes in results])


def _stored(call: Call, request: Any, topics: Judged, results: Results) -> None:
    errors = _count_own(results)
    _reply_commit(call, results)
    partitions, offsets = _moved(topics, results, errors)
    group = call.store.group_keys(call.org, request.group_id).ref
    call.context.commit_reports.add(group, request.group_id, call.client_id or "", partitions, offsets)


def _moved(topics: Judged, results: Results, errors: bool) -> tuple[Partitions, list[int]]:
    """The stored partitions by topic, and their offsets."""
    partitions: Partitions = []
    offsets: list[int] = []
    for (wanted, topic), (_, codes) in zip(topics, results, strict=True):
        if topic is None:
            continue
        stored = wanted.partitions
        if errors:
            stored = [one for one, (_, code) in zip(wanted.partitions, codes, strict=True) if not code]
        partitions.append((topic, [one.partition_index for one in stored]))
        offsets += [one.committed_offset for one in stored]
    return partitions, offsets


def _count_own(results: Results) -> bool:
    """Count the errors of single partitions, each code once; returns whether there are any."""
    own = {code for _, codes in results for _, code in codes} - {_NONE}
    for code in own:
        _METER.error(code)
    return bool(own)


def _reply_commit(call: Call, results: Results) -> None:
    if isinstance(call, _PartCall):
        call.future.set_result(results)
    else:
        call.reply(group_writers.offset_commit(call.version, results))
