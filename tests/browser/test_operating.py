"""What operators do, by mouse and by keyboard alone: move offsets and move them back, remove, delete, drain."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import BrowserContext, expect

from bench.cluster import Cluster
from bench.stuck import Stage
from tests.browser.conftest import SETTINGS, Reader, reader_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


async def test_offsets_are_moved_by_the_wizard_and_moved_back(reader: Reader, stage: Stage) -> None:
    (member,) = await stage.stable("reset-me", "web-1")
    await member.commit()
    await member.leave("stopped")
    await reader.log_in()
    page = await reader.open("/console/group?group=reset-me")

    await page.get_by_role("link", name="Move offsets…").click()
    await page.get_by_label("So many records on; back if negative", exact=True).check()
    await page.get_by_role("spinbutton").first.fill("-40")
    await page.get_by_role("button", name="Show what would move").click()

    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(4)
    assert (await rows.first.inner_text()).split() == ["orders", "0", "100", "60", "40", "again"]
    assert await committed(page, reader) == {"100"}  # a dry run changes nothing

    confirm = page.get_by_role("button", name="Move 4 offsets")
    await expect(confirm).to_be_disabled()
    await page.get_by_label("Type the group's name").fill("reset-mee")
    await expect(confirm).to_be_disabled()
    await page.get_by_label("Type the group's name").fill("reset-me")
    await confirm.click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("Offsets are moved")
    assert await committed(page, reader) == {"60"}

    await page.get_by_role("link", name="Undo…").click()
    await page.get_by_role("button", name="Put them back").click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("Offsets are back")
    assert await committed(page, reader) == {"100"}
    await reader.open("/console/audit")
    assert (await page.locator("tbody td.mono").all_inner_texts())[:2] == ["group.reset.undo", "group.reset"]


async def test_offsets_of_one_partition_are_moved(reader: Reader, stage: Stage) -> None:
    (member,) = await stage.stable("reset-one", "web-1")
    await member.commit()
    await member.leave("stopped")
    page = await reader.open("/console/reset?group=reset-one")

    await page.get_by_label("The earliest record there is").check()
    partitions = page.get_by_label("Partitions of orders")
    await expect(partitions).to_be_hidden()
    await page.get_by_role("checkbox", name="orders").check()
    await partitions.fill("1,3")
    await page.get_by_role("button", name="Show what would move").click()

    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    assert [row.split()[:2] for row in await rows.all_inner_texts()] == [["orders", "1"], ["orders", "3"]]


async def committed(page: object, reader: Reader) -> set[str]:
    """What the group's page says of its offsets, on a page of its own."""
    other = await reader.page.context.new_page()
    await other.goto(f"{reader.base}/console/group?group=reset-me")
    found = set(await other.locator('td[data-label="Committed"]').all_inner_texts())
    await other.close()
    return found


async def test_members_of_a_live_group_are_removed_with_consent_alone(reader: Reader, stage: Stage) -> None:
    (member,) = await stage.stable("live-reset", "web-1")
    await member.commit()
    stage.healthy(member)
    member.end = 70
    await reader.log_in()
    page = await reader.open("/console/reset?group=live-reset&to=offset&value-offset=70")

    await expect(page.locator(".note.warn")).to_contain_text("1 member")
    await page.get_by_label("Remove its 1 member in the same instant").check()
    await page.get_by_label("Type the group's name").fill("live-reset")
    await page.get_by_role("button", name="Move 4 offsets").click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("Offsets are moved")
    await expect(page.locator(".note.good")).to_contain_text("1 member removed")


async def test_reset_form_impossible_choice_shows_the_error(reader: Reader) -> None:
    page = await reader.page.context.new_page()
    await page.goto(f"{reader.base}/console/reset?group=nobody-left&to=datetime&value-datetime=tomorrow")

    await expect(page.get_by_role("alert")).to_contain_text("not a time")
    await expect(page.get_by_label("The first record at or after a time, UTC", exact=True)).to_be_checked()


