"""ConsumerGroupHeartbeat (inline: no task and no future) and ConsumerGroupDescribe: consumer groups of KIP-848."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from kio.schema.consumer_group_describe.v1.response import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i32

from tidegate.apis import group_creation
from tidegate.apis.call import Call, Repeat
from tidegate.apis.epoch_groups import (
    answer_assignment,
    answer_decided,
    answer_heartbeat,
    assigned_topics,
    described_sizes,
    subscribed_sizes,
    undescribed,
)
from tidegate.apis.group_admin import describe_each
from tidegate.apis.record_groups import note_consumer_owner
from tidegate.apis.registry import api, inline_api
from tidegate.apis.slices import SLICE, each
from tidegate.apis.topic_rights import may_all
from tidegate.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
)
from tidegate.groups.classic import REASON_LENGTH_MAX
from tidegate.groups.consumer.assignors import ASSIGNORS, UNIFORM
from tidegate.groups.consumer.decisions import Decided
from tidegate.groups.consumer.errors import UnsupportedAssignor
from tidegate.groups.consumer.membership import Removal
from tidegate.groups.consumer.model import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    HeartbeatAnswer,
    HeartbeatRequest,
    Partition,
    Partitions,
)
from tidegate.groups.decision_queue import computed
from tidegate.groups.model import Leaving
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.consumer_group_writers import consumer_group_heartbeat
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.regular_expressions import compile_regex
from tidegate.security.acls import Operation
from tidegate.store.keys import GroupKeys
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
    from kio.schema.types import GroupId

_MS: Final = timedelta(milliseconds=1)
_CLASSIC_MEMBER: Final = i8(0)
_CONSUMER_MEMBER: Final = i8(1)
_METER: Final = metrics.apis[ApiKey.CONSUMER_GROUP_HEARTBEAT]

SUBSCRIPTION_LENGTH_MAX: Final = 1 << 20
"""Characters of one member's subscription."""


def _heartbeat_large(call: Call, request: ConsumerGroupHeartbeatRequest) -> None:
    call.answer_later(answer_decided(partial(heartbeat, call, request), partial(_answer, call, request)), request)


@inline_api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    first=0,
    last=1,
    large=_heartbeat_large,
    error=at_top(member_id=None, member_epoch=0, heartbeat_interval=NO_TIME, assignment=None),
)
def heartbeat(
    call: Call, request: ConsumerGroupHeartbeatRequest, on_decided: Callable[[Decided], None] | None = None
) -> None:
    """Join, leave, renew the session of a member, and give it its assignment (KIP-848).

    v1: the client makes the member id (KIP-1082), and may subscribe by a regular expression of RE2.
    """
    answer = on_decided or partial(_answer, call, request)
    try:
        entered = _request(call, request)
    except KafkaError as error:
        answer(error)
        return
    keys = call.store.group_keys(call.org, request.group_id)
    consumers = call.context.consumers
    if entered.member_epoch == JOIN_EPOCH:
        submit = partial(consumers.groups.submit, keys, entered, answer, call)
        group_creation.when_admitted(call, keys, submit, answer)
        return
    member = consumers.answer(keys, entered, answer, call)
    if member is not None:
        interval_ms = member.group.heartbeat_interval_ms or call.context.settings.group_consumer_heartbeat_interval_ms
        body = consumer_group_heartbeat(entered.member_id, entered.member_epoch, interval_ms, None)
        call.client.repeat = Repeat(call, body, partial(consumers.plain.renew, member))


def _answer(call: Call, request: ConsumerGroupHeartbeatRequest, decided: Decided) -> None:
    if isinstance(decided, HeartbeatAnswer) and decided.assignment:
        _answer_assigned(call, request, decided)
    else:
        answer_heartbeat(call, _METER, decided)


def _answer_assigned(call: Call, request: ConsumerGroupHeartbeatRequest, decided: HeartbeatAnswer) -> None:
    answer = partial(answer_assignment, call, _METER, request, decided)
    if call.context.catalog.record_topics:
        keys = call.store.group_keys(call.org, request.group_id)
        call.answer_later(_answer_owner(call, keys, decided, answer), request)
    else:
        answer()


async def _answer_owner(call: Call, keys: GroupKeys, decided: HeartbeatAnswer, answer: Callable[[], None]) -> None:
    """Answer with an assignment that may have partitions of format record."""
    try:
        await note_consumer_owner(call, keys, decided.member_id, decided.assignment or ())
    finally:
        answer()


