"""An OffsetCommit from its group's script to its answer: the code of each partition, and the report of its offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.commit_reports import Partitions
from tidegate.apis.record_groups import acknowledge
from tidegate.apis.topic_refresh import NAMES_UNTIL, Label, code_of
from tidegate.groups.commits import Commit
from tidegate.groups.consumer.errors import OTHER_TYPE
from tidegate.protocol import group_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.store.keys import GroupKeys
from tidegate.telemetry.metrics import metrics
from tidegate.topics.model import Topic

_NONE: Final = ErrorCode.none.value
_UNKNOWN_PARTITION: Final = ErrorCode.unknown_topic_or_partition.value
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id.value
UNKNOWN: Final = (_UNKNOWN_PARTITION, _UNKNOWN_ID)
"""Codes of partitions that do not exist: the group's code does not replace them."""
_GROUP_NOT_FOUND: Final = ErrorCode.group_id_not_found.value
_ILLEGAL_GENERATION: Final = ErrorCode.illegal_generation.value
_TRY_AGAIN: Final = ErrorCode.coordinator_load_in_progress.value
_EPOCHS_FROM: Final = 9
"""The version from which a commit has a member epoch (KIP-848)."""
_METER: Final = metrics.apis[ApiKey.OFFSET_COMMIT]

Results = list[tuple[Label, list[tuple[int, int]]]]
"""Per answered topic: its name or id in the answer, and its partitions with their codes."""


class PartCall(Call):
    """One part of a commit of many partitions; its result is set on `future` instead of sent."""

    __slots__ = ("future",)

    def __init__(self, call: Call) -> None:
        for name in Call.__slots__:
            setattr(self, name, getattr(call, name))
        self.future: asyncio.Future[Results] = asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class CommittedTopic:
    """One answered topic of a commit."""

    label: Label
    topic: Topic | None
    """What this broker had cached."""
    indexes: list[int]
    offsets: list[int]
    """Of its partitions, in the order of the request."""
    refused: dict[int, int]
    """By position, the codes of partitions that are refused whatever the group's script decides."""

    def codes(self, code: int = _NONE) -> list[tuple[int, int]]:
        """The partitions with their codes; `code` is of those that are not refused."""
        refused = self.refused
        if not refused:
            return list(zip(self.indexes, repeat(code)))
        return [(index, refused.get(at, code)) for at, index in enumerate(self.indexes)]

    def refuse(self, code: int) -> None:
        """Refuse the partitions that are not refused yet."""
        self.refused = {at: self.refused.get(at, code) for at in range(len(self.indexes))}

    def accepted(self) -> tuple[list[int], list[int]]:
        """The partitions that are not refused, and their offsets."""
        places = [at for at in range(len(self.indexes)) if at not in self.refused]
        return [self.indexes[at] for at in places], [self.offsets[at] for at in places]


