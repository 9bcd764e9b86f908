"""ShareGroupHeartbeat (inline: no task and no future) and ShareGroupDescribe: members of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1.response import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeResponse,
    TopicPartitions,
)
from kio.static.primitive import i32

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
from tidegate.apis.registry import api, inline_api
from tidegate.apis.topic_rights import may_all
from tidegate.errors import GroupIdNotFound, InvalidGroupId, InvalidRequest, KafkaError, TopicAuthorizationFailed
from tidegate.groups.consumer.decisions import Decided
from tidegate.groups.consumer.model import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatAnswer, Partition
from tidegate.groups.decision_queue import computed
from tidegate.groups.model import MemberRef
from tidegate.groups.share.assignor import SIMPLE
from tidegate.groups.share.model import ShareGroup, ShareHeartbeat
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.consumer_group_writers import consumer_group_heartbeat
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.security.acls import Operation
from tidegate.store.outcome import Failure
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
    from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
    from kio.schema.types import GroupId

MEMBER_ID_LENGTH_MAX: Final = 36
SUBSCRIPTION_LENGTH_MAX: Final = 1 << 20
"""Characters of one member's subscription."""
_METER: Final = metrics.apis[ApiKey.SHARE_GROUP_HEARTBEAT]


def _heartbeat_large(call: Call, request: ShareGroupHeartbeatRequest) -> None:
    answer = partial(_answer, call, request)
    call.answer_later(answer_decided(partial(heartbeat, call, request), answer), request)


@inline_api(
    ApiKey.SHARE_GROUP_HEARTBEAT,
    first=1,
    last=1,
    large=_heartbeat_large,
    error=at_top(member_id=None, member_epoch=0, heartbeat_interval=NO_TIME, assignment=None),
)
def heartbeat(
    call: Call, request: ShareGroupHeartbeatRequest, on_decided: Callable[[Decided], None] | None = None
) -> None:
    """Join or leave a share group, renew the session of a member, and give it its assignment (KIP-932)."""
    answer = on_decided or partial(_answer, call, request)
    try:
        entered = _request(call, request)
    except KafkaError as error:
        answer(error)
        return
    keys, context = call.store.group_keys(call.org, request.group_id), call.context
    if entered.member_epoch == JOIN_EPOCH:
        submit = partial(context.shares.groups.submit, keys, entered, answer, call)
        group_creation.when_admitted(call, keys, submit, answer)
        return
    if not entered.is_plain:
        context.shares.groups.submit(keys, entered, answer, call)
        return

    def on_reply(answered: int | Failure | None) -> None:
        if answered is None:
            context.shares.groups.submit(keys, entered, answer, call)
        elif isinstance(answered, Failure):
            answer(answered.error)
        else:
            answer(HeartbeatAnswer(entered.member_id, entered.member_epoch, None, interval_ms(answered)))

    def interval_ms(of_group: int) -> int:
        return of_group or context.settings.group_consumer_heartbeat_interval_ms

    plain = context.consumers.plain
    member = plain.answer(keys, MemberRef(entered.member_id, entered.member_epoch), on_reply)
    if member is not None:
        of_group = interval_ms(member.group.heartbeat_interval_ms)
        body = consumer_group_heartbeat(entered.member_id, entered.member_epoch, of_group, None)
        call.client.repeat = Repeat(call, body, partial(plain.renew, member))


def _answer(call: Call, request: ShareGroupHeartbeatRequest, decided: Decided) -> None:
    if isinstance(decided, HeartbeatAnswer) and decided.assignment:
        answer_assignment(call, _METER, request, decided)
    else:
        answer_heartbeat(call, _METER, decided)


def _request(call: Call, request: ShareGroupHeartbeatRequest) -> ShareHeartbeat:
    """The validated request, in the order of Kafka's checks. Raises the KafkaError of the first that fails."""
    epoch, names = request.member_epoch, request.subscribed_topic_names
    if not request.group_id.strip():
        raise InvalidRequest("the group id is blank")
    if not request.member_id.strip():
        raise InvalidRequest("the member id is blank")
    if len(request.member_id) > MEMBER_ID_LENGTH_MAX:
        raise InvalidRequest(f"the member id is longer than {MEMBER_ID_LENGTH_MAX} characters")
    if request.rack_id is not None and not request.rack_id.strip():
        raise InvalidRequest("the rack id is blank")
    if epoch == JOIN_EPOCH and not names:
        raise InvalidRequest("a join needs a subscription")
    if epoch < LEAVE_EPOCH:
        raise InvalidRequest("the member epoch is below -1")
    if sum(map(len, names or ())) > SUBSCRIPTION_LENGTH_MAX:
        raise InvalidRequest("the subscription is too large")
    return ShareHeartbeat(
        request.member_id,
        epoch,
        request.rack_id,
        None if names is None else frozenset(names),
        call.client_id or "",
        f"/{call.client.host}",
        call.client.called_itself,
    )


@api(ApiKey.SHARE_GROUP_DESCRIBE, first=1, last=1, answers_large=True, error=error_responses.describe_consumer_groups)
async def describe(call: Call, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    """Describe share groups and their members; each group succeeds or fails by itself."""
    refused = partial(undescribed, DescribedGroup, assignor_name="")
    groups = await describe_each(call, request.group_ids, _describe, refused, request.include_authorized_operations)
    return ShareGroupDescribeResponse(throttle_time=NO_TIME, groups=groups)


async def _describe(call: Call, group_id: GroupId) -> DescribedGroup:
    if not group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, group_id)
    shares = call.context.shares.groups
    await shares.expire(keys)
    group = await shares.read(keys)
    if not group.is_stored:
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
        assignor_name=SIMPLE,
        members=members,
    )


def _described(call: Call, group: ShareGroup) -> tuple[tuple[Member, ...], frozenset[str]]:
    """The members, and the topics that any of them subscribes to."""
    topics = frozenset[str]().union(*(one.topics for one in group.members.values()))
    return tuple(_members(call, group)), topics


def _members(call: Call, group: ShareGroup) -> Iterable[Member]:
    for member_id, member in sorted(group.members.items()):
        yield Member(
            member_id=member_id,
            rack_id=member.rack_id,
            member_epoch=i32(member.epoch),
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topics)),  # type: ignore[arg-type]
            assignment=_assignment(call, member.assigned),
        )


def _assignment(call: Call, partitions: Iterable[Partition]) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes)  # type: ignore[arg-type]
            for topic, indexes in assigned_topics(call, partitions)
        )
    )
