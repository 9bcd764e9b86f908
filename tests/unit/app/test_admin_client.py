"""What the commands make of what an admin HTTP answers."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidegate.cli.client import admin_client
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import AdminHttp


def _server(answers: dict[str, tuple[int, Any]]) -> TestServer:
    async def answer(request: web.Request) -> web.Response:
        status, body = answers[request.path]
        return web.json_response(body, status=status)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    return TestServer(app)


async def test_group_that_is_deleted_meanwhile_is_left_out() -> None:
    rows = [{"group": name, "trouble": "crash_loop", "severity": "trouble"} for name in ("gone", "here")]
    answers: dict[str, tuple[int, Any]] = {
        "/api/v1/groups": (200, {"groups": rows, "next": None}),
        "/api/v1/groups/gone/explain": (404, {"detail": "there is no group gone"}),
        "/api/v1/groups/here/explain": (200, {"group": "here", "findings": []}),
    }
    async with _server(answers) as server:
        found = await admin_client.explain(AdminHttp(str(server.make_url(""))), None, "default")
        with pytest.raises(CommandFailed, match=r"^there is no group gone$"):
            await admin_client.explain(AdminHttp(str(server.make_url(""))), "gone", "default")

    assert [one["group"] for one in found] == ["here"]


async def test_long_list_is_read_page_by_page() -> None:
    pages = {"": (["a", "b"], "b"), "b": (["c"], None)}

    async def answer(request: web.Request) -> web.Response:
        names, behind = pages[request.query["after"]]
        return web.json_response({"groups": [{"group": name} for name in names], "next": behind})

    app = web.Application()
    app.add_routes([web.get("/api/v1/groups", answer)])
    async with TestServer(app) as server:
        rows = await admin_client.every_group(AdminHttp(str(server.make_url(""))), "default")

    assert [row["group"] for row in rows] == ["a", "b", "c"]


async def test_broker_without_redis_fails_the_list() -> None:
    rows = [{"group": "g", "trouble": "crash_loop", "severity": "trouble"}]
    answers: dict[str, tuple[int, Any]] = {
        "/api/v1/groups": (200, {"groups": rows, "next": None}),
        "/api/v1/groups/g/explain": (503, {"detail": "Redis does not answer"}),
    }
    async with _server(answers) as server:
        with pytest.raises(CommandFailed, match=r"^Redis does not answer$"):
            await admin_client.explain(AdminHttp(str(server.make_url(""))), None, "default")


@pytest.mark.parametrize("body", [{"status": "ok"}, [], 7, None])
@pytest.mark.parametrize(("group_id", "what"), [(None, ""), ("g", ""), ("g", "history"), ("g", "explain")])
async def test_json_of_another_server_is_reported(body: Any, group_id: str | None, what: str) -> None:
    path = f"/api/v1/groups{f'/{group_id}' if group_id else ''}{f'/{what}' if what else ''}"
    async with _server({path: (200, body)}) as server:
        with pytest.raises(CommandFailed, match=r"answered 200 without groups: is that Tidegate's admin HTTP"):
            await admin_client.get(AdminHttp(str(server.make_url(""))), group_id, what, "default")


@pytest.mark.parametrize("what", ["", "history", "explain"])
async def test_group_id_that_is_missing(what: str) -> None:
    with pytest.raises(CommandFailed, match=r"^a group id is missing$"):
        await admin_client.get(AdminHttp("127.0.0.1:1"), "", what, "default")
