"""The live screens against admin addresses that reply late or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tidegate.cli.client import admin_client
from tidegate.cli.places import AdminHttp
from tidegate.cli.top.app import Top
from tidegate.cli.top.group_screen import GroupScreen

INTERVAL_S: Final = 0.05
TIMEOUT_S: Final = 0.6
ROW: Final = {
    "group": "orders", "lag": 3, "state": "Stable", "members": 2, "state_since_ms": 1, "severity": "", "trouble": "",
}  # fmt: skip

HOSTILE: Final = "web\x1b[2J\x9b31m"
SHOWN: Final = r"web\x1b[2J\x9b31m"
GROUP: Final = {
    "group_id": HOSTILE, "state": HOSTILE, "state_since_ms": 1, "now_ms": 2, "generation": 1,
    "protocol_type": "consumer",
    "protocol": HOSTILE, "join_deadline_ms": 0, "sync_deadline_ms": 0,
    "members": [{
        "member_id": HOSTILE, "instance_id": "", "client_id": HOSTILE, "client_host": HOSTILE, "phase": "stable",
        "last_contact_ms": 1, "owned": {HOSTILE: [0]},
    }],
    "partitions": [
        {"topic": HOSTILE, "partition": 0, "committed": 1, "log_end": 1, "lag": 0, "owner": HOSTILE},
    ],
}  # fmt: skip


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a server that never replies, and the paths of its requests, which soon time out."""
    monkeypatch.setattr(admin_client, "_TIMEOUT", aiohttp.ClientTimeout(total=TIMEOUT_S))
    paths: list[str] = []

    async def wait(request: web.Request) -> web.Response:
        paths.append(request.path)
        await asyncio.sleep(3600)
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", wait)])
    async with TestServer(app) as server:
        yield str(server.make_url("")), paths


@pytest.fixture
async def replying() -> AsyncIterator[str]:
    async def groups(request: web.Request) -> web.Response:
        return web.json_response({"groups": [ROW], "next": None})

    async def hostile(request: web.Request) -> web.Response:
        return web.json_response({"summary": HOSTILE, "findings": []} if request.path.endswith("explain") else GROUP)

    app = web.Application()
    app.add_routes([web.get("/api/v1/groups", groups), web.get("/api/v1/groups/{path:.*}", hostile)])
    async with TestServer(app) as server:
        yield str(server.make_url(""))


async def _until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await pilot.pause(0.02)


async def test_top_list_silent_address_is_reported(silent: tuple[str, list[str]]) -> None:
    (address, paths), clock = silent, asyncio.get_running_loop().time
    start_s = clock()
    async with Top(AdminHttp(address), "default", INTERVAL_S).run_test() as pilot:
        status = pilot.app.query_one("#status", Static)
        await _until(pilot, lambda: "no reply within" in str(status.render()))
        assert len(paths) <= 1 + (clock() - start_s) / TIMEOUT_S, "one at a time"


async def test_top_list_next_address_is_read(silent: tuple[str, list[str]], replying: str) -> None:
    async with Top(AdminHttp(f"{silent[0]},{replying}"), "default", INTERVAL_S).run_test() as pilot:
        table: DataTable[Any] = pilot.app.query_one("#groups", DataTable)
        await _until(pilot, lambda: table.row_count == 1)


async def test_top_group_silent_address_is_reported(silent: tuple[str, list[str]]) -> None:
    admin = AdminHttp(silent[0])
    async with Top(admin, "default", 3600).run_test() as pilot:
        await pilot.app.push_screen(GroupScreen(admin, "default", "orders", INTERVAL_S))
        facts = pilot.app.screen.query_one("#facts", Static)
        await _until(pilot, lambda: "no reply within" in str(facts.render()))


async def test_top_list_control_characters_are_escaped(replying: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROW, "group", HOSTILE)
    monkeypatch.setitem(ROW, "sentence", HOSTILE)
    async with Top(AdminHttp(replying), "default", INTERVAL_S).run_test() as pilot:
        table: DataTable[Any] = pilot.app.query_one("#groups", DataTable)
        await _until(pilot, lambda: table.row_count == 1)
        assert str(table.get_row_at(0)[0]) == SHOWN


async def test_top_group_control_characters_are_escaped(replying: str) -> None:
    admin = AdminHttp(replying)
    async with Top(admin, "default", 3600).run_test() as pilot:
        await pilot.app.push_screen(GroupScreen(admin, "default", HOSTILE, 3600))
        screen = pilot.app.screen
        tables = [screen.query_one(name, DataTable) for name in ("#members", "#partitions")]
        await _until(pilot, lambda: all(table.row_count == 1 for table in tables))
        drawn = [str(screen.query_one(name, Static).render()) for name in ("#group", "#facts")]
        drawn += [str(cell) for table in tables for cell in table.get_row_at(0)]
    assert sum("web" in text for text in drawn) == 7
    assert not any("\x1b" in text or "\x9b" in text for text in drawn)
