"""Events of the Open Cybersecurity Schema Framework 1.0: authentication, account change, API activity. Pure.

https://schema.ocsf.io/1.0.0: classes 3002, 3001, 6003.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import tidegate

SCHEMA: Final = "1.0.0"
TEXT_MAX: Final = 256
"""Characters of a text that a client chose; the rest is left out."""
RESOURCES_MAX: Final = 20
"""Resources that one event names."""


class Activity(enum.IntEnum):
    """What an API call does (`activity_id` of class 6003)."""

    CREATE = 1
    READ = 2
    UPDATE = 3
    DELETE = 4


class AccountActivity(enum.IntEnum):
    """What happened to an account (`activity_id` of class 3001)."""

    CREATE = 1
    PASSWORD_CHANGE = 3
    DELETE = 6
    OTHER = 99


_LOGON: Final = 1
_NAMES: Final = {AccountActivity.PASSWORD_CHANGE: "Password Change"}
_CATEGORIES: Final = {3: "Identity & Access Management", 6: "Application Activity"}
_CLASSES: Final = {3001: "Account Change", 3002: "Authentication", 6003: "API Activity"}
_INFORMATIONAL, _LOW = 1, 2


@dataclass(frozen=True, slots=True)
class Origin:
    """Who acts, and from where."""

    principal: str
    org: str
    host: str
    port: int
    listener: str
    client_id: str = ""


def authentication(origin: Origin, mechanism: str, refused: str | None = None) -> dict[str, Any]:
    """A client authenticated; `refused` is the reason why not."""
    event = _event(3002, _LOGON, "Logon", origin, refused)
    return event | {"user": _user(origin.principal, origin.org), "auth_protocol": mechanism, "is_remote": True}


def account_change(origin: Origin, name: str, activity: AccountActivity, error: str | None = None) -> dict[str, Any]:
    """A user was created, changed or deleted."""
    event = _event(3001, activity, _NAMES.get(activity, activity.name.capitalize()), origin, error)
    return event | {"user": _user(f"User:{name}", origin.org)}


def api_activity(
    origin: Origin,
    operation: str,
    activity: Activity,
    resources: Sequence[tuple[str, str]],
    error: str | None = None,
    service: str = "kafka",
    left_out: int = 0,
) -> dict[str, Any]:
    """An API was called, for resources of (type, name), and as many more as are left out.

    `error` is Kafka's name of a code, or a sentence.
    """
    named = [{"type": kind, "name": _cut(name)} for kind, name in resources[:RESOURCES_MAX]]
    event = _event(6003, activity, activity.name.capitalize(), origin, error)
    response = {"code": 0} if error is None else {"code": 1, "error": error}
    api: dict[str, Any] = {"operation": operation, "service": {"name": service}, "response": response}
    left_out += max(len(resources) - RESOURCES_MAX, 0)
    if left_out:
        event["unmapped"] = {"resources_left_out": left_out}
    return event | {"api": api, "resources": named}


def _event(class_uid: int, activity: int, name: str, origin: Origin, error: str | None) -> dict[str, Any]:
    category = class_uid // 1000
    event: dict[str, Any] = {
        "class_uid": class_uid,
        "class_name": _CLASSES[class_uid],
        "category_uid": category,
        "category_name": _CATEGORIES[category],
        "activity_id": int(activity),
        "activity_name": name,
        "type_uid": class_uid * 100 + int(activity),
        "severity_id": _INFORMATIONAL if error is None else _LOW,
        "status_id": 1 if error is None else 2,
        "status": "Success" if error is None else "Failure",
        "actor": {"user": _user(origin.principal, origin.org)},
        "src_endpoint": {"ip": origin.host, "port": origin.port},
        "dst_endpoint": {"interface_name": origin.listener},
        "metadata": {
            "version": SCHEMA,
            "product": {"name": "Tidegate", "vendor_name": "Tidegate", "version": tidegate.__version__},
        },
    }
    if origin.client_id:
        event["actor"]["invoked_by"] = _cut(origin.client_id)
    if error is not None:
        event["status_detail"] = _cut(error)
    return event


def _user(principal: str, org: str) -> dict[str, Any]:
    return {"name": _cut(principal), "org": {"name": org}}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
