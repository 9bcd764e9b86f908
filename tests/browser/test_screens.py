"""Every page of the console in a real browser: accessible in light and dark, on a phone, without errors."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import BrowserContext

from bench.stuck import Stage
from tests.browser.conftest import Reader, reader_of, violations

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

PAGES = {
    "overview": ("/console/", "Groups"),
    "search": ("/console/?q=member", "Groups"),
    "nothing": ("/console/?q=nowhere", "Groups"),
    "barrier": ("/console/group?group=silent-member", "silent-member"),
    "leader": ("/console/group?group=hanging-leader", "hanging-leader"),
    "rebalances": ("/console/group?group=poll-timeouts", "poll-timeouts"),
    "empty": ("/console/group?group=nobody-left", "nobody-left"),
    "reset": ("/console/reset?group=nobody-left", "Move offsets"),
    "dry-run": ("/console/reset?group=nobody-left&to=earliest", "Move offsets"),
    "topics": ("/console/topics", "Topics"),
    "topic": ("/console/topic?topic=orders", "orders"),
    "brokers": ("/console/brokers", "Brokers"),
    "redis": ("/console/redis", "Redis"),
    "producers": ("/console/producers", "Producers"),
    "audit": ("/console/audit", "Audit"),
    "login": ("/console/login", "Log in"),
}
PATHS = pytest.mark.parametrize(("path", "title"), PAGES.values(), ids=PAGES)


@PATHS
async def test_page_is_accessible_in_light_and_dark_and_on_a_phone(reader: Reader, path: str, title: str) -> None:
    page = await reader.open(path)
    assert await page.get_by_role("heading", level=1).inner_text() == title

    await page.emulate_media(reduced_motion="reduce")
    assert violations(await Axe().run(page)) == [], "light"
    await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert violations(await Axe().run(page)) == [], "dark"
    await page.set_viewport_size({"width": 360, "height": 740})
    assert violations(await Axe().run(page)) == [], "phone"
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("name", ["barrier", "empty", "dry-run", "brokers", "audit"])
async def test_operator_controls_are_accessible(reader: Reader, name: str) -> None:
    await reader.log_in()
    page = await reader.open(PAGES[name][0])

    for dialog in ["", *await page.locator("[data-opens]:enabled").all()][:3]:
        if dialog:
            await dialog.click()
        assert violations(await Axe().run(page)) == []
        await page.keyboard.press("Escape")


@PATHS
async def test_page_is_whole_without_scripts(context: BrowserContext, stage: Stage, path: str, title: str) -> None:
    browser = context.browser
    assert browser is not None
    plain = await browser.new_context(java_script_enabled=False)
    page = await plain.new_page()
    await page.goto(f"{stage.admin}{path}")

    title_there = await page.locator("h1").inner_text()
    await plain.close()

    assert title_there == title


async def test_times_are_in_the_reader_s_zone_and_utc_on_hover(reader: Reader) -> None:
    page = await reader.open("/console/group?group=nobody-left")
    time = page.locator("time").first
    shown, exact = await time.inner_text(), await time.get_attribute("title") or ""

    hour, minute = map(int, exact.split()[1].split(":")[:2])
    there = (hour * 60 + minute + 5 * 60 + 30) % (24 * 60)
    assert exact.endswith(" UTC")
    assert shown.startswith(f"{there // 60:02d}:{there % 60:02d}:")


async def test_overview_lists_worst_first_and_searches_without_reload(reader: Reader) -> None:
    page = await reader.open("/console/")
    verdicts = await page.locator("tbody .badge").all_inner_texts()
    assert verdicts == sorted(verdicts, key=("stuck", "trouble", "rebalancing", "fine").index)
    await page.evaluate("window.stayed = true")

    await page.get_by_role("searchbox", name="Search groups").fill("timeouts")

    await page.get_by_role("heading", name=re.compile(r"^1 group of \d+$")).wait_for()
    assert await page.locator("tbody th a").all_inner_texts() == ["poll-timeouts"]
    assert "q=timeouts" in page.url and await page.evaluate("window.stayed")


async def test_policy_forbids_what_is_not_ours(reader: Reader) -> None:
    page = await reader.open("/console/")

    ran = await page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            return window.ran === true;
        }"""
    )

    assert not ran
    assert any("Content Security Policy" in text for text in reader.reported_text)
    reader.reported_text.clear()  # that was meant


NASTY = "<script>alert(1)</script>/../%2e?#&\"' \N{SNOWMAN}\N{RIGHT-TO-LEFT OVERRIDE}`<img src=x onerror=alert(2)>"


@pytest.mark.parametrize("name", [NASTY + "x" * (250 - len(NASTY)), "..", "a b/c"])
async def test_any_group_id_has_a_page(context: BrowserContext, stage: Stage, name: str) -> None:
    (member,) = await stage.stable(name, "<b>app</b>")
    reader = await reader_of(context, stage.admin)
    await reader.page.set_viewport_size({"width": 360, "height": 740})
    page = await reader.open("/console/")

    await page.get_by_role("link", name=name, exact=True).click()

    await page.locator("#the-barrier, #members").first.wait_for()
    assert (await page.locator("h1").text_content() or "").split() == name.split()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert violations(await Axe().run(page)) == []
    assert reader.reported_text == []
    await member.leave("done")