def _request(call: Call, request: ConsumerGroupHeartbeatRequest) -> HeartbeatRequest:
    """The validated request, in the order of Kafka's checks. Raises the KafkaError of the first that fails."""
    epoch = request.member_epoch
    if not request.group_id.strip():
        raise InvalidRequest("the group id is blank")
    member_id = _member_id(call, request)
    for name, value in (("instance id", request.instance_id), ("rack id", request.rack_id)):
        if value is not None and not value.strip():
            raise InvalidRequest(f"the {name} is blank")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequest("the member epoch is below -2")
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise InvalidRequest("only a static member can leave with the epoch -2")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise UnsupportedAssignor(f"the assignors are {', '.join(ASSIGNORS)}")
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if sum(map(len, names or ())) > SUBSCRIPTION_LENGTH_MAX:
        raise InvalidRequest("the subscription is too large")
    if regex and epoch >= JOIN_EPOCH:
        compile_regex(regex)
    return HeartbeatRequest(
        member_id,
        epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout // _MS,
        None if names is None else frozenset(names),
        regex,
        request.server_assignor,
        _owned(request.topic_partitions),
        call.client_id or "",
        f"/{call.client.host}",
        call.client.called_itself,
        principal=call.client.principal,
    )


def _member_id(call: Call, request: ConsumerGroupHeartbeatRequest) -> str:
    """The member's id; before v1 the broker makes it."""
    member_id: str = request.member_id
    if member_id.strip():
        return member_id
    if call.version >= 1 or request.member_epoch != JOIN_EPOCH:
        raise InvalidRequest("the member id is blank")
    return urlsafe_b64encode(uuid4().bytes)[:22].decode()


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout // _MS == -1:
        raise InvalidRequest("a join needs a rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("a member that joins owns no partitions")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest("a join needs a subscription")


def _owned(topics: Any) -> Partitions | None:
    if topics is None:
        return None
    return frozenset((topic.topic_id.hex, index) for topic in topics if topic.topic_id for index in topic.partitions)


# -- LeaveGroup


async def leave_consumer_group(call: Call, keys: GroupKeys, leaving: Sequence[Leaving]) -> list[int]:
    """Remove members that LeaveGroup did not find in a classic group from a KIP-848 group; the code of each."""
    host, client_id = f"/{call.client.host}", call.client_id or ""
    kind = "member_left" if len(leaving) == 1 and leaving[0].member_id else "member_removed"
    detail = "" if kind == "member_left" else f"{host} {client_id}"

    async def remove(member: Leaving) -> int:
        removal = Removal(member.member_id, member.instance_id, kind, member.reason[:REASON_LENGTH_MAX], detail)
        try:
            await call.context.consumers.groups.run(keys, removal, call)
        except GroupIdNotFound:
            return ErrorCode.unknown_member_id.value
        except KafkaError as error:
            return error.code.value
        return ErrorCode.none.value

    return await each(leaving, remove, SLICE)  # one decision for all of a slice


# -- ConsumerGroupDescribe


@api(
    ApiKey.CONSUMER_GROUP_DESCRIBE, first=0, last=1, answers_large=True, error=error_responses.describe_consumer_groups
)
async def describe(call: Call, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """Describe groups and their members; each group succeeds or fails by itself. v1: the type of each member."""
    refused = partial(undescribed, DescribedGroup, assignor_name="")
    groups = await describe_each(call, request.group_ids, _describe, refused, request.include_authorized_operations)
    return ConsumerGroupDescribeResponse(throttle_time=NO_TIME, groups=groups)


async def _describe(call: Call, group_id: GroupId) -> DescribedGroup:
    if not group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, group_id)
    consumers = call.context.consumers.groups
    await consumers.run(keys, None)
    group = await consumers.read(keys)
    if not group.is_consumer:
        raise GroupIdNotFound(f"Group {group_id} not found.")
    sizes = chain(described_sizes(group), subscribed_sizes(group))
    members, topics = await computed(sizes, partial(_described, call, group))
    if not await may_all(call, Operation.DESCRIBE, topics):
        raise TopicAuthorizationFailed("the group has topics that the client may not describe")
    return DescribedGroup(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state,
        group_epoch=i32(group.epoch),
        assignment_epoch=i32(group.target_epoch),
        assignor_name=(group.members and group.assignor) or UNIFORM,
        members=members,
    )


def _described(call: Call, group: ConsumerGroup) -> tuple[tuple[Member, ...], set[str]]:
    """The members, and the topics of their assignments."""
    members = tuple(_members(call, group))
    return members, _described_topics(members)


def _members(call: Call, group: ConsumerGroup) -> Iterable[Member]:
    for member_id, member in sorted(group.members.items()):
        yield Member(
            member_id=member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=i32(member.epoch),
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topics)),  # type: ignore[arg-type]
            subscribed_topic_regex=member.regex,
            assignment=_assignment(call, member.held),
            target_assignment=_assignment(call, group.targets.get(member_id, NO_PARTITIONS)),
            member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        )


def _described_topics(members: Iterable[Member]) -> set[str]:
    assignments = (one for member in members for one in (member.assignment, member.target_assignment))
    return {topic.topic_name for assignment in assignments for topic in assignment.topic_partitions}


def _assignment(call: Call, partitions: Iterable[Partition]) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes)  # type: ignore[arg-type]
            for topic, indexes in assigned_topics(call, partitions)
        )
    )
