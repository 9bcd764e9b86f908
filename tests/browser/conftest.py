"""A cluster with every kind of trouble, and a real Chromium that looks at it; skipped where there is none."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from bench import stuck
from bench.cluster import CONNECTIONS_STAY, Cluster
from bench.stuck import Stage

PASSWORD = "correct horse battery"
PATIENCE_MS = 60_000
NAMES = ("chromium", "chromium-browser", "google-chrome")
SETTINGS = {
    **stuck.SETTINGS,
    "TIDEGATE_LAG_SAMPLE_INTERVAL_MS": "1000",
    "TIDEGATE_ADMIN_OPERATOR_PASSWORD": PASSWORD,
}
TROUBLE = (stuck.silent_member, stuck.hanging_leader, stuck.nobody_left, stuck.poll_timeouts, stuck.no_commits)

expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Reader:
    """Somebody at the console: a page, and what its console said."""

    page: Page
    base: str
    reported_text: list[str] = field(default_factory=list)

    async def open(self, path: str) -> Page:
        """Go to a page of the console; scripts have run when it is there, as they are deferred."""
        await self.page.goto(f"{self.base}{path}")
        return self.page

    async def log_in(self) -> None:
        """Become an operator."""
        await self.open("/console/login")
        await self.page.get_by_label("Password or token").fill(PASSWORD)
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.get_by_role("button", name="Log out").wait_for()

    def observe(self, message: ConsoleMessage) -> None:
        """Errors alone: one is a fault of ours, or of the policy against foreign scripts and styles."""
        if message.type == "error":
            self.reported_text.append(message.text)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage() -> AsyncIterator[Stage]:
    """Three brokers, and groups in five kinds of trouble, of those that no load of the machine disturbs."""
    with Cluster(brokers=3, settings=SETTINGS, constants=CONNECTIONS_STAY) as cluster:
        async with Stage(cluster) as opened:
            await asyncio.gather(*(scenario(opened) for scenario in TROUBLE))
            yield opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Chromium as the system has it."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is not here: apt-get install chromium")
    flags: Sequence[str] = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=flags)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(chromium: Browser) -> AsyncIterator[BrowserContext]:
    """A browser that knows nothing yet, in a zone that is not UTC."""
    opened = await chromium.new_context(viewport={"width": 1280, "height": 900}, timezone_id="Asia/Kolkata")
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def reader(context: BrowserContext, stage: Stage) -> AsyncIterator[Reader]:
    """A reader; in the end its page must have had no errors."""
    opened = await reader_of(context, stage.admin)
    yield opened
    assert opened.reported_text == []


async def reader_of(context: BrowserContext, base: str) -> Reader:
    """A reader of one broker."""
    page = await context.new_page()
    found = Reader(page, base)
    page.on("console", found.observe)
    page.on("pageerror", lambda error: found.reported_text.append(str(error)))
    page.on("dialog", lambda dialog: found.reported_text.append(f"a script ran: {dialog.message}"))
    return found


def violations(found: Any) -> list[str]:
    """What axe found, a line each."""
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
        for one in found.response["violations"]
    ]
