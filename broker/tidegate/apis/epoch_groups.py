"""What the APIs of groups with member epochs (KIP-848, KIP-932, KIP-1071) have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar
from uuid import UUID

from kio.static.primitive import i32

from tidegate.apis.call import Call
from tidegate.errors import KafkaError
from tidegate.groups.consumer.decisions import Decided
from tidegate.groups.consumer.model import ConsumerGroup, EpochGroup, HeartbeatAnswer, Partition
from tidegate.groups.consumer.stored import by_topic
from tidegate.groups.consumer.topic_view import PARTITIONS_OF_A_TOPIC
from tidegate.groups.share.model import ShareGroup
from tidegate.log.offload import ENCODED
from tidegate.protocol.consumer_group_writers import consumer_group_heartbeat, consumer_group_heartbeat_error
from tidegate.telemetry.meters import ApiMeter
from tidegate.topics.model import Topic

_INLINE_PARTITIONS_MAX: Final = 2_000
"""Of an assignment that is written at once: some milliseconds."""

Group = TypeVar("Group", bound=Any)


def answer_heartbeat(call: Call, meter: ApiMeter, decided: Decided) -> None:
    """Reply to a heartbeat of a consumer or share group, whose replies are the same bytes."""
    if isinstance(decided, KafkaError):
        meter.error(decided.code.value)
        call.reply(consumer_group_heartbeat_error(decided.code.value, decided.message))
        return
    call.reply(
        consumer_group_heartbeat(
            decided.member_id, decided.member_epoch, decided.heartbeat_interval_ms, decided.assignment
        )
    )


def answer_assignment(call: Call, meter: ApiMeter, request: Any, decided: HeartbeatAnswer) -> None:
    """Reply with an assignment; one of many partitions is sorted and written in the thread of large answers."""
    if len(decided.assignment or ()) > _INLINE_PARTITIONS_MAX:
        call.answer_later(_answer_large(call, decided), request)
    else:
        answer_heartbeat(call, meter, decided)


async def _answer_large(call: Call, decided: HeartbeatAnswer) -> None:
    given = decided.member_id, decided.member_epoch, decided.heartbeat_interval_ms, decided.assignment
    call.reply(await ENCODED.run(consumer_group_heartbeat, *given))


async def answer_decided(
    decide: Callable[[Callable[[Decided], None]], None], answer: Callable[[Decided], None]
) -> None:
    """Answer a large heartbeat in a task: it counts as large until then."""
    decided: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
    decide(lambda one: None if decided.done() else decided.set_result(one))
    answer(await decided)


def undescribed(of: type[Group], group_id: str, error: KafkaError, **values: Any) -> Group:
    """A group of a Describe response that only has an error."""
    group: Group = of(
        error_code=error.code,
        error_message=error.message,
        group_id=group_id,
        group_state="",
        group_epoch=i32(0),
        assignment_epoch=i32(0),
        members=(),
        **values,
    )
    return group


def described_sizes(group: EpochGroup[Any, Any] | ShareGroup) -> Iterator[int]:
    """How much describing the members of a group adds, for `computed`."""
    for member_id, member in group.members.items():
        yield 1 + (len(member.assigned) + len(group.targets.get(member_id, ()))) // PARTITIONS_OF_A_TOPIC


def subscribed_sizes(group: ConsumerGroup | ShareGroup) -> Iterator[int]:
    """The same for the topics that they subscribe to."""
    return (len(member.topics) // PARTITIONS_OF_A_TOPIC for member in group.members.values())


def assigned_topics(call: Call, partitions: Iterable[Partition]) -> list[tuple[Topic, tuple[i32, ...]]]:
    """The topics of partitions, in order of their ids, with the indexes of each; deleted topics are left out."""
    return [
        (topic, tuple(map(i32, indexes)))
        for topic_id, indexes in by_topic(partitions).items()
        if (topic := call.context.catalog.by_id(call.org, UUID(hex=topic_id))) is not None
    ]
