"""Responses as plain trees in which ids, addresses and places do not differ between two targets."""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

_MADE_ID: Final = re.compile(r"(.*)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)

NOT_COMPARED: Final = {"error_message": "wording", "message": "wording"}
"""Fields whose values are each target's own; only whether they are there is compared."""

_MEMBER_IDS: Final = frozenset({"member_id", "leader"})
_PLACES: Final[dict[str, Callable[[Any], bool]]] = {
    "node_id": lambda value: value >= 0,
    "host": bool,
    "port": lambda value: value >= 0,
}

Sorting = Callable[[Any], Any]
UNORDERED: Final[dict[tuple[str, str], Sorting]] = {
    ("JoinGroup", "members"): lambda one: one["member_id"],
    ("DescribeGroups", "members"): lambda one: one["member_id"],
    ("DescribeGroups", "groups"): lambda one: one["group_id"],
    ("ListGroups", "groups"): lambda one: one["group_id"],
    ("DeleteGroups", "results"): lambda one: one["group_id"],
    ("OffsetFetch", "topics"): lambda one: str(one.get("name", one.get("topic_id"))),
    ("OffsetFetch", "partitions"): lambda one: one["partition_index"],
    ("OffsetCommit", "topics"): lambda one: str(one.get("name", one.get("topic_id"))),
    ("OffsetCommit", "partitions"): lambda one: one["partition_index"],
    ("OffsetDelete", "topics"): lambda one: one["name"],
    ("OffsetDelete", "partitions"): lambda one: one["partition_index"],
    ("ApiVersions", "api_keys"): lambda one: one["api_key"],
}
"""Arrays without an order of their own, and what to sort them by."""


class Names:
    """One target's ids in one conversation, by names that both targets share."""

    def __init__(self, group_id: str) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._group_id = group_id

    def learn(self, member_id: str, actor: str) -> None:
        """`actor` was given this id: its first, second, ... The prefix (client or instance id) stays visible."""
        if member_id in self._names or not (made := _MADE_ID.fullmatch(member_id)):
            return
        self._counts[actor] = self._counts.get(actor, 0) + 1
        self._names[member_id] = f"{made[1]}-<{actor}.{self._counts[actor]}>"

    def member(self, member_id: str) -> str:
        """The shared name of a member id; an id that no member got yet is only known by its prefix."""
        made = _MADE_ID.fullmatch(member_id)
        return self._names.get(member_id, f"{made[1]}-<?>" if made else member_id)

    def plain(self, values: Any) -> Any:
        """What a request says, with names for ids."""
        if isinstance(values, dict):
            return {name: self.plain(value) for name, value in values.items()}
        if isinstance(values, list):
            return [self.plain(value) for value in values]
        return self.text(self.member(values)) if isinstance(values, str) else values

    def text(self, text: str) -> str:
        """Free text without this conversation's group id."""
        return text.replace(self._group_id, "<group>")


def normalise(api: str, response: Any, names: Names) -> Any:
    """A tree of dicts, lists and plain values."""
    return _tree(api, "", response, names)


def _tree(api: str, name: str, value: Any, names: Names) -> Any:
    if dataclasses.is_dataclass(value):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field: _tree(api, field, own, names) for field, own in fields}
    if isinstance(value, tuple):
        items = [_tree(api, name, one, names) for one in value]
        return sorted(items, key=UNORDERED[api, name]) if (api, name) in UNORDERED else items
    return _leaf(name, value, names)


def _leaf(name: str, value: Any, names: Names) -> Any:
    if name in NOT_COMPARED:
        return None if value is None else f"<{NOT_COMPARED[name]}>"
    if name in _PLACES and value is not None:
        return f"<{name}>" if _PLACES[name](value) else value
    if name in _MEMBER_IDS:
        return names.member(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, uuid.UUID):
        return "<id>"
    return names.text(value) if isinstance(value, str) else value


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Every value by its path, such as `members[0].member_id`; an array's length counts as a value."""
    if isinstance(tree, dict):
        return {key: value for name, own in tree.items() for key, value in leaves(own, f"{path}.{name}").items()}
    if isinstance(tree, list):
        found: dict[str, Any] = {f"{path.lstrip('.')}.length": len(tree)}
        for index, own in enumerate(tree):
            found |= leaves(own, f"{path}[{index}]")
        return found
    return {path.lstrip("."): tree}