async def test_member_is_removed_by_keyboard_alone(reader: Reader, stage: Stage) -> None:
    (member, other) = await stage.stable("remove-one", "web-1", "web-2", session_timeout_ms=300_000)
    await reader.log_in()
    page = await reader.open("/console/group?group=remove-one")
    button = page.get_by_role("button", name="Remove web-1")
    await button.focus()

    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Remove web-1?")
    await expect(dialog).to_contain_text(member.member_id)
    for _ in range(4):  # the focus stays inside
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.matches('body, dialog *')")
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(button).to_be_focused()

    await page.keyboard.press("Enter")
    await dialog.get_by_role("button", name="Remove it").focus()
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("status").filter(has_text="web-1 is removed")).to_be_visible()
    await expect(page.locator("tbody th", has_text="web-1-")).to_have_count(0)
    other.close()


async def test_group_is_deleted_once_its_name_is_typed(reader: Reader, stage: Stage) -> None:
    (member,) = await stage.stable("delete-me", "web-1")
    await member.leave("done")
    await reader.log_in()
    page = await reader.open("/console/group?group=delete-me")

    await page.get_by_role("button", name="Delete…").click()
    confirm = page.get_by_role("button", name="Delete the group")
    await expect(confirm).to_be_disabled()
    await page.get_by_label("Type the group's name").fill("delete-me")
    await confirm.click()

    await expect(page.get_by_role("status").filter(has_text="delete-me and its offsets are deleted")).to_be_visible()
    await expect(page.get_by_role("link", name="delete-me")).to_have_count(0)


async def test_viewer_gets_no_controls(reader: Reader) -> None:
    page = await reader.open("/console/group?group=nobody-left")

    assert await page.get_by_role("button", name="Delete").count() == 0
    await expect(page.locator("main")).to_contain_text("log in as an operator")
    page = await reader.open("/console/brokers")
    assert await page.get_by_role("button", name="Drain").count() == 0


async def test_login_wrong_password_shows_the_error_right_one_leads_back(reader: Reader) -> None:
    page = await reader.open("/console/brokers")
    await page.get_by_role("link", name="Log in", exact=True).click()
    await page.get_by_label("Password or token").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("Wrong name or password")

    await page.get_by_label("Password or token").fill(SETTINGS["TIDEGATE_ADMIN_OPERATOR_PASSWORD"])
    await page.get_by_role("button", name="Log in").click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("Brokers")
    await expect(page.get_by_role("button", name="Drain broker").first).to_be_visible()


async def test_first_tab_leads_past_the_navigation(reader: Reader) -> None:
    page = await reader.open("/console/")

    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")

    assert await page.evaluate("!!document.activeElement.closest('main')")


async def test_broker_started_after_the_page_is_drained_and_the_page_follows(context: BrowserContext) -> None:
    with Cluster(brokers=1, settings={**SETTINGS, "TIDEGATE_SHUTDOWN_TIMEOUT_MS": "2000"}) as cluster:
        base = f"http://127.0.0.1:{cluster.brokers[0].admin_port}"
        reader = await reader_of(context, base)
        await reader.log_in()
        page = await reader.open("/console/brokers")
        await page.get_by_role("button", name="Drain broker 1").click()
        await expect(page.get_by_role("dialog")).to_contain_text("It is the only one that serves")
        await page.get_by_role("button", name="Cancel").click()
        cluster.add_broker()

        await page.get_by_role("button", name="Drain broker 2").click()
        await expect(page.get_by_role("dialog")).not_to_contain_text("It is the only one that serves")
        await page.get_by_role("dialog").get_by_role("button", name="Drain broker 2").click()

        await expect(page.get_by_role("status").filter(has_text="asked to drain")).to_be_visible()
        await expect(page.get_by_role("heading", name="1 broker, 1 serving")).to_be_visible()
        process = cluster.brokers[1].process
        assert process is not None
        async with asyncio.timeout(100):
            while process.poll() is None:
                await asyncio.sleep(0.1)
        assert process.returncode == 0
        assert reader.reported_text == []
