"""Notes changes and refusals of the admin HTTP in the security audit, beside those of Kafka clients."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import MultiDict, MultiMapping

from tidegate.audit import ocsf
from tidegate.audit.ocsf import Activity, Origin
from tidegate.audit.trail import AuditTrail
from tidegate.errors import KafkaError
from tidegate.http.access import ACTOR, LOGIN_PATH, LOGOUT_PATH
from tidegate.http.api.endpoint import BODY
from tidegate.http.forms import FIELDS_READ, READS, form_of, has_form
from tidegate.http.people import PERSON, Person
from tidegate.http.problems import Problem
from tidegate.security.identity import DEFAULT_ORG

LISTENER: Final = "ADMIN"
_ACTIVITIES: Final = {
    "POST": Activity.UPDATE,
    "PATCH": Activity.UPDATE,
    "PUT": Activity.UPDATE,
    "DELETE": Activity.DELETE,
}
_RESOURCES: Final = ("group", "member", "topic", "node_id", "action_id", "action")
_REFUSED: Final = (401, 403, 429)


def origin_of(request: web.Request, who: Person | str | None = None) -> Origin:
    """Who sends a request; `who` before it is known to the request."""
    person = who if isinstance(who, Person) else request.get(PERSON)
    name = who if isinstance(who, str) else request[ACTOR].name if ACTOR in request else "anonymous"
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    port = peer[1] if isinstance(peer, tuple) else 0
    return Origin(
        person.principal if person else name,
        person.org if person else DEFAULT_ORG,
        request.remote or "",
        port,
        LISTENER,
        request.headers.get("User-Agent", ""),
    )


def note_authentication(
    trail: AuditTrail, request: web.Request, mechanism: str, who: Person | str | None, refused: str | None = None
) -> None:
    """Somebody logged in, or was refused. Equal refusals of a batch are one event."""
    origin = origin_of(request, who)
    if refused is None:
        trail.note(ocsf.authentication(origin, mechanism))
    else:
        key = (request.remote, LISTENER, mechanism, refused)
        trail.note_repeatable(key, lambda: ocsf.authentication(origin, mechanism, refused))


class RequestAudit:
    """`middleware` goes around the access rules and inside what makes answers of errors."""

    def __init__(self, trail: AuditTrail | None) -> None:
        self._trail = trail

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note what a request changed, or why it was refused."""
        if self._trail is None:
            return await handler(request)
        try:
            answer = await handler(request)
        except Problem as problem:
            await self._note(request, problem.status, problem.detail)
            raise
        except KafkaError as error:
            await self._note(request, 400, error.code.name.upper())
            raise
        except web.HTTPException as error:
            await self._note(request, error.status, error.reason)
            raise
        await self._note(request, answer.status, f"HTTP status {answer.status}")
        return answer

    async def _note(self, request: web.Request, status: int, reason: str) -> None:
        assert self._trail is not None
        changes = request.method not in READS and request.path not in (LOGIN_PATH, LOGOUT_PATH)
        if not changes and status not in _REFUSED:
            return
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "an unknown path"
        error = None if status < 400 else reason
        activity = _ACTIVITIES.get(request.method, Activity.READ)
        refused = status in _REFUSED
        operation, origin, named = f"{request.method} {path}", origin_of(request), await _resources(request, refused)
        if refused:
            key = (origin.principal, origin.host, operation, status)
            self._trail.note_repeatable(
                key, lambda: ocsf.api_activity(origin, operation, activity, named, error, "admin")
            )
        else:
            self._trail.note(ocsf.api_activity(origin, operation, activity, named, error, "admin"))


async def _resources(request: web.Request, refused: bool) -> list[tuple[str, str]]:
    """What a request names: the names in its path and those that its handler read from its form or body.

    No handler read a refused request: it names all that its form or its query has, and every organisation, because
    it may be refused for any of them.
    """
    if refused:
        fields, orgs = await _unread(request)
    else:
        fields = request.get(FIELDS_READ, {})
        orgs = [fields["org"]] if "org" in fields else [] if has_form(request) else request.query.getall("org", [])[:1]
    named = [("org", org) for org in orgs if orgs != [DEFAULT_ORG]]
    in_body = {"topic": getattr(request.get(BODY), "topic", "")}
    values = {**fields, **{name: value for name, value in in_body.items() if value}, **request.match_info}
    return named + [(name, values[name]) for name in _RESOURCES if values.get(name)]


async def _unread(request: web.Request) -> tuple[dict[str, str], list[str]]:
    """The fields of a form, or else of the query, each with its first value; and the organisations of both."""
    form: MultiMapping[Any] = MultiDict()
    if has_form(request):
        with suppress(web.HTTPException):
            form = await form_of(request)
    fields = {name: value for name, value in dict(form or request.query).items() if isinstance(value, str)}
    return fields, list(dict.fromkeys([*request.query.getall("org", []), *form.getall("org", [])]))
