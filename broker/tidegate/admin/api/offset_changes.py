"""REST endpoints that move a group's offsets: plan, execute, undo."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from tidegate.admin import offset_actions
from tidegate.admin.api.endpoint import Asked, Model, Nothing, OfOrg, endpoint
from tidegate.admin.reset_plan import Choice

_WAYS = ("to_earliest", "to_latest", "to_current", "to_offset", "shift_by", "to_datetime", "by_duration", "offsets")


class WantedOffset(Model):
    """Where a partition is to go; null forgets what is committed."""

    topic: str
    partition: int = Field(ge=0, lt=1 << 31)
    offset: int | None = Field(ge=0, lt=1 << 63)


class OffsetReset(Model):
    """Exactly one way, as kafka-consumer-groups has them, and which partitions: `topics`, `all_topics`, or `offsets`.

    A topic is `orders`, or `orders:0,1`. `offsets` from a plan's `moves` does just what was shown.
    """

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    to_datetime: str | None = Field(default=None, description="ISO 8601, UTC unless it says otherwise")
    by_duration: str | None = Field(default=None, description="ISO 8601: P7D, PT1H30M")
    offsets: list[WantedOffset] | None = Field(default=None, min_length=1, max_length=50_000)
    topics: list[str] = Field(default_factory=list)
    all_topics: bool = False
    fence: bool = Field(default=False, description="remove all members in the same step; those alive join again")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [way for way in _WAYS if getattr(self, way) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(_WAYS)}")
        if (self.offsets is None) == (not self.topics and not self.all_topics):
            raise ValueError("topics or all_topics, unless there are offsets")
        return self

    def wanted(self, group_id: str) -> offset_actions.Reset:
        """The request as `offset_actions` takes it."""
        ways: dict[str, Any] = {way: getattr(self, way) for way in _WAYS if way != "offsets"}
        if self.offsets is not None:
            ways["offsets"] = {(one.topic, one.partition): one.offset for one in self.offsets}
        return offset_actions.Reset(group_id, Choice(**ways), tuple(self.topics), self.all_topics, self.fence)


class OffsetMove(Model):
    """One partition: from where (null: nothing is committed) to where (null: forgotten)."""

    topic: str
    partition: int
    before: int | None
    after: int | None
    note: str


class MemberInTheWay(Model):
    """A member that would have to stop, or to be fenced."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str


class OffsetPlan(Model):
    """What a reset would do; `allowed` unless the group has members and is not to be fenced."""

    group: str
    exists: bool
    allowed: bool
    moves: list[OffsetMove]
    members: list[MemberInTheWay]


class OffsetsMoved(Model):
    """What a reset did; not `complete` where a note says what became of a partition instead.

    Not `undoable` where it moved so many offsets that the audit does not keep what was.
    """

    action_id: str
    group: str
    complete: bool
    undoable: bool
    removed: int
    moves: list[OffsetMove]


class Fence(Nothing):
    """Whether members are removed first."""

    fence: bool = False


@endpoint("POST", "/groups/{group}/offsets/plan", OffsetPlan, query=OfOrg, body=OffsetReset)
async def plan_offset_reset(asked: Asked) -> dict[str, Any]:
    """What a reset of offsets would do; nothing is changed."""
    wanted = asked.body.wanted(asked.names["group"])
    return await offset_actions.plan_reset(asked.context, asked.actor, asked.query.org, wanted)


@endpoint("POST", "/groups/{group}/offsets/reset", OffsetsMoved, query=OfOrg, body=OffsetReset, fails=(409,))
async def reset_offsets(asked: Asked) -> dict[str, Any]:
    """Move a group's offsets; `action_id` undoes it. With `fence` the members are removed in the same step."""
    wanted = asked.body.wanted(asked.names["group"])
    return await offset_actions.reset(asked.context, asked.actor, asked.query.org, wanted)


@endpoint("POST", "/audit/{action_id}/undo", OffsetsMoved, query=Fence, fails=(404, 409))
async def undo_action(asked: Asked) -> dict[str, Any]:
    """Put back the offsets that an action moved or forgot, unless the group has committed since."""
    return await offset_actions.undo(asked.context, asked.actor, asked.names["action_id"], asked.query.fence)
