"""The audit of administrators' changes in `{cluster}:audit`: one entry before each change, one with its outcome.

The first entry contains everything that an undo needs. If the broker dies in between, the missing outcome shows it.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.store.foreign_entries import StreamEntry
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ADD_AUDIT = Script("cluster/add_audit")

logger = structlog.get_logger()

OPEN: Final = "open"
"""Outcome of an action that is running, or whose broker died."""
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
"""The action may have been executed in whole or in part."""

ACTIONS_MAX: Final = 5_000
"""Number of actions that are retained."""
UNDO_BYTES_MAX: Final = 65_536
"""Maximum compressed bytes to undo one action; an action that needs more cannot be undone."""
_READ_FACTOR: Final = 2
"""Stream entries per action."""
_PLAIN_BYTES: Final = 2_048
"""Undo data up to this many bytes is stored as plain JSON, larger data compressed."""
_COMPRESSED: Final = "zlib,b85:"
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: user name, role, remote address."""

    name: str
    role: str
    remote: str


class ActionFailed(Exception):
    """An expected failure of an action's body; `outcome` is REFUSED when it certainly changed nothing."""

    outcome: str


@dataclass(slots=True)
class Entry:
    """A running action; its body adds to `result`, and sets `changed` once a part of it is executed."""

    action_id: str
    undoable: bool
    result: dict[str, Any] = field(default_factory=dict)
    changed: bool = False


class Audit:
    """`async with audit.action(...) as entry`: writes the intent before the body and the outcome after it."""

    def __init__(
        self, store: Store, broker: int, actor: Actor, action: str, arguments: Mapping[str, Any], undo: Any = None
    ) -> None:
        self._store, self._broker, self._actor = store, broker, actor
        self._action, self._arguments = action, arguments
        self._undo = None if undo is None else _packed(undo)
        fits = self._undo is not None and len(self._undo) <= UNDO_BYTES_MAX
        self._entry = Entry(uuid.uuid4().hex, undoable=fits)

    async def __aenter__(self) -> Entry:
        fields = {
            "action_id": self._entry.action_id,
            "who": self._actor.name,
            "role": self._actor.role,
            "remote": self._actor.remote,
            "broker": str(self._broker),
            "action": self._action,
            "arguments": _json(self._arguments),
        }
        if self._undo is not None:
            fields |= {"undo": self._undo} if self._entry.undoable else {"undo_bytes": str(len(self._undo))}
        await _add(self._store, fields)
        return self._entry

    async def __aexit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if error is not None and not isinstance(error, KafkaError | ActionFailed):
            return  # a bug, or this broker is stopping: the outcome is unknown
        outcome = _outcome(error, self._entry.changed)
        fields = {"action_id": self._entry.action_id, "outcome": outcome, "result": _json(self._entry.result)}
        if error is not None:
            fields["error"] = str(error)
        try:
            await _add(self._store, fields)
        except StoreUnavailable as away:  # the action itself succeeded, and is answered so
            logger.error("audit_without_outcome", action=self._action, reason=str(away))


def _outcome(error: BaseException | None, changed: bool) -> str:
    if error is None:
        return DONE
    if changed:
        return FAILED
    if isinstance(error, ActionFailed):
        return error.outcome
    return FAILED if isinstance(error, StoreUnavailable) else REFUSED


async def _add(store: Store, fields: Mapping[str, str]) -> None:
    flat = [text for pair in fields.items() for text in pair]
    await store.run(ADD_AUDIT, [store.cluster_keys.audit], ACTIONS_MAX * _READ_FACTOR, *flat)


async def entries(store: Store, count: int) -> list[dict[str, Any]]:
    """The last actions, newest first, without their undo data. Raises StoreUnavailable."""
    found = await store.read("XREVRANGE", store.cluster_keys.audit, "+", "-", "COUNT", count * _READ_FACTOR)
    return [_action(*pair) for pair in _merged(store, found)[:count]]


async def find(store: Store, action_id: str) -> dict[str, Any] | None:
    """One action by its id, with its undo data. Raises StoreUnavailable."""
    before: str = "+"
    newer: list[StreamEntry] = []
    while found := await store.read("XREVRANGE", store.cluster_keys.audit, before, "-", "COUNT", _PAGE):
        newer += [one for one in found if action_id.encode() in one[1]]
        for intent, outcome in _merged(store, newer):
            if intent["action_id"] == action_id:  # not just an entry that contains this text
                undo = _unpacked(intent["undo"]) if "undo" in intent else None
                return {**_action(intent, outcome), "undo": undo, "undo_too_large": "undo_bytes" in intent}
        before = f"({found[-1][0].decode()}"
    return None


def _merged(store: Store, found: list[StreamEntry]) -> list[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Each intent with its outcome, which is empty without one; in the newest-first order the outcome comes first."""
    outcomes: dict[str, dict[str, str]] = {}
    actions: list[tuple[Mapping[str, str], Mapping[str, str]]] = []
    for action_id, fields in store.foreign_entries.leave_out(store.cluster_keys.audit, found, _parsed):
        if "outcome" in fields:
            outcomes.setdefault(action_id, fields)
        elif all(intent["action_id"] != action_id for intent, _ in actions[-1:]):
            actions.append((fields, outcomes.get(action_id, {})))
    return actions


def _parsed(_: bytes, flat: Sequence[bytes]) -> tuple[str, dict[str, str]]:
    """Action id and fields of an intent or an outcome. Raises UNREADABLE if no broker wrote it."""
    fields = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
    if "outcome" in fields:
        _ended(fields)
    else:
        _action(fields, {})
    return fields["action_id"], fields


def _ended(outcome: Mapping[str, str]) -> tuple[int | None, Any]:
    """When the action ended, and its result; None and an empty one without an outcome."""
    return int(outcome["time"]) if outcome else None, json.loads(outcome.get("result", "{}"))


def _action(intent: Mapping[str, str], outcome: Mapping[str, str]) -> dict[str, Any]:
    ended_ms, result = _ended(outcome)
    return {
        "action_id": intent["action_id"],
        "time_ms": int(intent["time"]),
        "ended_ms": ended_ms,
        "who": intent["who"],
        "role": intent["role"],
        "remote": intent["remote"],
        "broker": int(intent["broker"]),
        "action": intent["action"],
        "arguments": json.loads(intent["arguments"]),
        "outcome": outcome.get("outcome", OPEN),
        "error": outcome.get("error"),
        "result": result,
        "undoable": "undo" in intent,
    }


def _packed(undo: Any) -> str:
    text = _json(undo)
    return text if len(text) <= _PLAIN_BYTES else _COMPRESSED + base64.b85encode(zlib.compress(text.encode())).decode()


def _unpacked(kept: str) -> Any:
    compressed = kept.removeprefix(_COMPRESSED)
    return json.loads(kept if compressed is kept else zlib.decompress(base64.b85decode(compressed)))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
