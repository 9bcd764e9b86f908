"""Offset resets: choose a target, review the dry run, confirm, and undo.

The confirmation form carries the offsets of the dry run, so exactly the reviewed offsets are applied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from multidict import MultiMapping

from tidegate.cluster import audit
from tidegate.diagnosis.group_snapshot import GroupSnapshot
from tidegate.groups.reset_plan import Choice, TopicPartition
from tidegate.http import group_views, offset_actions
from tidegate.http.access import ACTOR
from tidegate.http.console.action_pages import confirmed, field, group_of
from tidegate.http.console.site import console_of, named, org_of, page
from tidegate.http.forms import form_of
from tidegate.http.offset_actions import Reset
from tidegate.http.problems import Problem


@dataclass(frozen=True, slots=True)
class Way:
    """One way to choose offsets: `kind` is the type of its input, "" for none."""

    name: str
    text: str
    kind: str = ""
    example: str = ""


WAYS: Final = (
    Way("earliest", "The earliest record there is"),
    Way("latest", "The end: skip everything that waits"),
    Way("datetime", "The first record at or after a time, UTC", "text", "2026-01-31T18:00:00"),
    Way("duration", "The first record not older than", "text", "PT1H30M"),
    Way("shift", "So many records on; back if negative", "number", "-100"),
    Way("offset", "This offset", "number", "0"),
)


_PARTITIONS: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def chosen(query: Mapping[str, str]) -> Choice:
    """The choice in the form. Raises Problem."""
    to = query.get("to", "")
    value = query.get(f"value-{to}", "").strip()
    if to in ("offset", "shift"):
        try:
            number = int(value)
        except ValueError:
            raise Problem(400, f"{value or 'Nothing'} is not a whole number.") from None
        return Choice(to_offset=number) if to == "offset" else Choice(shift_by=number)
    if to in ("datetime", "duration"):
        if not value:
            raise Problem(400, f"A {to} is missing.")
        return Choice(to_datetime=value) if to == "datetime" else Choice(by_duration=value)
    if to not in ("earliest", "latest"):
        raise Problem(400, "Choose where the offsets go to.")
    return Choice(to_earliest=to == "earliest", to_latest=to == "latest")


def chosen_topics(query: MultiMapping[str], known: Mapping[str, int]) -> tuple[str, ...]:
    """The topics of the form, optionally with partitions: `orders:0,2,3`. Raises Problem."""
    found = []
    for name in query.getall("topic", []):
        if name in known:
            indexes = partitions(query.get(f"partitions-{name}", ""))
            found.append(f"{name}:{','.join(map(str, indexes))}" if indexes else name)
    return tuple(found)


def partitions(text: str) -> list[int]:
    """Parse `0,2-5`; empty for "". Raises Problem."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(",") if text.strip() else ():
        fits = _PARTITIONS.fullmatch(part)
        if fits is None or int(fits[2] or fits[1]) < int(fits[1]):
            raise Problem(400, f"{text} names no partitions: write 0,2-5, or nothing for all.")
        found.update(range(int(fits[1]), int(fits[2] or fits[1]) + 1))
    return sorted(found)


def topics_of(snapshot: GroupSnapshot) -> dict[str, int]:
    """The group's committed topics: topic -> partitions."""
    counts: dict[str, int] = {}
    for commit in snapshot.commits:
        counts[commit.topic] = counts.get(commit.topic, 0) + 1
    return counts


async def choose(request: web.Request) -> web.StreamResponse:
    """The form; once submitted, with the dry run below."""
    console, org, group_id = console_of(request), org_of(request), named(request, "group")
    found = await group_views.view(console.context, org, group_id)
    topics = topics_of(found.snapshot)
    shared: dict[str, Any] = {"group_id": group_id, "ways": WAYS, "topics": topics, "query": request.query}
    if "to" not in request.query:
        return await page(request, "reset.html", plan=None, problem="", **shared)
    try:
        named_topics = chosen_topics(request.query, topics)
        wanted = Reset(group_id, chosen(request.query), named_topics, all_topics=not named_topics)
        plan = await offset_actions.plan_reset(console.context, request[ACTOR], org, wanted)
    except Problem as problem:
        return await page(request, "reset.html", plan=None, problem=problem.detail, status=problem.status, **shared)
    moves = json.dumps([[one["topic"], one["partition"], one["after"]] for one in plan["moves"]])
    return await page(request, "reset.html", plan=plan, moves=moves, problem="", **shared)


def shown(text: str) -> dict[TopicPartition, int | None]:
    """The offsets of the reviewed dry run, from its form. Raises HTTPBadRequest."""
    try:
        moves = {
            (str(topic), int(partition)): None if offset is None else int(offset)
            for topic, partition, offset in json.loads(text)
        }
    except (ValueError, TypeError):
        moves = {}
    if not moves:
        raise web.HTTPBadRequest(text="The offsets of the form cannot be read; nothing was changed.")
    return moves


async def apply(request: web.Request) -> web.StreamResponse:
    """Move the reviewed offsets."""
    org, group_id = await group_of(request)
    await confirmed(request, group_id)
    wanted = Reset(
        group_id,
        Choice(offsets=shown(await field(request, "moves"))),
        fence="fence" in await form_of(request),
    )
    try:
        done = await offset_actions.reset(console_of(request).context, request[ACTOR], org, wanted)
    except Problem as problem:
        return await _refused(request, org, group_id, problem)
    return await page(request, "reset_done.html", org=org, group_id=group_id, done=done, undone=False)


async def ask_undo(request: web.Request) -> web.StreamResponse:
    """Show what an undo would restore, with its button."""
    action = await audit.find(console_of(request).context.store, named(request, "action"))
    if action is None or action["undo"] is None:
        raise web.HTTPNotFound(text="There is no such action, or it is no longer stored.")
    return await page(request, "reset_undo.html", action=action, group_id=action["undo"]["group"])


async def undo(request: web.Request) -> web.StreamResponse:
    """Undo a reset or a deletion of the form's group. Raises HTTPBadRequest."""
    org, group_id = await group_of(request)
    action, fence = await field(request, "action"), "fence" in await form_of(request)
    stored = await audit.find(console_of(request).context.store, action)
    of = stored["undo"] if stored is not None else None
    if of is not None and (of["org"], of["group"]) != (org, group_id):
        raise web.HTTPBadRequest(text="That action is of another group; nothing was changed.")
    try:
        done = await offset_actions.undo(console_of(request).context, request[ACTOR], action, fence)
    except Problem as problem:
        return await _refused(request, org, group_id, problem)
    return await page(request, "reset_done.html", org=org, group_id=group_id, done=done, undone=True)


async def _refused(request: web.Request, org: str, group_id: str, problem: Problem) -> web.Response:
    return await page(
        request,
        "error.html",
        status=problem.status,
        org=org,
        title=f"The offsets of {group_id} were not moved",
        sentence=problem.detail,
        advice="Check the group, and start again.",
        retry=False,
    )
