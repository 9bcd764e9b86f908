"""A page follows a real rebalance by itself, and what it shows stays when a broker or Redis goes away."""

from __future__ import annotations

import asyncio
import re

import pytest
from kio.schema.errors import ErrorCode
from playwright.async_api import BrowserContext, expect

from bench.cluster import Cluster
from bench.stuck import Stage
from tests.browser.conftest import SETTINGS, Reader, reader_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


async def test_live_page_late_member_shown_missing_until_it_rejoins(reader: Reader, stage: Stage) -> None:
    first, late = await stage.stable("late-member", "web-1", "web-2", session_timeout_ms=300_000)
    page = await reader.open("/console/group?group=late-member")
    await page.evaluate("window.stayed = true")
    barrier = page.locator("#the-barrier")
    assert await barrier.count() == 0

    third = await stage.member("late-member", "web-3", session_timeout_ms=300_000)
    joins = [asyncio.ensure_future(third.round())]
    while await first.heartbeat() is ErrorCode.none:  # a join before the rebalance would be answered at once
        await asyncio.sleep(0.05)
    joins.append(asyncio.ensure_future(first.round()))

    await expect(barrier).to_contain_text("2 of 3 joined")
    await expect(barrier.locator(".awaited")).to_contain_text("web-2")
    before = await barrier.locator(".line [data-left-ms]").inner_text()
    assert re.fullmatch(r"4 min \d+ s", before)
    await expect(barrier.locator(".line [data-left-ms]")).not_to_have_text(before)  # it counts down
    await expect(page.get_by_role("status").filter(has_text="awaited: web-2")).to_have_count(1)

    await asyncio.gather(late.round(), *joins)

    await expect(barrier).to_have_count(0)
    await expect(page.get_by_role("status").filter(has_text="late-member is Stable")).to_have_count(1)
    await expect(page.locator("#rebalances ~ * , .timeline rect")).not_to_have_count(0)
    assert await page.evaluate("window.stayed")  # no reload


async def test_focus_survives_an_update(reader: Reader) -> None:
    page = await reader.open("/console/group?group=silent-member")
    await page.get_by_role("link", name="Move offsets…").focus()
    state = page.locator("#the-barrier .muted").first
    before = await state.inner_text()

    await expect(state).not_to_have_text(before)

    assert await page.evaluate("document.activeElement.textContent") == "Move offsets…"


async def test_live_page_redis_unavailable_content_stays_and_updates_resume(context: BrowserContext) -> None:
    with Cluster(brokers=1, settings=SETTINGS, server_options=["--appendonly", "yes"]) as cluster:
        async with Stage(cluster) as stage:
            await stage.stable("orders-app", "web-1", session_timeout_ms=300_000)
            reader = await reader_of(context, stage.admin)
            page = await reader.open("/console/group?group=orders-app")
            cluster.kill_server()

            offline = page.locator("#offline")
            await expect(offline).to_contain_text("Redis does not answer")
            await expect(page.get_by_role("row").filter(has_text="web-1").first).to_be_visible()
            other = await reader_of(context, stage.admin)
            await other.page.goto(f"{stage.admin}/console/")
            await expect(other.page.get_by_role("heading", level=1)).to_have_text("Redis does not answer")
            await expect(other.page.locator("main")).not_to_contain_text("Traceback")

            cluster.start_server()
            await expect(offline).to_be_hidden()
            await expect(other.page.get_by_role("heading", level=1)).to_have_text("Groups")

            cluster.brokers[0].kill()
            await expect(offline).to_contain_text("does not answer")
            stage.tasks.clear()
