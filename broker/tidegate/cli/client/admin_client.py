"""The CLI's client of the admin HTTP, for group data that Kafka's protocol does not provide."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from tidegate.cli.failures import CommandFailed, describe_os_error
from tidegate.cli.places import AdminHttp

SEVERITIES: Final = ("stuck", "trouble", "")
"""Severities of a list, worst first."""

_REPORTED: Final = {"": "group_id", "history": "events", "explain": "findings"}
"""Required fields of a group response; without them the address belongs to some other server."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)


class NoSuchGroup(CommandFailed):
    """The group does not exist, or no longer."""


class NobodyListens(CommandFailed):
    """Every address refused the connection: no process listens there."""


async def get(admin: AdminHttp, group_id: str | None, what: str, org: str, **query: str) -> Any:
    """GET /groups, /groups/GROUP or /groups/GROUP/`what` below /api/v1 as JSON. Raises CommandFailed."""
    if group_id == "":
        raise CommandFailed("a group id is missing")
    path = "/api/v1/groups" if group_id is None else f"/api/v1/groups/{quote(group_id, safe='')}"
    url, status, text = await _fetch(admin, f"{path}{'/' + what if what else ''}", {"org": org, **query})
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if isinstance(body, dict) and "detail" in body:
        raise (NoSuchGroup if status == 404 else CommandFailed)(body["detail"])
    if not isinstance(body, dict) or ("groups" if group_id is None else _REPORTED[what]) not in body:
        raise CommandFailed(f"{url} answered {status} without groups: is that Tidegate's admin HTTP?")
    return body


async def ask(admin: AdminHttp, method: str, path: str, **query: str) -> Any:
    """Any request of the REST API (documented at /api/v1/openapi.json); None for a response without a body.

    Raises CommandFailed with the detail of the admin HTTP's problem.
    """
    url, status, text = await _fetch(admin, f"/api/v1{path}", query, method)
    try:
        body = json.loads(text) if text else None
    except ValueError:
        raise CommandFailed(f"{url} answered {status} without JSON: is that Tidegate's admin HTTP?") from None
    if status >= 400:
        raise CommandFailed(str((body or {}).get("detail") or (body or {}).get("error") or f"{url} answered {status}"))
    return body


async def brokers(admin: AdminHttp) -> Any:
    """/brokers: the cluster id and every broker with a lease. Raises CommandFailed."""
    found = await ask(admin, "GET", "/brokers")
    if not isinstance(found, dict) or "brokers" not in found:
        raise CommandFailed(f"{admin.addresses} lists no brokers: is that Tidegate's admin HTTP?")
    return found


async def readiness(admin: AdminHttp) -> Any:
    """/health/ready: whether the broker is ready, and the reasons if not. Raises CommandFailed."""
    url, status, text = await _fetch(admin, "/health/ready", {})
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or "reasons" not in body:
        raise CommandFailed(f"{url} answered {status} without readiness: is that Tidegate's admin HTTP?")
    return body


async def _fetch(admin: AdminHttp, path: str, query: Mapping[str, str], method: str = "GET") -> tuple[URL, int, str]:
    """Fetch from the first responding address of a comma-separated list: all brokers return the same data.

    Raises CommandFailed, NobodyListens.
    """
    if admin.missing:
        raise CommandFailed(admin.missing)
    failures, is_refused = [], True
    headers = {"Authorization": f"Bearer {admin.token}"} if admin.token else {}
    async with aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers) as session:
        for address in (one.strip().rstrip("/") for one in admin.addresses.split(",")):
            try:
                base = address if "://" in address else f"http://{address}"
                url = URL(f"{base}{path}", encoded=True).with_query(query)
                async with session.request(method, url) as answer:
                    return url, answer.status, await answer.text()
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                failures.append(f"{address}: {_reported(error)}")
                os_error = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
                is_refused = is_refused and isinstance(os_error, ConnectionRefusedError)
    failure = NobodyListens if is_refused else CommandFailed
    raise failure(f"no admin HTTP answers at {'; '.join(failures)} (--admin)")


def _reported(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {_TIMEOUT.total:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return describe_os_error(error.os_error)
    return "not an address" if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError) else str(error)


async def every_group(admin: AdminHttp, org: str) -> list[Any]:
    """Every group, page by page, in order of id. Raises CommandFailed."""
    rows, after = [], ""
    while True:
        page = await get(admin, None, "", org, after=after)
        rows += page["groups"]
        if page.get("next") is None:
            return rows
        after = page["next"]


async def explain(admin: AdminHttp, group_id: str | None, org: str) -> list[Any]:
    """The findings of one group, or of every group with a problem, worst first. Raises CommandFailed."""
    if group_id is not None:
        return [await get(admin, group_id, "explain", org)]
    rows = [row for row in await every_group(admin, org) if row["trouble"]]
    rows.sort(key=lambda row: (SEVERITIES.index(row["severity"]), row["group"]))
    found = []
    for row in rows:
        with contextlib.suppress(NoSuchGroup):  # deleted meanwhile
            found.append(await get(admin, row["group"], "explain", org))
    return found
