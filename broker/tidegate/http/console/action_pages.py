"""Operators' actions in the console: a form, the same action as REST's, and a redirect with the result.

Access to every request other than a read is checked in `broker/tidegate/http/access.py`.
"""

from __future__ import annotations

from typing import NoReturn

from aiohttp import web

from tidegate.http import actions
from tidegate.http.access import ACTOR
from tidegate.http.console.rendering import url
from tidegate.http.console.site import console_of, valid_org
from tidegate.http.forms import FIELDS_READ, form_of

_REASON = "removed by an administrator"


async def field(request: web.Request, name: str) -> str:
    """A field of the form. Raises HTTPBadRequest."""
    value = (await form_of(request)).get(name, "")
    if not isinstance(value, str) or not value:
        raise web.HTTPBadRequest(text=f"The form has no {name}.")
    request.setdefault(FIELDS_READ, {})[name] = value
    return value


async def group_of(request: web.Request) -> tuple[str, str]:
    """The organisation and group of a form. Raises HTTPBadRequest."""
    return valid_org(await field(request, "org")), await field(request, "group")


async def confirmed(request: web.Request, name: str) -> None:
    """Raises HTTPBadRequest unless the name was typed exactly; forms send line ends as CRLF."""
    typed = await field(request, "typed")
    if typed.split() != name.split():
        raise web.HTTPBadRequest(text=f"Type {name} to confirm; nothing was changed.")


def back_to(page: str, **query: object) -> NoReturn:
    """Redirect to a page after a form."""
    raise web.HTTPSeeOther(url(page, **query))


async def delete_group(request: web.Request) -> web.StreamResponse:
    """Delete an empty group whose name was typed as confirmation."""
    org, group_id = await group_of(request)
    await confirmed(request, group_id)
    await actions.delete_group(console_of(request).context, request[ACTOR], org, group_id)
    back_to("", org=org, done="deleted", what=group_id)


async def remove_member(request: web.Request) -> web.StreamResponse:
    org, group_id = await group_of(request)
    member = await field(request, "member")
    found = await actions.remove_member(console_of(request).context, request[ACTOR], org, group_id, member, _REASON)
    back_to("group", group=group_id, org=org, done="removed", what=found["client_id"])


async def drain(request: web.Request) -> web.StreamResponse:
    node_id = await field(request, "node_id")
    await actions.drain_broker(console_of(request).context, request[ACTOR], node_id)
    back_to("brokers", done="drains", what=node_id)
