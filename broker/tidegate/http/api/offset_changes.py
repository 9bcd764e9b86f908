"""REST endpoints that move a group's offsets: plan, execute, undo."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import Field, model_validator

from tidegate.groups.reset_plan import Choice, Move
from tidegate.http import offset_actions
from tidegate.http.api.endpoint import BODY_BYTES_MAX, Asked, BodyLimit, endpoint
from tidegate.http.models.base import Model, Nothing, OfOrg, fields_of

_WAYS = ("to_earliest", "to_latest", "to_current", "to_offset", "shift_by", "to_datetime", "by_duration", "offsets")

OFFSETS_MAX: Final = 50_000
"""Offsets of one request."""
_LIMIT: Final = BodyLimit(BODY_BYTES_MAX, 5 * OFFSETS_MAX, "offsets", OFFSETS_MAX)


class WantedOffset(Model):
    """The new offset of a partition; null deletes the commit."""

    topic: str
    partition: int = Field(ge=0, lt=1 << 31)
    offset: int | None = Field(ge=0, lt=1 << 63)


class OffsetReset(Model):
    """Exactly one strategy of kafka-consumer-groups, and the partitions: `topics`, `all_topics` or `offsets`.

    A topic is `orders`, or `orders:0,1`. `offsets` taken from a plan's `moves` applies exactly that plan.
    """

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    to_datetime: str | None = Field(default=None, description="ISO 8601, UTC without an offset")
    by_duration: str | None = Field(default=None, description="ISO 8601: P7D, PT1H30M")
    offsets: list[WantedOffset] | None = Field(default=None, min_length=1, max_length=OFFSETS_MAX, fail_fast=True)
    topics: list[str] = Field(default_factory=list, fail_fast=True)
    all_topics: bool = False
    fence: bool = Field(default=False, description="remove all members in the same step; live members rejoin")

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


class OffsetMove(fields_of(Move, "metadata")):  # type: ignore[misc]
    """One partition: its old offset (null: no commit) and its new one (null: the commit is deleted)."""


class MemberInTheWay(Model):
    """A member that must stop or be fenced first."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str


class OffsetPlan(Model):
    """The plan of a reset; `allowed` unless the group has members and `fence` is false."""

    group: str
    exists: bool
    allowed: bool
    moves: list[OffsetMove]
    members: list[MemberInTheWay]


class OffsetsMoved(Model):
    """The result of a reset; `complete` is always true, because a reset moves all offsets or none.

    Not `undoable` if it moved more offsets than the audit can store.
    """

    action_id: str
    group: str
    complete: bool
    undoable: bool
    removed: int
    moves: list[OffsetMove]


class Fence(Nothing):
    """Whether to remove the members in the same step."""

    fence: bool = False


@endpoint("POST", "/groups/{group}/offsets/plan", OffsetPlan, query=OfOrg, body=OffsetReset, body_limit=_LIMIT)
async def plan_offset_reset(asked: Asked) -> dict[str, Any]:
    """Plan a reset of offsets; nothing is changed."""
    wanted = asked.body.wanted(asked.names["group"])
    return await offset_actions.plan_reset(asked.context, asked.actor, asked.query.org, wanted)


@endpoint(
    "POST",
    "/groups/{group}/offsets/reset",
    OffsetsMoved,
    query=OfOrg,
    body=OffsetReset,
    fails=(409,),
    body_limit=_LIMIT,
)
async def reset_offsets(asked: Asked) -> dict[str, Any]:
    """Move a group's offsets; `action_id` undoes it. `fence` removes the members in the same step."""
    wanted = asked.body.wanted(asked.names["group"])
    return await offset_actions.reset(asked.context, asked.actor, asked.query.org, wanted)


@endpoint("POST", "/audit/{action_id}/undo", OffsetsMoved, query=Fence, fails=(404, 409))
async def undo_action(asked: Asked) -> dict[str, Any]:
    """Restore the offsets that an action moved or deleted, unless the group has committed since."""
    return await offset_actions.undo(asked.context, asked.actor, asked.names["action_id"], asked.query.fence)
