"""The commands' side of the admin HTTP: what Kafka's protocol does not tell of groups."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from broker.admin.failures import CommandFailed, in_words

SEVERITIES: Final = ("stuck", "trouble", "")
"""Worst first, as `severity` in a list names them."""

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)


async def get(admin: str, group_id: str | None, what: str, org: str, **query: str) -> Any:
    """GET /groups, /groups/GROUP or /groups/GROUP/`what` as JSON. Raises CommandFailed."""
    if "://" not in admin:
        admin = f"http://{admin}"
    path = "/groups" if group_id is None else f"/groups/{quote(group_id, safe='')}"
    url = URL(f"{admin.rstrip('/')}{path}{'/' + what if what else ''}", encoded=True).with_query(org=org, **query)
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
            status, text = answer.status, await answer.text()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise CommandFailed(f"no admin HTTP answers at {admin} (--admin): {_told(error)}") from None
    try:
        body = json.loads(text)
    except ValueError:
        body = {"error": f"{url} is not Tidegate's admin HTTP: it answered {status}"}
    if "error" in body:
        raise CommandFailed(body["error"])
    return body


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing in {_TIMEOUT.total:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return in_words(error.os_error)
    return "not an address" if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError) else str(error)


async def explain(admin: str, group_id: str | None, org: str) -> list[Any]:
    """What is to be said of one group, or of every group with trouble, worst first. Raises CommandFailed."""
    if group_id is not None:
        return [await get(admin, group_id, "explain", org)]
    rows = [row for row in (await get(admin, None, "", org))["groups"] if row["trouble"]]
    rows.sort(key=lambda row: (SEVERITIES.index(row["severity"]), row["group"]))
    return [await get(admin, row["group"], "explain", org) for row in rows]