class QueuedCommit:
    """A valid commit that is queued for its group's script.

    `known`: the catalogue's version when it was validated, and the number of the version read that goes ahead of it.
    """

    __slots__ = ("_call", "_commit", "_keys", "_known", "_scripts_left", "_topics")

    def __init__(
        self, call: Call, keys: GroupKeys, commit: Commit, topics: list[CommittedTopic], known: tuple[int, int]
    ) -> None:
        self._call, self._keys, self._commit, self._topics, self._known = call, keys, commit, topics, known
        self._scripts_left = 2
        """How many scripts may be asked yet if the group is of another type: that of KIP-848, then the classic one."""

    def queue(self) -> None:
        """Queue it for the script of its group's type, so far as that is known."""
        context, group = self._call.context, self._keys.group
        has_epochs = (context.consumers.known.get(group) or context.streams.cached.get(group)) is not None
        if has_epochs and self._commit.member_id:
            self._scripts_left = 1
            self._queue_as_consumer(again=False)
        else:
            context.offsets.commit(self._keys, self._commit, self._on_code)

    def _queue_as_consumer(self, *, again: bool) -> None:
        """Commit as a member of a KIP-848 group. `again`: it was taken for a commit to a classic group first."""
        call, commits = self._call, self._call.context.consumers.commits
        times_ms = commits.times_ms(self._keys, self._commit) if again else None
        submit_expiry, knows_epochs = call.context.streams.submit_expiry, call.version >= _EPOCHS_FROM
        commits.commit(self._keys, self._commit, knows_epochs, self._on_code, submit_expiry, times_ms=times_ms)

    def _on_code(self, code: int) -> None:
        """Repeat the group's code on every partition that exists, and reply."""
        if code != _NONE:
            self._on_error(code)
            return
        context, (version, question) = self._call.context, self._known
        catalog = context.catalog
        if version != catalog.version or not context.offsets.topics_were(catalog.stored_version, question):
            context.tasks.start(self._confirm())
        elif catalog.record_topics and context.store.is_sharded:
            context.tasks.start(self._acknowledge())
        else:
            self._stored()

    def _on_error(self, code: int) -> None:
        if code != OTHER_TYPE or not self._scripts_left:
            self._refuse(_TRY_AGAIN if code == OTHER_TYPE else code)
            return
        self._scripts_left -= 1
        if self._scripts_left:
            self._queue_as_consumer(again=True)
        else:  # it is of another type by now
            self._call.context.offsets.commit_again(self._keys, self._commit, self._on_code)

    def _refuse(self, code: int) -> None:
        if code == _GROUP_NOT_FOUND and self._call.version < _EPOCHS_FROM:
            code = _ILLEGAL_GENERATION
        _METER.error(code)
        for one in self._topics:
            one.refused = {at: own for at, own in one.refused.items() if own in UNKNOWN}
        reply_commit(self._call, self._topics, code)

    async def _confirm(self) -> None:
        """The topics changed while the offsets were stored: verify that the offsets belong to the current topics.

        Nothing reads an offset stored for a topic that was deleted, and possibly recreated: the client gets a retriable
        code, so that no lost offset is acknowledged.
        """
        catalog = self._call.context.catalog
        try:
            await catalog.refresh()
            changed = _UNKNOWN_ID if self._call.version > NAMES_UNTIL else _TRY_AGAIN
            for one in self._topics:
                if one.topic is not None and not catalog.by_id(one.topic.org, one.topic.topic_id):
                    one.refuse(changed if catalog.get(one.topic.org, one.topic.name) else _UNKNOWN_PARTITION)
        except Exception as error:  # noqa: BLE001 - the request must be answered
            self._refuse_rest(error)
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Acknowledge the commit in Redis groups of format record, where its script could not, then reply."""
        context = self._call.context
        try:
            if context.catalog.record_topics and context.store.is_sharded:
                await acknowledge(self._call, self._keys.group_id, accepted_of(self._topics))
            self._stored()
        except Exception as error:  # noqa: BLE001 - the request must be answered
            self._refuse_rest(error)
            reply_commit(self._call, self._topics)

    def _refuse_rest(self, error: Exception) -> None:
        code = code_of(error, ErrorCode.coordinator_not_available)
        for one in self._topics:
            one.refuse(code)

    def _stored(self) -> None:
        call, keys, topics = self._call, self._keys, self._topics
        count_refused(topics)
        reply_commit(call, topics)
        partitions: Partitions = []
        offsets: list[int] = []
        for one in topics:
            if one.topic is not None:
                indexes, stored = one.accepted() if one.refused else (one.indexes, one.offsets)
                partitions.append((one.topic, indexes))
                offsets += stored
        call.context.commit_reports.add(keys.ref, keys.group_id, call.client_id or "", partitions, offsets)


def accepted_of(topics: Sequence[CommittedTopic]) -> list[tuple[Topic, dict[int, int]]]:
    """Of each topic that exists, the offsets of its partitions that are not refused, by partition."""
    return [(one.topic, dict(zip(*one.accepted(), strict=True))) for one in topics if one.topic is not None]


def count_refused(topics: Sequence[CommittedTopic]) -> None:
    """Count the codes of refused partitions, each once."""
    for one in topics:
        if one.refused:
            break
    else:
        return
    for code in {code for one in topics for code in one.refused.values()}:
        _METER.error(code)


def reply_commit(call: Call, topics: Sequence[CommittedTopic], code: int = _NONE) -> None:
    """Reply; `code` is of the partitions that are not refused."""
    reply_results(call, [(one.label, one.codes(code)) for one in topics])


def reply_results(call: Call, results: Results) -> None:
    """Reply to a request, or pass on the result of a part of one."""
    if isinstance(call, PartCall):
        call.future.set_result(results)
    else:
        call.reply(group_writers.offset_commit(call.version, results))
